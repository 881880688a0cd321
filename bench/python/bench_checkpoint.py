"""Rows of `scripts/bench checkpoint`: what a checkpoint of all states costs the steps beside it, and when it is on the drive.

Run by build/tests/venv_python; prints rows in the form of bench/harness/row.h. The peer is torch.distributed.checkpoint (DCP) of plain torch
with the same model, optimizer and threads, in turns with ours, onto the same drive: save, and async_save, which first copies all states.

  stall       the time that some steps take longer because a checkpoint is begun before the first of them
  step        the median step while it is written, beside the median step without one; memserver updates and copies on the same CPUs
  durable     from the call until the checkpoint is whole and synced, while nothing else happens
  log         of `trainer run --durable-steps`, without a peer: a step beside one of the same run without a log, in turns; the bytes that a step
              adds to the log beside those of its gradients; and how long a logged step takes to be made again, beside a step of training
"""

import argparse
import glob
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

os.environ["OMP_NUM_THREADS"] = str(os.cpu_count() or 1)

import torch
from bench_python import BATCH, CONTEXT, Gpt, print_row
from torch import distributed
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict

import tidepool

WARM = 2


class Steps:
    """Trains a model and measures the seconds of its steps."""

    def __init__(self, model, optimizer, clip):
        self.model, self.optimizer, self.clip = model, optimizer, clip

    def run(self, count):
        seconds = []
        for _ in range(count):
            tokens = torch.randint(0, 50257, (BATCH, CONTEXT + 1))
            begin = time.perf_counter()
            loss = self.model(tokens[:, :-1], tokens[:, 1:])
            loss.backward()
            if self.clip:
                torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.optimizer.zero_grad()
            loss.item()
            seconds.append(time.perf_counter() - begin)
        return seconds


def stall(steps, count, begin, end):
    """Additional seconds of `count` steps that follow `begin`, compared with as many steps alone, and the median step of both runs."""
    alone = steps.run(count)
    start = time.perf_counter()
    begin()
    with_one = steps.run(count)
    took = time.perf_counter() - start
    end()
    return max(took - sum(alone), 0.0), statistics.median(alone), statistics.median(with_one)


def timed(call):
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def ours(folder, layers, count, rounds):
    torch.manual_seed(1)
    model = tidepool.wrap(Gpt(layers=layers), standalone=True, rcache="50%", multi_use=["wte.weight"])
    optimizer = tidepool.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1, max_grad_norm=1.0)
    steps = Steps(model, optimizer, clip=False)
    steps.run(WARM)
    found = []
    for _ in range(rounds):
        one = stall(steps, count, lambda: tidepool.save(model, folder, keep=1, wait=False), lambda: tidepool.saved(model))
        steps.run(1)
        found.append((*one, timed(lambda: tidepool.save(model, folder, keep=1))))
    tidepool.close(model)
    return found


def theirs(folder, layers, count, rounds):
    torch.manual_seed(1)
    model = Gpt(layers=layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1)
    steps = Steps(model, optimizer, clip=True)
    steps.run(WARM)
    under_way = []

    def state():
        weights, states = get_state_dict(model, optimizer)
        return {"model": weights, "optim": states}

    def place():
        shutil.rmtree(folder, ignore_errors=True)
        return dcp.FileSystemWriter(folder)

    def save():
        dcp.save(state(), storage_writer=place())

    def begin():
        under_way.append(dcp.async_save(state(), storage_writer=place()))

    found = []
    for _ in range(rounds):
        blocked = stall(steps, count, save, lambda: None)
        beside = stall(steps, count, begin, lambda: under_way.pop().result())
        found.append((blocked, beside, timed(save)))
    return found


def run(folder, name, preset, steps, *more):
    """Trains by the program, and returns what it says and the seconds of its steps but the first ones."""
    trainer = os.path.join(os.path.dirname(__file__), "../../build/bin/trainer")
    out = os.path.join(folder, name)
    words = [trainer, "run", "--standalone", "--preset", preset, "--dtype", "bf16", "--context", str(CONTEXT), "--batch", str(BATCH)]
    words += ["--rcache", "50%", "--eval-every", "0", "--steps", str(steps), "--out", out, *more]
    said = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    with open(os.path.join(out, "metrics.jsonl"), encoding="utf-8") as lines:
        reports = [json.loads(line) for line in lines]
    return said, [report["seconds"] for report in reports if report["step"] > WARM and "seconds" in report]


