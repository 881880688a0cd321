"""Rows of `scripts/bench scale`: the largest GPT that trains in so much host memory, proved by two steps of it.

Run by build/tests/venv_python; prints rows in the form of bench/harness/row.h. --memory SIZE counts everything that a job adds: memserver's
pool, the rCache, activations; interpreter and LibTorch come beside it. The default is 2 GiB, so that the benchmark fits beside other work:
what a parameter costs hardly depends on it. --nvme DIR adds a job with states on a drive there.

A row says how many parameters, beside what ZeRO-3 with offload to the host would train in the same memory (22 bytes a parameter: fp32 master,
two moments and gradient, 16-bit weights and gradient, and a buffer of 2), and in a second row beside plain torch (16). The number of layers is
searched with tidepool.estimate; then the model is made without memory, its weights go to the server, two steps run on a few tokens, and the
memory of all processes is sampled meanwhile.
"""

import argparse
import glob
import os
import subprocess
import sys
import tempfile
import threading
import time

os.environ["OMP_NUM_THREADS"] = str(os.cpu_count() or 1)

import torch
from bench_python import Gpt, print_row

import tidepool

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
ZERO_OFFLOAD, PLAIN_TORCH = 22, 16
VOCAB, CONTEXT, TOKENS = 8192, 64, 16
OVER = 1.05  # of --memory: what a server has beside its pool, and tables
DRIVE_BUFFERS = 256 * MIB  # of a server with a drive, in addition
TARGETS_FROM = 16 * GIB  # with less, a layer and a chunk more or less count too much
# Form of states, and how many times ZeRO's parameters at least.
FORMS = (("fp32", None), ("split", 1.5), ("split-bf16", None), ("split-8bit", 2.4))
NVME_TIMES = 4


def batch_of():
    tokens = torch.randint(0, VOCAB, (1, TOKENS + 1))
    return {"tokens": tokens[:, :-1], "targets": tokens[:, 1:]}


