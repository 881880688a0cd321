#!/usr/bin/env python3
"""Training steps on a GPU side by side: ours with the states in a memserver, PyTorch's FSDP2 with CPU offload, and plain PyTorch.

usage: gpu_training.py --bin DIR --rows FILE --probe FILE [--python PROGRAM] [--budget SECONDS] [--gpu-gib X --gpu-total-gib X]
                       [--points N] [--libraries PATHS]

Prints rows as the benchmark programs do (bench/harness/row.h). GPT-2 shapes in bf16, sequence 1024, every block checkpointed, on one GPU; what
matters most comes first, and what the budget leaves no time for is named on stderr. Each point is held against the lower bounds of an
offloaded step,

  L1  without waiting for the norm:  max(t_gpu, t_h2d, t_d2h, t_host) + eps
  L2  with the global norm awaited:  t_backward + max(t_forward, t_host, t_h2d) + eps

with the components of the same run: forward and backward of plain PyTorch (t_gpu), the bytes that our ranks copied at the rate of plain
copies of 64 MiB (--rows: what bench_gpu printed), 32 bytes a parameter at the rate at which the host changes memory in place (--probe:
what machine_probe printed). --gpu-gib caps what PyTorch's allocator may take of the GPU, in FSDP2 and in ours alike; our rCache lies
beside it. --points N: the first N points only.

Exit codes: 0, 1 when ours failed, 3 when a target does not hold, 9 when there is no GPU.
"""

import argparse
import dataclasses
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
EXIT_TARGET_MISSED, EXIT_NO_GPU = 3, 9
SEQUENCE = 1024
STEPS, WARM_UP = 6, 3  # for ours: the first step records, the second is the first with a plan
BETA = 32  # host memory traffic of a parameter's update and its two copies
CHUNK = 8 << 20  # parameters of the last chunk, whose gradient and update are not overlapped
PEER_TARGET, BOUND_TARGET = 1.3, 1 / 1.15


@dataclasses.dataclass(frozen=True)
class Shape:
    preset: str
    layers: int
    heads: int
    hidden: int
    parameters: int


SHAPES = {
    "1.3B": Shape("gpt2-1.3b", 24, 16, 2048, 1_313_626_112),
    "4B": Shape("gpt2-4b", 32, 24, 3072, 3_782_697_984),
    "7B": Shape("gpt2-7b", 32, 32, 4096, 6_654_210_048),
}


@dataclasses.dataclass(frozen=True)
class Task:
    """One program run: `way` is plain, fsdp2 or ours."""

    way: str
    shape: str
    batch: int
    clip: float = 1.0
    rcache: str = "25%"

    def name(self) -> str:
        clipping = "clipping" if self.clip > 0 else "no clipping"
        return f"{self.shape}, batch {self.batch}, {clipping}" + (f", rCache {self.rcache}" if self.way == "ours" else "")


def all_tasks() -> list[Task]:
    """The most informative point first: its peers, then variations of it."""
    tasks = []
    for shape in SHAPES:
        tasks += [Task("plain", shape, 8), Task("ours", shape, 8), Task("fsdp2", shape, 8), Task("ours", shape, 8, clip=0.0)]
        for batch in (16, 4):
            tasks += [Task("plain", shape, batch), Task("ours", shape, batch), Task("fsdp2", shape, batch)]
        tasks += [Task("ours", shape, 8, rcache="10%")]
    return tasks


# Host memory per parameter in bytes: 12 of states, 2 of weights and 2 of gradients; the peer needs as many (fp32 parameters, gradients and
# two moments).
HOST_BYTES = {"plain": 0, "fsdp2": 16, "ours": 16}
HOST_BYTES_BESIDE = 4 << 30  # for the programs themselves


def host_bytes(task: Task) -> int:
    """Host memory needed by the run: with less, the run is skipped and does not fail."""
    return HOST_BYTES_BESIDE + HOST_BYTES[task.way] * SHAPES[task.shape].parameters