def logged(folder, preset, count):
    """Median seconds of a step without and with a log, bytes of a logged step beside its gradients', and seconds of a step made again."""
    checkpoints, log = os.path.join(folder, "checkpoints"), os.path.join(folder, "steps")
    flags = ("--checkpoint-every", "1000000", "--checkpoint-dir", checkpoints, "--durable-steps", log)
    steps = WARM + count
    _, alone = run(folder, "alone", preset, steps)
    _, beside = run(folder, "beside", preset, steps, *flags)
    written = sum(os.path.getsize(path) for path in glob.glob(os.path.join(log, "*.log")))
    with open(os.path.join(checkpoints, "step-00000001", "MANIFEST"), encoding="utf-8") as manifest:
        master = next(int(line.split()[1]) for line in manifest if line.startswith("file") and line.rstrip().endswith("model.safetensors"))
    said, _ = run(folder, "again", preset, steps, *flags, "--resume", "latest")
    again = re.search(r"(\d+) logged steps made again, to step \d+, in ([0-9.]+) ?(ms|us|s)", said)
    seconds = float(again[2]) * {"us": 1e-6, "ms": 1e-3, "s": 1}[again[3]] / int(again[1])
    # Gradients are bf16, weights of the checkpoint fp32.
    return statistics.median(alone), statistics.median(beside), written / (steps - 1) / (master / 2), seconds


def row(name, value, unit, against, ratios, target=None):
    return print_row(name, value, unit, against, statistics.median(ratios), target, ratios, bench="checkpoint")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--layers", type=int, default=12, help="of the model, GPT-2's of 768: 12 are 124M parameters")
    parser.add_argument("--preset", default="gpt2-124m", help="of the runs with a log of steps")
    parser.add_argument("--steps", type=int, default=6, help="beside a checkpoint")
    arguments = parser.parse_args()
    folder = tempfile.mkdtemp(prefix="tidepool-bench-", dir=os.environ.get("TMPDIR", "/var/tmp"))
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        words = (arguments.layers, arguments.steps, 1)
        own, peers, logs = [], [], []
        for _ in range(arguments.rounds):
            peers += theirs(os.path.join(folder, "torch"), *words)
            own += ours(os.path.join(folder, "ours"), *words)
            logs.append(logged(os.path.join(folder, "log"), arguments.preset, arguments.steps))
            shutil.rmtree(os.path.join(folder, "log"))
    finally:
        distributed.destroy_process_group()
        shutil.rmtree(folder, ignore_errors=True)

    least = 1e-3  # seconds of a stall; shorter stalls are below the noise of a step
    size = "" if arguments.layers == 12 else f", {arguments.layers} layers"
    stalled = statistics.median(one[0] for one in own)
    results = [
        row(f"stall of a checkpoint of GPT-2 124M{size}", stalled, "s", "DCP, save", [peer[0][0] / max(one[0], least) for one, peer in zip(own, peers)]),
        row(f"stall of a checkpoint of GPT-2 124M{size}, async", stalled, "s", "DCP, async_save",
            [peer[1][0] / max(one[0], least) for one, peer in zip(own, peers)]),
        row("a step while it is written", statistics.median(one[2] for one in own), "s", "a step without one", [one[1] / one[2] for one in own]),
        row("a step of plain torch while DCP writes", statistics.median(peer[1][2] for peer in peers), "s", "a step without one",
            [peer[1][1] / peer[1][2] for peer in peers]),
        row("a checkpoint until it is on the drive", statistics.median(one[3] for one in own), "s", "DCP, save",
            [peer[2] / one[3] for one, peer in zip(own, peers)]),
        row(f"a step that is logged, {arguments.preset}", statistics.median(one[1] for one in logs), "s", "a step without a log",
            [one[0] / one[1] for one in logs], target=1 / 1.05),
        row("bytes of a logged step", statistics.median(one[2] for one in logs), "of its gradients", "1.025 of them", [1.025 / one[2] for one in logs], target=1),
        row("a logged step made again", statistics.median(one[3] for one in logs), "s", "a step of training", [one[0] / one[3] for one in logs]),
    ]  # fmt: skip
    return 0 if all(results) else 3


if __name__ == "__main__":
    sys.exit(main())