class Shape:
    """A GPT without its number of layers: layers small enough that their number fits the memory closely."""

    def __init__(self, memory):
        self.hidden = 1024 if memory >= 4 * GIB else 512

    def model(self, layers):
        with tidepool.init():
            return Gpt(vocab=VOCAB, context=CONTEXT, layers=layers, heads=self.hidden // 64, hidden=self.hidden)

    def options(self):
        chunk = 8 * self.hidden**2 + 64 * KIB  # the largest matrix and the vectors of a block: little is left over
        return {"dtype": "bf16", "plan": "zero3", "chunk_size": chunk, "example": batch_of(), "multi_use": ["wte.weight"]}


class Need:
    """What a job of a model of so many layers takes, by the estimate. `spilled`: states are on a drive."""

    def __init__(self, shape, layers, states, spilled=False):
        found = tidepool.estimate(shape.model(layers), states=states, **shape.options())
        self.shape = shape
        self.layers, self.parameters, self.rcache = layers, found.parameters, found.rcache_bytes
        self.server = found.host_bytes + found.frozen_bytes
        if spilled:  # 16-bit weights and gradients stay; a chunk's states pass through buffers
            self.server = 4 * found.parameters + found.padding_bytes + 16 * found.chunk_bytes
        self.beside = found.rcache_bytes + found.activation_bytes * 5 // 4 + found.input_bytes

    @property
    def bytes(self):
        return self.server + self.beside


def largest(memory, states, spilled=False):
    shape = Shape(memory)
    best = Need(shape, 1, states, spilled)
    if best.bytes > memory:
        sys.exit(f"--memory {memory}: one layer needs {best.bytes} bytes")
    # What one layer adds says about how many there are; then one by one.
    layer = Need(shape, 2, states, spilled).bytes - best.bytes
    low = max(1, int((memory - best.bytes) / layer))
    while low > 1 and Need(shape, low, states, spilled).bytes > memory:
        low -= 1
    high = low + 1
    while Need(shape, high, states, spilled).bytes <= memory:
        high += 1
    return Need(shape, high - 1, states, spilled)


def proportional_bytes(pid):
    try:
        with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
            return sum(int(line.split()[1]) * KIB for line in file if line.startswith("Pss:"))
    except OSError:
        return 0


def servers_of(directory):
    """The processes whose command line names the directory, and those that they started."""
    found = []
    for place in glob.glob("/proc/[0-9]*/cmdline"):
        try:
            with open(place, "rb") as file:
                if directory.encode() in file.read():
                    found.append(int(place.split("/")[2]))
        except OSError:
            pass
    return found


class Watched:
    """Samples the memory of this process and of memserver's, in a `with`; shared pages count once."""

    def __init__(self, directory):
        self.directory, self.peak = directory, 0
        self.before = proportional_bytes(os.getpid())

    def __enter__(self):
        self.going = True
        self.thread = threading.Thread(target=self.sample)
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.going = False
        self.thread.join()

    def sample(self):
        while self.going:
            self.peak = max(self.peak, sum(proportional_bytes(pid) for pid in {os.getpid(), *servers_of(self.directory)}))
            time.sleep(0.05)

    @property
    def added(self):
        return self.peak - self.before


class Server:
    """A memserver of our own, in a `with`."""

    def __init__(self, need, drive):
        self.sockets = tempfile.mkdtemp(prefix="tidepool-scale-")
        words = [os.path.join(os.environ["TIDEPOOL_BIN"], "memserver"), "run", "--socket-dir", self.sockets, "--pool", str(need.server + 8 * MIB)]
        words += ["--rcache-limit", str(need.rcache + MIB), "--measure-rates", "off", "--keeper", "none", "--huge", "off"]
        words += ["--nvme", drive] if drive else []
        self.words = words

    def __enter__(self):
        self.process = subprocess.Popen(self.words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        limit = time.monotonic() + 60
        while not glob.glob(os.path.join(self.sockets, "*.sock")) and time.monotonic() < limit and self.process.poll() is None:
            time.sleep(0.05)
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(60)


def train(need, states, drive):
    """Two steps of the model; returns the most memory that was added."""
    torch.manual_seed(1)
    model = need.shape.model(need.layers)
    with Server(need, drive) as server, Watched(server.sockets) as watched:
        weights = lambda name: torch.randn(model.get_parameter(name).shape, dtype=torch.bfloat16) * 0.02  # noqa: E731
        tidepool.wrap(model, job="scale", server=server.sockets, weights=weights, **need.shape.options())
        optimizer = tidepool.optim.AdamW(model.parameters(), lr=1e-3, states=states, max_grad_norm=1.0)
        losses = []
        for _ in range(2):
            loss = model(**batch_of())
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        sealed = optimizer.sealed_steps
        tidepool.close(model)
    if sealed != 2 or not all(map(torch.isfinite, map(torch.tensor, losses))):
        sys.exit(f"two steps of {need.layers} layers ended at step {sealed} with losses {losses}")
    return watched.added


def rows_of(name, memory, states, drive, times):
    times = times if memory >= TARGETS_FROM else None
    need = largest(memory, states, drive is not None)
    added = train(need, states, drive)
    where = f", {memory / GIB:.1f} GiB"
    billions = need.parameters / 1e9
    beside = need.parameters / (memory / ZERO_OFFLOAD)
    held = print_row(f"parameters, {name}{where}", billions, "10^9", "ZeRO-3 offload, 22 bytes each", beside, times, bench="scale")
    print_row(f"parameters beside plain torch, {name}{where}", billions, "10^9", "16 bytes each", need.parameters / (memory / PLAIN_TORCH), None, bench="scale")
    most = OVER * memory + (DRIVE_BUFFERS if drive else 0)
    held &= print_row(f"memory of two steps, {name}{where}", added / GIB, "GiB", f"at most {most / GIB:.2f} GiB", most / added, 1, bench="scale")
    if drive:
        kept = sum(os.stat(file).st_blocks * 512 for file in glob.glob(os.path.join(drive.rpartition(":")[0], "**"), recursive=True) if os.path.isfile(file))
        print_row(f"room that memserver keeps on the drive, {name}{where}", kept / GIB, "GiB", "", None, None, bench="scale")
    return held


def size_of(text):
    for unit, factor in (("GiB", GIB), ("MiB", MIB)):
        if text.endswith(unit):
            return int(float(text[: -len(unit)]) * factor)
    return int(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--memory", type=size_of, default=2 * GIB, metavar="SIZE", help="such as 20GiB")
    parser.add_argument("--nvme", metavar="DIR", help="a folder on a drive for states")
    parser.add_argument("--states", metavar="NAME", help="this form alone")
    options_given = parser.parse_args()
    held = True
    for states, times in FORMS:
        if options_given.states in (None, states):
            held &= rows_of(f"states {states}", options_given.memory, states, None, times)
    if options_given.nvme:
        with tempfile.TemporaryDirectory(dir=options_given.nvme) as folder:
            drive = f"{folder}:{options_given.memory * 8}"
            held &= rows_of("states fp32 on NVMe", options_given.memory, "fp32", drive, NVME_TIMES)
    return 0 if held else 3


if __name__ == "__main__":
    sys.exit(main())
