#!/usr/bin/env python3
"""Trains a GPT-2 shape for a few steps with PyTorch alone, and prints what a step takes as one JSON object.

usage: fsdp2.py --way fsdp2|plain --layers N --hidden N --heads N [--vocab N] [--sequence N] [--batch N] [--steps N] [--clip X]
                [--gpu-gib X] [--device cuda|cpu]

fsdp2  FSDP2 with CPUOffloadPolicy: fp32 parameters, gradients and AdamW(fused=True) on the host, bf16 on the GPU (MixedPrecisionPolicy);
       each block is a unit of its own. What offloading costs in PyTorch as it comes.
plain  everything on the GPU: bf16 parameters, fp32 master and moments, AdamW(fused=True): the ceiling where it fits.

The model is that of trainer/model/gpt.cpp (tied embeddings, biases, tanh-GELU, no dropout), with every block checkpointed. --gpu-gib
caps what PyTorch may take of the GPU. --device cpu is for trying the script out. Needs a PyTorch with FSDP2 (2.6 or newer).

Exit codes: 0 printed, 2 usage, 9 no PyTorch or no GPU, 20 the memory of the GPU did not do, 21 that of the host.
"""

import argparse
import json
import os
import resource
import sys
import tempfile
import time

EXIT_NOTHING_THERE, EXIT_GPU_SHORT, EXIT_HOST_SHORT = 9, 20, 21
WARM_UP = 2  # uncounted steps