def available_bytes(meminfo: str = "/proc/meminfo", cgroup: str = "/sys/fs/cgroup") -> int:
    """Memory available to a program: of the machine, and of this process's memory cgroup if it has a limit."""
    with open(meminfo, encoding="utf-8") as file:
        free = next(int(line.split()[1]) << 10 for line in file if line.startswith("MemAvailable:"))
    try:
        with open(os.path.join(cgroup, "memory.max"), encoding="utf-8") as limit, open(os.path.join(cgroup, "memory.current"), encoding="utf-8") as used:
            return min(free, int(limit.read()) - int(used.read()))
    except (OSError, ValueError):  # no cgroup v2 here, or no limit ("max")
        return free


def seconds_expected(task: Task) -> float:
    """Expected seconds of the start and a few steps: a guess that only decides whether to begin."""
    billions = SHAPES[task.shape].parameters / 1e9
    return {"plain": 12 + 2 * billions, "fsdp2": 25 + 20 * billions, "ours": 15 + 8 * billions}[task.way]


@dataclasses.dataclass(frozen=True)
class Host:
    """Measurements of the machine, in bytes per second."""

    to_gpu: float
    from_gpu: float
    in_place: float


@dataclasses.dataclass(frozen=True)
class Parts:
    """The work of a step: GPU seconds, parameters, and bytes copied in each direction."""

    forward: float
    backward: float
    parameters: int
    bytes_h2d: float
    bytes_d2h: float


def bounds(parts: Parts, host: Host) -> dict[str, float]:
    t_gpu = parts.forward + parts.backward
    t_h2d, t_d2h = parts.bytes_h2d / host.to_gpu, parts.bytes_d2h / host.from_gpu
    t_host = parts.parameters * BETA / host.in_place
    eps = CHUNK * (2 / host.from_gpu + 28 / host.in_place + 2 / host.to_gpu)
    return {
        "t_gpu": t_gpu, "t_h2d": t_h2d, "t_d2h": t_d2h, "t_host": t_host,
        "L1": max(t_gpu, t_h2d, t_d2h, t_host) + eps,
        "L2": parts.backward + max(parts.forward, t_host, t_h2d) + eps,
    }


def row(name: str, value: float, unit: str, against: str | None = None, ratio: float | None = None, target: float | None = None) -> dict:
    holds = None if target is None else ratio is not None and ratio >= target
    return {"bench": "gpu_training", "row": name, "value": value, "unit": unit, "against": against, "ratio": ratio, "target": target, "holds": holds}


def tflops(parameters: int, batch: int, seconds: float) -> float:
    return 8 * parameters * batch * SEQUENCE / seconds / 1e12


def host_of(bench_rows: list[dict], probe: dict) -> Host:
    rates = {found["row"]: found["value"] * 1e9 for found in bench_rows if found.get("bench") == "gpu" and "value" in found}
    missing = [name for name in ("copies of 64 MiB to the GPU, plain", "copies of 64 MiB from the GPU, plain") if name not in rates]
    if missing or "modify_in_place_gb_s" not in probe:
        raise ValueError(f"the bounds of a step need {', '.join(missing) or 'modify_in_place_gb_s'}: give --rows and --probe what bench_gpu and machine_probe "
                         "printed to their end")
    return Host(rates["copies of 64 MiB to the GPU, plain"], rates["copies of 64 MiB from the GPU, plain"], probe["modify_in_place_gb_s"] * 1e9)


