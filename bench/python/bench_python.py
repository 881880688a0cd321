"""Rows of `scripts/bench python`: the cost of Python compared with the C++ trainer, and of loading a pretrained model.

Run by build/tests/venv_python; prints rows in the form of bench/harness/row.h. One machine, two compute threads. With --device cuda, as
in scripts/gpu_check, only the step rows of both, on the first GPU.

  step        a step of GPT-2 124M from Python, compared with the same step of `trainer run`; both with a private server
  load        from_pretrained and the optimizer (all weights at the server), compared with safetensors' load_file and a copy of each
              tensor into touched memory; the file is not in the page cache
  memory      the peak growth of the process meanwhile, compared with the rCache, two chunks and 64 MiB
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

os.environ["OMP_NUM_THREADS"] = str(os.cpu_count() or 1)

import torch
from torch import nn
from torch.nn import functional

import tidepool

BIN = os.environ["TIDEPOOL_BIN"]
CONTEXT, BATCH, STEPS, WARM = 128, 2, 7, 3
MIB = 1 << 20


class Block(nn.Module):
    def __init__(self, hidden, heads):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.c_attn, self.c_proj = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.c_fc, self.c_out = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def forward(self, x):
        batch, tokens, hidden = x.shape
        parts = self.c_attn(self.ln_1(x)).chunk(3, -1)
        query, key, value = (part.view(batch, tokens, self.heads, -1).transpose(1, 2) for part in parts)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.c_proj(mixed.transpose(1, 2).reshape(batch, tokens, hidden))
        return x + self.c_out(functional.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


class Gpt(nn.Module):
    """The same operators as trainer/model/gpt.cpp."""

    def __init__(self, vocab=50257, context=1024, layers=12, heads=12, hidden=768):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, hidden), nn.Embedding(context, hidden)
        self.h = nn.ModuleList(Block(hidden, heads) for _ in range(layers))
        self.ln_f = nn.LayerNorm(hidden)

    def forward(self, tokens, targets):
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.h:
            x = block(x)
        logits = functional.linear(self.ln_f(x), self.wte.weight)
        return functional.cross_entropy(logits.view(-1, logits.shape[-1]), targets.reshape(-1))


def python_steps(device):
    torch.manual_seed(1)
    # The embedding is used twice, as in the C++ model.
    model = tidepool.wrap(Gpt(), standalone=True, rcache="50%", multi_use=["wte.weight"], device=device)
    optimizer = tidepool.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1, max_grad_norm=1.0)
    seconds = []
    for _ in range(STEPS):
        tokens = torch.randint(0, 50257, (BATCH, CONTEXT + 1)).to(device)
        begin = time.perf_counter()
        loss = model(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        optimizer.step()
        loss.item()
        seconds.append(time.perf_counter() - begin)
    tidepool.close(model)
    return seconds[WARM:]


def trainer_steps(folder, device):
    out = os.path.join(folder, "trainer")
    shutil.rmtree(out, ignore_errors=True)
    command = [os.path.join(BIN, "trainer"), "run", "--standalone", "--preset", "gpt2-124m", "--context", str(CONTEXT), "--batch", str(BATCH), "--device", device]
    command += ["--steps", str(STEPS), "--rcache", "50%", "--eval-every", "0", "--quiet", "--out", out]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    with open(os.path.join(out, "metrics.jsonl"), encoding="utf-8") as file:
        steps = [row for row in map(json.loads, file) if row.get("step", 0) > WARM]
    return [row["seconds"] for row in steps]


def print_row(row, value, unit, against, ratio, target, spread=None, bench="python"):
    print(json.dumps({"bench": bench, "row": row, "value": value, "unit": unit, "against": against, "ratio": ratio, "target": target,
                      "holds": None if target is None else ratio >= target}), flush=True)
    if spread:
        low, _, high = statistics.quantiles(spread, n=4) if len(spread) > 1 else (spread[0],) * 3
        print(json.dumps({"bench": bench, "row": row, "spread": [low, high], "samples": len(spread)}), flush=True)
    return target is None or ratio >= target


def step_row(folder, rounds, device):
    ours, ratios = [], []
    for _ in range(rounds):
        theirs = statistics.median(trainer_steps(folder, device))
        own = statistics.median(python_steps(device))
        ours.append(own)
        ratios.append(theirs / own)
    return print_row("a step of GPT-2 124M" + ("" if device == "cpu" else ", on a GPU"), statistics.median(ours), "s", "trainer run, C++", statistics.median(ratios), 0.97, ratios)


def forget(path):
    """Removes a file from the page cache."""
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


# Loads in a separate process, to measure its own peak; prints seconds and bytes.
LOADER = """
import json, logging, os, sys, time
import torch, transformers, tidepool
from transformers import AutoModelForCausalLM
def status(key):
    for line in open("/proc/self/status"):
        if line.startswith(key): return int(line.split()[1]) * 1024