def parse(words: list[str]):
    parser = argparse.ArgumentParser(prog="fsdp2.py", description=__doc__.partition("\n")[0])
    parser.add_argument("--way", choices=("fsdp2", "plain"), required=True)
    for flag in ("--layers", "--hidden", "--heads"):
        parser.add_argument(flag, type=int, required=True)
    parser.add_argument("--vocab", type=int, default=50257)
    parser.add_argument("--sequence", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--clip", type=float, default=0.0, help="largest gradient norm; 0: no clipping")
    parser.add_argument("--gpu-gib", type=float, default=0.0, help="cap of PyTorch's GPU memory; 0: none")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    return parser.parse_args(words)


ARGUMENTS = parse(sys.argv[1:])  # before PyTorch, which takes seconds to import and may be missing

try:
    import torch
    from torch import nn
    from torch.nn import functional
    from torch.utils.checkpoint import checkpoint
except ImportError as missing:
    print(f"error: no PyTorch for {sys.executable}: {missing}", file=sys.stderr)
    sys.exit(EXIT_NOTHING_THERE)


class Block(nn.Module):
    def __init__(self, hidden: int, heads: int):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.c_attn, self.c_proj = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.c_fc, self.c_out = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def forward(self, x):
        batch, tokens, hidden = x.shape
        q, k, v = (part.view(batch, tokens, self.heads, hidden // self.heads).transpose(1, 2) for part in self.c_attn(self.ln_1(x)).chunk(3, -1))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(mixed.transpose(1, 2).reshape(batch, tokens, hidden))
        return x + self.c_out(functional.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, layers: int, hidden: int, heads: int, vocab: int, context: int):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, hidden), nn.Embedding(context, hidden)
        self.h = nn.ModuleList(Block(hidden, heads) for _ in range(layers))
        self.ln_f = nn.LayerNorm(hidden)

    def forward(self, tokens, targets):
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.h:
            x = checkpoint(block, x, use_reentrant=False)
        logits = functional.linear(self.ln_f(x), self.wte.weight)
        return functional.cross_entropy(logits.view(-1, logits.shape[-1]).float(), targets.reshape(-1))


def init_weights(model: nn.Module) -> None:
    """GPT-2's: matrices 0.02, biases 0, norms 1. Repeats the same million random numbers: billions would take minutes."""
    torch.manual_seed(1)
    some = 0.02 * torch.randn(1 << 20)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter = parameter.to_local() if hasattr(parameter, "to_local") else parameter
            if parameter.dim() > 1:
                for piece in parameter.view(-1).split(some.numel()):
                    piece.copy_(some[: piece.numel()])
            elif name.endswith("weight"):
                parameter.fill_(1)
            else:
                parameter.zero_()


def groups_of(named) -> list[dict]:
    """Weight decay for matrices only."""
    named = list(named)
    return [{"params": [p for _, p in named if p.dim() > 1], "weight_decay": 0.1}, {"params": [p for _, p in named if p.dim() < 2], "weight_decay": 0.0}]


class Fsdp2Way:
    """States on the host, through FSDP2."""

    def __init__(self, arguments):
        from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard  # pylint: disable=import-outside-toplevel

        with torch.device("meta"):
            self.model = Gpt(arguments.layers, arguments.hidden, arguments.heads, arguments.vocab, arguments.sequence)
        backend = "cpu:gloo,cuda:nccl" if arguments.device == "cuda" else "gloo"
        self.rendezvous = tempfile.TemporaryDirectory(prefix="fsdp2-")  # pylint: disable=consider-using-with
        torch.distributed.init_process_group(backend, init_method=f"file://{self.rendezvous.name}/store", rank=0, world_size=1)
        mesh = torch.distributed.init_device_mesh(arguments.device, (1,))
        policies = {"mesh": mesh, "mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16), "offload_policy": CPUOffloadPolicy()}
        if arguments.device == "cpu":
            del policies["offload_policy"]
        for block in self.model.h:
            fully_shard(block, **policies)
        fully_shard(self.model, **policies)
        self.model.to_empty(device="cpu")
        init_weights(self.model)
        self.optimizer = torch.optim.AdamW(groups_of(self.model.named_parameters()), lr=1e-4, betas=(0.9, 0.95), fused=True)
        self.clip = arguments.clip

    def update(self) -> None:
        if self.clip > 0:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def end(self) -> None:
        torch.distributed.destroy_process_group()
        self.rendezvous.cleanup()


class PlainWay:
    """Everything on the GPU; an fp32 master beside each bf16 parameter."""

    def __init__(self, arguments):
        with torch.device(arguments.device):
            self.model = Gpt(arguments.layers, arguments.hidden, arguments.heads, arguments.vocab, arguments.sequence).to(torch.bfloat16)
        init_weights(self.model)
        self.masters = {name: parameter.detach().float().requires_grad_() for name, parameter in self.model.named_parameters()}
        self.optimizer = torch.optim.AdamW(groups_of(self.masters.items()), lr=1e-4, betas=(0.9, 0.95), fused=True)
        self.clip = arguments.clip

    def update(self) -> None:
        pairs = [(self.masters[name], parameter) for name, parameter in self.model.named_parameters()]
        if self.clip > 0:
            torch.nn.utils.clip_grad_norm_([parameter for _, parameter in pairs], self.clip)
        for master, parameter in pairs:
            master.grad = parameter.grad.float()
            parameter.grad = None
        self.optimizer.step()
        self.optimizer.zero_grad()
        torch._foreach_copy_([parameter.data for _, parameter in pairs], [master.data for master, _ in pairs])  # pylint: disable=protected-access

    def end(self) -> None:
        pass


def now(device: str) -> float:
    """The time after all work enqueued on the GPU has ended."""
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def run(arguments) -> dict:
    way = Fsdp2Way(arguments) if arguments.way == "fsdp2" else PlainWay(arguments)
    torch.manual_seed(2)
    tokens = torch.randint(arguments.vocab, (arguments.batch, arguments.sequence + 1), device=arguments.device)
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    times: dict[str, list[float]] = {"forward": [], "backward": [], "update": [], "step": []}
    losses = []
    for step in range(WARM_UP + arguments.steps):
        begin = now(arguments.device)
        loss = way.model(inputs, targets)
        forward = now(arguments.device)
        loss.backward()
        backward = now(arguments.device)
        way.update()
        end = now(arguments.device)
        losses.append(loss.item())
        if step >= WARM_UP:
            for part, seconds in (("forward", forward - begin), ("backward", backward - forward), ("update", end - backward), ("step", end - begin)):
                times[part].append(seconds)
    parameters = sum(parameter.numel() for parameter in way.model.parameters())
    way.end()
    count = arguments.batch * arguments.sequence
    seconds = {part: median(values) for part, values in times.items()}
    return {
        "way": arguments.way, "layers": arguments.layers, "hidden": arguments.hidden, "heads": arguments.heads, "batch": arguments.batch,
        "sequence": arguments.sequence, "clip": arguments.clip, "gpu_gib_cap": arguments.gpu_gib, "parameters": parameters, "tokens": count,
        "seconds": seconds, "tflops": 8 * parameters * count / seconds["step"] / 1e12,
        "tflops_without_update": 8 * parameters * count / (seconds["forward"] + seconds["backward"]) / 1e12,
        "gpu_bytes_peak": torch.cuda.max_memory_reserved() if arguments.device == "cuda" else 0,
        "host_bytes_peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, "losses": losses, "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if arguments.device == "cuda" else "cpu", "threads": torch.get_num_threads(),
    }


def host_bytes_free() -> int:
    with open("/proc/meminfo", encoding="ascii") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable:"))


def main() -> int:
    arguments = ARGUMENTS
    if arguments.device == "cuda" and not torch.cuda.is_available():
        print(f"error: this PyTorch ({torch.__version__}) shows no GPU that can be used", file=sys.stderr)
        return EXIT_NOTHING_THERE
    if arguments.device == "cuda":
        torch.cuda.set_device(0)
        if arguments.gpu_gib > 0:
            total = torch.cuda.get_device_properties(0).total_memory
            torch.cuda.set_per_process_memory_fraction(min(1.0, arguments.gpu_gib * 2**30 / total))
    # fp32 parameters, gradients and two moments; checked in advance, because the kernel would kill the process.
    parameters = arguments.layers * 12 * arguments.hidden**2 + arguments.vocab * arguments.hidden
    if arguments.way == "fsdp2" and 16 * parameters > 0.95 * host_bytes_free():
        print(f"error: FSDP2 needs {16 * parameters / 2**30:.1f} GiB on the host, {host_bytes_free() / 2**30:.1f} GiB are free", file=sys.stderr)
        return EXIT_HOST_SHORT
    try:
        print(json.dumps(run(arguments)))
    except torch.OutOfMemoryError as short:
        print(f"error: {str(short).partition('.')[0]}", file=sys.stderr)
        sys.stderr.flush()
        os._exit(EXIT_GPU_SHORT)  # the process group would wait for work that never ends
    return 0


if __name__ == "__main__":
    sys.exit(main())
