"""Fine-tunes a Hugging Face GPT-2 from a directory, and saves it for transformers.

python examples/python/finetune_gpt2.py [--model DIR] [--out DIR] [--steps N]
Without --model it makes a tiny GPT-2 with random weights. The text is synthetic: bytes as tokens.
"""

import argparse
import os
import tempfile

import torch
import transformers

import tidepool

TEXT = b"the tide comes in, and the pools are full; the tide goes out, and the pools stay. " * 40
CONTEXT = 64


def make_tiny_model(directory: str) -> None:
    torch.manual_seed(1)
    config = transformers.GPT2Config(
        vocab_size=256, n_positions=CONTEXT, n_embd=64, n_layer=3, n_head=4, bos_token_id=0, eos_token_id=0
    )
    transformers.GPT2LMHeadModel(config).save_pretrained(directory)


def batch(tokens: torch.Tensor, size: int = 8) -> torch.Tensor:
    """(size, CONTEXT) tokens from random positions of the text."""
    starts = torch.randint(0, len(tokens) - CONTEXT, (size,))
    return torch.stack([tokens[start : start + CONTEXT] for start in starts])


def train(directory: str, out: str, steps: int) -> None:
    model = tidepool.from_pretrained(transformers.AutoModelForCausalLM, directory, rcache="60%")
    optimizer = tidepool.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1, max_grad_norm=1.0)
    warmup = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 10))

    tokens = torch.tensor(list(TEXT))
    model.train()
    losses = []
    for step in range(1, steps + 1):
        ids = batch(tokens)
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        tidepool.report_step(model, loss, tokens=ids.numel())  # for memctl and its page
        optimizer.step()
        warmup.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        if step % 10 == 0 or step == 1:
            print(f"step {step:4}  loss {losses[-1]:.4f}  gradient norm {optimizer.last_grad_norm:.3f}")

    tidepool.save_pretrained(model, out)
    tidepool.close(model)
    if steps >= 30 and losses[-1] > losses[0] - 1:
        raise SystemExit(f"the loss has not fallen by 1: {losses[0]:.4f} to {losses[-1]:.4f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="directory of a GPT-2 with config.json and safetensors files")
    parser.add_argument("--out", help="directory that is written (default: none that stays)")
    parser.add_argument("--steps", type=int, default=40)
    options = parser.parse_args()
    transformers.utils.logging.disable_progress_bar()

    with tempfile.TemporaryDirectory() as scratch:
        directory = options.model or os.path.join(scratch, "model")
        if not options.model:
            make_tiny_model(directory)
        out = options.out or os.path.join(scratch, "out")
        train(directory, out, options.steps)
        reloaded = transformers.AutoModelForCausalLM.from_pretrained(out)
        print(f"transformers reads {sum(p.numel() for p in reloaded.parameters()):,} parameters from {out}")


if __name__ == "__main__":
    main()