way, folder, server = sys.argv[1:4]
if way == "peer":
    from safetensors.torch import load_file
    import ctypes
    total = os.path.getsize(folder + "/model.safetensors")
    touched = torch.zeros(total, dtype=torch.uint8); touched.fill_(1)
    begin = time.perf_counter()
    at = 0
    for tensor in load_file(folder + "/model.safetensors").values():
        flat = tensor.reshape(-1).view(torch.uint8)
        touched[at:at + flat.numel()].copy_(flat); at += flat.numel()
    print(json.dumps({"seconds": time.perf_counter() - begin}))
else:
    AutoModelForCausalLM._model_mapping  # what imports on first use is no part of loading
    transformers.GPT2LMHeadModel
    open("/proc/self/clear_refs", "w").write("5")
    before, begin = status("VmRSS:"), time.perf_counter()
    model = tidepool.from_pretrained(AutoModelForCausalLM, folder, server=server, rcache="10%", job="load")
    optimizer = tidepool.optim.AdamW(model.parameters(), lr=1e-4)
    seconds = time.perf_counter() - begin
    memory = tidepool.memory(model)
    print(json.dumps({"seconds": seconds, "peak": status("VmHWM:") - before, "rcache": memory.rcache_bytes, "chunk": memory.chunk_bytes}))
    tidepool.close(model)
"""


def load(way, folder, server):
    forget(os.path.join(folder, "model.safetensors"))
    run = subprocess.run([sys.executable, "-c", LOADER, way, folder, server], check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(run.stdout.splitlines()[-1])


def load_rows(folder, rounds, layers):
    from transformers import GPT2Config, GPT2LMHeadModel

    model = os.path.join(folder, "model")
    # 500M parameters with 24 layers of 1280.
    GPT2LMHeadModel(GPT2Config(n_layer=layers, n_embd=1280, n_head=20)).save_pretrained(model)
    sockets = tempfile.mkdtemp(prefix="tp")
    size = os.path.getsize(os.path.join(model, "model.safetensors"))
    command = [os.path.join(BIN, "memserver"), "run", "--pool", str(5 * size + (512 << 20)), "--socket-dir", sockets]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        subprocess.run([os.path.join(BIN, "memctl"), "--socket-dir", sockets, "wait-ready", "--timeout", "120s"], check=True, stdout=subprocess.DEVNULL)
        ratios, loads = [], []
        for _ in range(rounds):
            peer = load("peer", model, sockets)
            loads.append(load("ours", model, sockets))
            ratios.append(peer["seconds"] / loads[-1]["seconds"])
    finally:
        server.terminate()
        server.wait()
        shutil.rmtree(sockets, ignore_errors=True)

    seconds = statistics.median(one["seconds"] for one in loads)
    holds = print_row("from_pretrained, 500M parameters, cold", size / seconds / (1 << 30), "GiB/s", "load_file and one copy",
                      statistics.median(ratios), 0.8, ratios)
    worst = max(loads, key=lambda one: one["peak"])
    allowed = worst["rcache"] + 2 * worst["chunk"] + 64 * MIB
    return print_row("from_pretrained, growth of the process", worst["peak"] / MIB, "MiB", "rCache, two chunks and 64 MiB",
                     allowed / worst["peak"], 1.0) and holds


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--layers", type=int, default=24, help="of the model that is loaded")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    arguments = parser.parse_args()
    folder = tempfile.mkdtemp(prefix="tidepool-bench-", dir=os.environ.get("TMPDIR", "/var/tmp"))
    try:
        results = [step_row(folder, arguments.rounds, arguments.device)]
        if arguments.device == "cpu":
            results.append(load_rows(folder, arguments.rounds, arguments.layers))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0 if all(results) else 3


if __name__ == "__main__":
    sys.exit(main())