def point_rows(task: Task, done: dict[Task, dict], host: Host) -> list[dict]:
    """Rows of one run of ours, compared with those of its peers that were run."""
    ours = done[task]
    seconds, parameters = ours["seconds"], SHAPES[task.shape].parameters
    rate = tflops(parameters, task.batch, seconds)
    rows = []
    peer, plain = done.get(Task("fsdp2", task.shape, task.batch)), done.get(Task("plain", task.shape, task.batch))
    if peer is not None and task.clip > 0:
        target = PEER_TARGET if task.batch == 8 and task.rcache == "25%" else None
        rows.append(row(f"{task.name()}: ours", rate, "TFLOP/s", "FSDP2 with CPU offload", peer["seconds"]["step"] / seconds, target))
    if plain is not None:
        parts = Parts(plain["seconds"]["forward"], plain["seconds"]["backward"], parameters, ours["bytes_h2d"], ours["bytes_d2h"])
        bound = bounds(parts, host)
        which = "L2" if task.clip > 0 else "L1"
        rows.append(row(f"{task.name()}: ours", rate, "TFLOP/s", "plain PyTorch, everything on the GPU", plain["seconds"]["step"] / seconds))
        rows.append(row(f"{task.name()}: seconds of a step", seconds, "s", f"the bound {which}", bound[which] / seconds, BOUND_TARGET))
        for part in ("t_gpu", "t_h2d", "t_d2h", "t_host", "L1", "L2"):
            rows.append(row(f"{task.name()}: {part}", bound[part], "s"))
    elif not rows:
        rows.append(row(f"{task.name()}: ours", rate, "TFLOP/s"))
    rows.append(row(f"{task.name()}: waits for chunks and the optimizer", ours["waited"], "s of a step"))
    return rows


def peer_rows(task: Task, found: dict) -> list[dict]:
    label = "FSDP2 with CPU offload" if task.way == "fsdp2" else "plain PyTorch, everything on the GPU"
    rows = [row(f"{task.name()}: {label}", found["tflops"], "TFLOP/s"), row(f"{task.name()}: {label}, peak of the GPU's memory", found["gpu_bytes_peak"] / 2**30, "GiB")]
    if task.way == "plain":
        rows.append(row(f"{task.name()}: forward and backward alone (R)", found["tflops_without_update"], "TFLOP/s"))
    return rows


def median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def read_metrics(path: str) -> dict:
    """From `trainer run --out`: medians over the steps after the warm-up."""
    with open(path, encoding="utf-8") as file:
        steps = [line for line in map(json.loads, file) if line.get("step", 0) > WARM_UP and "seconds" in line]
    if not steps:
        raise ValueError(f"{path} has no step behind the first {WARM_UP}")
    return {"seconds": median([s["seconds"] for s in steps]), "waited": median([s["waited_s"] for s in steps]),
            "bytes_h2d": median([s["bytes_h2d"] for s in steps]), "bytes_d2h": median([s["bytes_d2h"] for s in steps])}


