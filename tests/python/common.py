"""What the tests of the package share: small models, training with plain torch and with the package, a memserver of their own."""

import copy
import dataclasses
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from typing import Any, Callable, Dict, List, Optional

ROOT = pathlib.Path(__file__).resolve().parents[2]
if str(ROOT / "python") not in sys.path:
    sys.path.insert(0, str(ROOT / "python"))

import torch
from torch import nn

import tidepool
from tidepool import _library

torch.set_num_threads(1)

Batch = Dict[str, Any]
RCACHE = "60%"  # the largest chunks of models this small are much of the whole


def mlp(width: int = 24, layers: int = 4) -> nn.Module:
    """A small network that any test can train; the same weights each time."""
    torch.manual_seed(0)
    body = [layer for _ in range(layers) for layer in (nn.Linear(width, width), nn.GELU())]
    return nn.Sequential(nn.Linear(8, width), nn.GELU(), *body, nn.Linear(width, 4))


def mlp_batches(count: int, size: int = 8, seed: int = 1) -> List[Batch]:
    """Inputs (size, 8) and classes (size)."""
    dice = torch.Generator().manual_seed(seed)
    return [{"x": torch.randn(size, 8, generator=dice), "y": torch.randint(0, 4, (size,), generator=dice)} for _ in range(count)]


def mlp_loss(model: nn.Module, batch: Batch) -> torch.Tensor:
    return nn.functional.cross_entropy(model(batch["x"]), batch["y"])


def model_loss(model: nn.Module, batch: Batch) -> torch.Tensor:
    """Of a model of transformers."""
    return model(**batch).loss


@dataclasses.dataclass
class Run:
    """What a training run leaves: a loss for each backward, a norm for each step, the weights at the end."""

    losses: List[float]
    norms: List[float]
    weights: Dict[str, torch.Tensor]


Loss = Callable[[nn.Module, Batch], torch.Tensor]
Schedule = Optional[Callable[[torch.optim.Optimizer], Any]]


def train_plain(model: nn.Module, optimizer: torch.optim.Optimizer, batches: List[Batch], loss_of: Loss, clip: float = 1.0,
                accumulate: int = 1, schedule: Schedule = None) -> Run:  # fmt: skip
    """With torch alone. `clip` 0: none."""
    rates = schedule(optimizer) if schedule else None
    run = Run([], [], {})
    for index, batch in enumerate(batches, 1):
        loss = loss_of(model, batch) / accumulate
        loss.backward()
        run.losses.append(loss.item())
        if index % accumulate == 0:
            run.norms.append(nn.utils.clip_grad_norm_(model.parameters(), clip or float("inf")).item())
            optimizer.step()
            optimizer.zero_grad()
            if rates:
                rates.step()
    run.weights = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    return run


def train(model: nn.Module, optimizer: torch.optim.Optimizer, batches: List[Batch], loss_of: Loss, accumulate: int = 1,
          schedule: Schedule = None) -> Run:  # fmt: skip
    """The same loop with the package; the job is closed at the end."""
    rates = schedule(optimizer) if schedule else None
    run = Run([], [], {})
    for index, batch in enumerate(batches, 1):
        loss = loss_of(model, batch) / accumulate
        loss.backward()
        run.losses.append(loss.item())
        if index % accumulate == 0:
            optimizer.step()
            run.norms.append(optimizer.last_grad_norm)
            optimizer.zero_grad()
            if rates:
                rates.step()
    with tidepool.gathered(model) as values:
        run.weights = dict(values)
    tidepool.close(model)
    return run


def wrap(model: nn.Module, **options: Any) -> nn.Module:
    """With a private server and a small rCache."""
    return tidepool.wrap(model, **{"standalone": True, "rcache": RCACHE, **options})


def twins(model: nn.Module) -> "tuple[nn.Module, nn.Module]":
    return copy.deepcopy(model), model


def farthest(a: Dict[str, torch.Tensor], b: Dict[str, torch.Tensor]) -> float:
    """The largest difference of two elements. Both must have the same names."""
    assert a.keys() == b.keys(), sorted(a.keys() ^ b.keys())
    return max((a[name] - b[name]).abs().max().item() for name in a)


