"""Rows of `scripts/bench checkpoint`: what a checkpoint of all states costs the steps beside it, and when it is on the drive.

Run by build/tests/venv_python; prints rows in the form of bench/harness/row.h. The peer is torch.distributed.checkpoint (DCP) of plain torch
with the same model, optimizer and threads, in turns with ours, onto the same drive: save, and async_save, which first copies all states.

  stall       the time that some steps take longer because a checkpoint is begun before the first of them
  step        the median step while it is written, beside the median step without one; memserver updates and copies on the same CPUs
  durable     from the call until the checkpoint is whole and synced, while nothing else happens
"""

import argparse
import os
import shutil
import statistics
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


def row(name, value, unit, against, ratios, target=None):
    return print_row(name, value, unit, against, statistics.median(ratios), target, ratios, bench="checkpoint")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--layers", type=int, default=12, help="of the model, GPT-2's of 768: 12 are 124M parameters")
    parser.add_argument("--steps", type=int, default=6, help="beside a checkpoint")
    arguments = parser.parse_args()
    folder = tempfile.mkdtemp(prefix="tidepool-bench-", dir=os.environ.get("TMPDIR", "/var/tmp"))
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        words = (arguments.layers, arguments.steps, 1)
        own, peers = [], []
        for _ in range(arguments.rounds):
            peers += theirs(os.path.join(folder, "torch"), *words)
            own += ours(os.path.join(folder, "ours"), *words)
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
    ]  # fmt: skip
    return 0 if all(results) else 3


if __name__ == "__main__":
    sys.exit(main())