class Runner:
    def __init__(self, arguments, folder: str):
        self.arguments, self.folder = arguments, folder
        self.end = time.monotonic() + arguments.budget
        self.failed = False
        self.text = os.path.join(folder, "text")
        with open(self.text, "wb") as file:  # the content does not affect a step's time
            file.write(bytes(97 + (i * i + i // 7) % 26 for i in range(1 << 16)) * 32)

    def left(self) -> float:
        return self.end - time.monotonic()

    def command(self, task: Task) -> tuple[list[str], dict[str, str]]:
        shape, environment = SHAPES[task.shape], dict(os.environ)
        cap = self.arguments.gpu_gib
        if task.way == "ours":
            if self.arguments.libraries:
                environment["LD_LIBRARY_PATH"] = self.arguments.libraries
            if cap > 0 and self.arguments.gpu_total_gib > 0:
                environment["PYTORCH_ALLOC_CONF"] = f"per_process_memory_fraction:{min(1.0, cap / self.arguments.gpu_total_gib):.6f}"
            return [os.path.join(self.arguments.bin, "trainer"), "run", "--standalone", "--device", "cuda", "--preset", shape.preset, "--dtype", "bf16",
                    "--batch", str(task.batch), "--context", str(SEQUENCE), "--checkpoint-activations", "--rcache", task.rcache, "--clip", str(task.clip),
                    "--steps", str(STEPS + WARM_UP), "--warmup", "1", "--eval-every", "0", "--data", self.text, "--quiet",
                    "--out", os.path.join(self.folder, "out")], environment
        words = [self.arguments.python, os.path.join(ROOT, "bench/peers/fsdp2.py"), "--way", task.way, "--layers", str(shape.layers), "--hidden",
                 str(shape.hidden), "--heads", str(shape.heads), "--batch", str(task.batch), "--clip", str(task.clip), "--steps", str(STEPS)]
        return words + (["--gpu-gib", str(cap)] if task.way == "fsdp2" and cap > 0 else []), environment

    def run(self, task: Task) -> dict | None:
        """Returns its results; None, with a message, if it could not be run."""
        words, environment = self.command(task)
        shutil.rmtree(os.path.join(self.folder, "out"), ignore_errors=True)
        begin = time.monotonic()
        try:
            ended = subprocess.run(words, env=environment, capture_output=True, text=True, check=False, timeout=max(1.0, self.left()))
        except subprocess.TimeoutExpired:
            print(f"gpu_training: {task.way}: {task.name()}: not done within the budget", file=sys.stderr)
            return None
        print(f"gpu_training: {task.way}: {task.name()}: {time.monotonic() - begin:.0f} s, exit code {ended.returncode}", file=sys.stderr)
        if ended.returncode != 0:
            print(ended.stderr[-2000:], file=sys.stderr)
            self.failed |= task.way == "ours"
            return None
        return read_metrics(os.path.join(self.folder, "out", "metrics.jsonl")) if task.way == "ours" else json.loads(ended.stdout.splitlines()[-1])


def read_json_lines(path: str) -> list[dict]:
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file if line.startswith("{")]


def parse(words: list[str]):
    parser = argparse.ArgumentParser(prog="gpu_training.py", description=__doc__.partition("\n")[0])
    parser.add_argument("--bin", required=True, help="folder of trainer and memserver")
    parser.add_argument("--rows", required=True)
    parser.add_argument("--probe", required=True)
    parser.add_argument("--python", default=sys.executable, help="that has PyTorch")
    parser.add_argument("--budget", type=float, default=300)
    parser.add_argument("--gpu-gib", type=float, default=0)
    parser.add_argument("--gpu-total-gib", type=float, default=0)
    parser.add_argument("--points", type=int, default=0)
    parser.add_argument("--libraries", default="", help="LD_LIBRARY_PATH of our programs, not of Python")
    return parser.parse_args(words)


def main() -> int:
    arguments = parse(sys.argv[1:])
    try:
        with open(arguments.probe, encoding="utf-8") as file:
            host = host_of(read_json_lines(arguments.rows), json.load(file))
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    tasks = all_tasks()[: arguments.points or None]
    done: dict[Task, dict] = {}
    left_out = []
    with tempfile.TemporaryDirectory(prefix="gpu-training-") as folder:
        runner = Runner(arguments, folder)
        for task in tasks:
            if runner.left() < seconds_expected(task):
                left_out.append(f"{task.way} {task.name()}: no time")
                continue
            if (free := available_bytes()) < host_bytes(task):
                left_out.append(f"{task.way} {task.name()}: {host_bytes(task) / 2**30:.0f} GiB of host memory, {free / 2**30:.0f} GiB are available")
                continue
            found = runner.run(task)
            if found is not None:
                done[task] = found
    rows = []
    for task in tasks:
        if task in done:
            rows += point_rows(task, done, host) if task.way == "ours" else peer_rows(task, done[task])
    for found in rows:
        print(json.dumps(found))
    if left_out:
        print(f"gpu_training: left out {len(left_out)} of {len(tasks)} points: {'; '.join(left_out)}", file=sys.stderr)
    if runner.failed or not rows:
        return 1
    return EXIT_TARGET_MISSED if any(found["holds"] is False for found in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