class Checks:
    """Assertions for a unittest.TestCase."""

    def assert_same_run(self, got: Run, want: Run, limit: float = 2e-6) -> None:
        """Losses and weights within `limit`; norms within `limit` of their size, where that is above 1."""
        self.assertEqual(len(got.losses), len(want.losses))
        for index, (a, b) in enumerate(zip(got.losses, want.losses)):
            self.assertLessEqual(abs(a - b), limit * max(1.0, abs(b)), f"loss {index}: {a} and {b}")
        self.assertEqual(len(got.norms), len(want.norms))
        for index, (a, b) in enumerate(zip(got.norms, want.norms)):
            self.assertLessEqual(abs(a - b), limit * max(1.0, b), f"norm {index}: {a} and {b}")
        self.assertLessEqual(farthest(got.weights, want.weights), limit)

    def assert_equal_bits(self, got: Run, want: Run) -> None:
        self.assertEqual(got.losses, want.losses)
        self.assertEqual(got.norms, want.norms)
        self.assertEqual(farthest(got.weights, want.weights), 0)

    def assert_learned(self, run: Run) -> None:
        """The weights have moved: a run that does nothing equals another one."""
        self.assertGreater(max(run.norms), 0)


def pids_of(name: str, directory: str) -> List[int]:
    """Processes of the server with this socket directory, by the name that ps shows."""
    found = []
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
            if (folder / "comm").read_text().strip() == name and directory.encode() in words:
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def wait_until(true: Callable[[], bool], seconds: float = 20) -> bool:
    limit = time.monotonic() + seconds
    while not true() and time.monotonic() < limit:
        time.sleep(0.05)
    return true()


class Server:
    """A memserver with its keeper, for the time of a `with`."""

    def __init__(self, pool: str = "64MiB", kill_at: str = "") -> None:
        """`kill_at`: a named point of the first memserver, at which it is killed; its keeper starts the next one. What a start measures
        passes points too, so nothing is measured then."""
        self.is_to_die = kill_at != ""
        self.sockets = tempfile.mkdtemp(prefix="tidepool-test-")
        self.log = tempfile.TemporaryFile()
        program = _library.program_path("memserver") or "memserver"
        words = [program, "run", "--socket-dir", self.sockets, "--pool", pool, "--rcache-limit", pool]
        words += ["--update-prefetch", "512"] if kill_at else []
        variables = {**os.environ, **({"TIDEPOOL_KILL_AT": kill_at} if kill_at else {})}
        self.process = subprocess.Popen(words, env=variables, stdout=self.log, stderr=self.log, stdin=subprocess.DEVNULL)

    def __enter__(self) -> "Server":
        limit = time.monotonic() + 30
        while not self._answers():
            if time.monotonic() > limit or (self.process.poll() is not None and not self.is_to_die):
                self.log.seek(0)
                raise RuntimeError("memserver does not come: " + self.log.read().decode())
            time.sleep(0.02)
        return self

    def __exit__(self, *_: Any) -> None:
        for pid in self.pids("memserver"):
            os.kill(pid, signal.SIGINT)
        limit = time.monotonic() + 10
        while time.monotonic() < limit and (self.pids("memserver") or self.pids("tp-keeper")):
            self.process.poll()
            time.sleep(0.05)
        for name in ("tp-keeper", "memserver"):
            for pid in self.pids(name):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        self.log.close()
        shutil.rmtree(self.sockets, ignore_errors=True)

    def pids(self, name: str) -> List[int]:
        return pids_of(name, self.sockets)

    def kill(self) -> int:
        """kill -9 of memserver; its keeper starts the next one. Returns how many were killed."""
        pids = self.pids("memserver")
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        return len(pids)

    def _answers(self) -> bool:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as peer:
            try:
                peer.connect(os.path.join(self.sockets, "data.sock"))
            except OSError:
                return False
        return True


def run_script(*words: str, timeout: float = 120, check: bool = True) -> "subprocess.CompletedProcess[str]":
    """Python with these words, where the package is found."""
    paths = [str(ROOT / "python"), os.environ.get("PYTHONPATH", "")]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    done = subprocess.run([sys.executable, *words], env=variables, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=timeout, check=False)
    if check and done.returncode != 0:
        raise AssertionError(f"{' '.join(words)} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
    return done
