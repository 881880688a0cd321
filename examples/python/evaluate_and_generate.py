"""Evaluates and generates during training, with the model being trained.

python examples/python/evaluate_and_generate.py [--steps N]
A tiny Llama learns to count: the next number is the last one plus one, modulo 50.
"""

import argparse

import torch
import transformers

import tidepool

NUMBERS = 50


def make_model() -> torch.nn.Module:
    config = transformers.LlamaConfig(
        vocab_size=NUMBERS, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=64, bos_token_id=0, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


def batch(size: int) -> torch.Tensor:
    """(size, 16) numbers; each row counts from a random start."""
    return (torch.randint(0, NUMBERS, (size, 1)) + torch.arange(16)) % NUMBERS


@torch.no_grad()
def evaluate(model: torch.nn.Module, held_out: torch.Tensor) -> float:
    model.eval()
    loss = model(input_ids=held_out, labels=held_out).loss.item()
    model.train()
    return loss


def generate(model: torch.nn.Module) -> list:
    model.eval()
    ids = model.generate(torch.tensor([[7, 8, 9]]), max_new_tokens=8, do_sample=False)
    model.train()
    return ids[0].tolist()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=60)
    steps = parser.parse_args().steps

    torch.manual_seed(1)
    model = tidepool.wrap(make_model(), rcache="60%")
    optimizer = tidepool.optim.AdamW(model.parameters(), lr=3e-3, max_grad_norm=1.0)
    held_out = batch(32)

    first = evaluate(model, held_out)
    print(f"step    0  held-out loss {first:.4f}")
    for step in range(1, steps + 1):
        ids = batch(32)
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(f"step {step:4}  held-out loss {evaluate(model, held_out):.4f}  {generate(model)}")

    last = evaluate(model, held_out)
    tidepool.close(model)
    if steps >= 60 and last > first / 4:
        raise SystemExit(f"the held-out loss has not fallen: {first:.4f} to {last:.4f}")


if __name__ == "__main__":
    main()
