"""Runs tests with one planted bug awake, or none. Ends all processes left behind by a stopped test."""

import concurrent.futures
import ctypes
import dataclasses
import os
import resource
import signal
import subprocess
import time

LIMIT_SECONDS = 600
PATIENCE_SECONDS = 10
PATIENCE_FACTOR = 5  # a test that takes this multiple of its time without a bug hangs
PR_SET_CHILD_SUBREAPER = 36

# All tests of rooms with planted bugs; first those that are quick or find many.
SEARCH = [
    "request_log_test", "shm_control_test", "shm_port_test", "rank_watch_test", "socket_directory_test", "handshake_test", "traffic_test",
    "dispatcher_test", "update_test", "training_test", "job_desk_test", "kept_jobs_test", "recovery_test", "residency_test", "serve_loop_test", "keeper_test",
    "keeper_link_test", "fd_store_test", "control_server_test", "mem_client_test", "come_back_test", "optim_test", "optim_step_test",
    "process_in_process_test", "kill_campaign --kills 120", "process_durability_test", "sim_main --seeds 1..60", "process_kill_test",
    "process_lying_handshake_test", "process_lying_ring_test", "process_bad_use_test", "process_long_running_test",
    "kill_campaign --each 2",
]


@dataclasses.dataclass(frozen=True)
class Catch:
    bug: str
    by: str  # the check that failed; empty: none
    seconds: float


def target_of(line: str) -> str:
    return line.split()[0]


def program_of(folder: str, line: str) -> str:
    """The path of the check's program in a build folder; empty: it is not there."""
    places = [os.path.join(folder, where, target_of(line)) for where in ("tests", "bin")]
    return next(filter(os.path.exists, places), "")


def children() -> list[int]:
    """Our child processes, including inherited ones."""
    own = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as stat:
                parent = int(stat.read().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if parent == os.getpid():
            own.append(int(name))
    return own


def end_children() -> None:
    """Ends all children, also those that appear meanwhile: a stopped test's keeper or trainer becomes our child when its parent ends."""
    while own := children():
        for pid in own:
            try:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            except (ProcessLookupError, ChildProcessError):
                pass


def begin_worker() -> None:
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def passes(folder: str, line: str, bug: str, limit_seconds: float) -> bool:
    """True if the command exits with 0 within the limit."""
    path = program_of(folder, line)
    if not path:
        return False
    environment = {name: value for name, value in os.environ.items() if name != "TIDEPOOL_PLANT"}
    if bug:
        environment["TIDEPOOL_PLANT"] = bug
    try:
        done = subprocess.run([path, *line.split()[1:]], env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                              timeout=limit_seconds, start_new_session=True, check=False)
        return done.returncode == 0
    except subprocess.TimeoutExpired:
        return False
    finally:
        end_children()


def seconds_without_bug(folder: str, line: str) -> float | None:
    """None if it fails."""
    begin = time.monotonic()
    return time.monotonic() - begin if passes(folder, line, "", LIMIT_SECONDS) else None


def wake(folder: str, bug: str, limits: dict[str, float]) -> Catch:
    begin = time.monotonic()
    by = next((line for line, limit in limits.items() if not passes(folder, line, bug, limit)), "")
    return Catch(bug, by, time.monotonic() - begin)


class Runner:
    """A pool of processes, each of which runs one test at a time and inherits the processes that it leaves behind."""

    def __init__(self, folder: str, jobs: int) -> None:
        self._folder = folder
        self._limits: dict[str, float] = {}
        self._pool = concurrent.futures.ProcessPoolExecutor(jobs, initializer=begin_worker)

    def __enter__(self) -> "Runner":
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()

    def failing_without_bug(self, lines: list[str]) -> list[str]:
        """Call it before wake_all: it also measures how long each may take."""
        times = dict(zip(lines, self._pool.map(seconds_without_bug, [self._folder] * len(lines), lines)))
        self._limits = {line: PATIENCE_SECONDS + PATIENCE_FACTOR * (seconds or 0) for line, seconds in times.items()}
        return [line for line, seconds in times.items() if seconds is None]

    def wake_all(self, lines: dict[str, list[str]]) -> list[Catch]:
        """Prints each result as soon as it is known."""
        pending = [self._pool.submit(wake, self._folder, bug, {line: self._limits[line] for line in checks}) for bug, checks in lines.items()]
        results = []
        for future in concurrent.futures.as_completed(pending):
            results.append(future.result())
            print(f"  {results[-1].bug}: {results[-1].by or 'NOT CAUGHT'} ({results[-1].seconds:.1f} s)", flush=True)
        return sorted(results, key=lambda result: result.bug)
