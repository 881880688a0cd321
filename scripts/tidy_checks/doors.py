"""Third-party packages and dangerous calls: each has a door, and only the door's files may use it."""

import dataclasses
import re

from .tree import Finding, Tree

PAGE = "docs/architecture.md"


@dataclasses.dataclass(frozen=True)
class Door:
    """One package: the include prefixes that identify it, and the files (patterns) that may include it."""

    package: str
    prefixes: tuple[str, ...]
    files: tuple[str, ...]


def parse_doors(lines: list[tuple[int, str]]) -> list[Door]:
    doors = []
    for number, line in lines:
        parts = [part.strip() for part in line.split("|")]
        if len(parts) != 3:
            raise ValueError(f"{PAGE}:{number}: expected `package | include prefixes | files`, found `{line}`")
        doors.append(Door(parts[0], tuple(parts[1].split()), tuple(parts[2].split())))
    return doors


def matches_any(path: str, patterns) -> bool:
    """Shell patterns, but * crosses no folder and ** crosses any number."""
    for pattern in patterns:
        expression = re.escape(pattern).replace(r"\*\*", ".*").replace(r"\*", "[^/]*")
        if re.fullmatch(expression, path):
            return True
    return False


def check_doors(tree: Tree) -> list[Finding]:
    lines = tree.fenced_block(PAGE, "doors")
    if not lines:
        return [Finding(PAGE, 1, "doors", "the ```doors block is missing")]
    try:
        doors = parse_doors(lines)
    except ValueError as error:
        return [Finding(PAGE, lines[0][0], "doors", str(error))]
    findings = []
    for source in tree.sources.values():
        used = set()
        for line, name, _ in source.includes():
            for door in doors:
                if name.startswith(door.prefixes):
                    used.add(door.package)
                    if not source.is_test and not matches_any(source.path, door.files):
                        where = " ".join(door.files)
                        findings.append(Finding(source.path, line, "doors", f"<{name}>: {door.package} is included by {where} only"))
        if {"LibTorch", "spdlog"} <= used:
            findings.append(Finding(source.path, 1, "doors", "includes both LibTorch and spdlog; log through base/log.h"))
    return findings


@dataclasses.dataclass(frozen=True)
class Banned:
    """One call with a door: its pattern, its replacement, the files that may use it, and where the rule applies."""

    what: str
    pattern: str
    instead: str
    allowed: tuple[str, ...] = ()
    applies: tuple[str, ...] = ("**",)
    in_tests: bool = False
    unless: str = ""  # no finding if this matches the statement before the call


DAEMON = ("memserver/**", "shm/**", "nvme/**", "optim/**", "device/**", "base/**")
MAINS = ("memserver/main.cpp", "client/memctl/**", "trainer/main.cpp", "bench/**")
# Composition roots of programs and processes: they create the clock and pass it on.
CLOCK_ROOTS = (
    "trainer/cli/commands.cpp", "trainer/cli/doctor.cpp", "trainer/cli/run.cpp", "trainer/cli/sample.cpp", "client/memctl/main.cpp", "client/checkpoint/main.cpp",
    "memserver/main.cpp", "memserver/keeper/keeper.cpp", "python/binding/interrupt_clock.*", "trainer/module/tidepool/train.cpp", "bench/**",
)
BANNED = (
    Banned("std::mutex", r"\bstd::(recursive_|shared_|timed_)*mutex\b|\bstd::condition_variable",
           "give the state one owner thread and send to its queue (base/event_queue.h)",
           ("base/event_queue.h", "base/log.cpp", "base/log_queue.cpp", "memserver/update/worker_team.h", "memserver/control/bounds/peer_memory.h", "memserver/control/bounds/peer_memory.cpp", "memserver/jobs/snapshot_board.h", "memserver/checkpoint/step_stream.h", "base/checkpoint/step_log_writer.h", "client/checkpoint/log_steps.cpp", "memserver/admin/snapshot_source.h", "nvme/thread_queue.h",
            "device/cuda/cuda_driver.cpp", "device/cuda/cuda_host_ranges.h", "device/cuda/cuda_kernels.h", "bench/**")),
    Banned("std::thread", r"\bstd::(jthread|thread)\b(?!::)", "docs/threads.md lists the threads; add the new one there and here",
           ("base/log_queue.cpp", "memserver/server_rooms.*", "memserver/*_thread.*", "memserver/update/worker_team.*", "memserver/update/tuning.cpp", "memserver/probe/measure_rates.cpp", "memserver/residency/pool/host_pool.cpp",
            "memserver/control/memory_preparer.*", "memserver/admin/admin_server.cpp", "memserver/checkpoint/*", "client/checkpoint/log_steps.cpp", "device/host/thread_stream.*", "device/host/copy_team.*", "nvme/thread_queue.*",
             "trainer/launch/*", "trainer/threads/cpu_watch.*", "trainer/threads/in_parts.cpp", "trainer/output/writer_lane.cpp", "trainer/threads/short_waits.*", "trainer/comm/nccl/communicator_set.cpp", "trainer/comm/exchange_thread.h", "trainer/comm/exchange_thread.cpp", "trainer/comm/operation_thread.h", "trainer/comm/operation_thread.cpp", "bench/**")),
    Banned("std::async", r"\bstd::async\b", "a named thread with a queue"),
    Banned("sleep", r"\b(std::this_thread::)?sleep_(for|until)\s*\(|\b(u|nano)?sleep\s*\(", "Clock::SleepNs of base/clock.h", ("base/clock.cpp",)),
    Banned("clock", r"\b(steady_clock|system_clock|high_resolution_clock)::now\b|\bclock_gettime\s*\(|\bgettimeofday\s*\(|\btime\s*\(\s*(nullptr|NULL|0)\s*\)",
           "Clock::NowNs or WallSeconds of base/clock.h", ("base/clock.cpp", "base/log.cpp")),
    Banned("SteadyClock", r"\bSteadyClock\b", "the clock that is handed in; scripts/tidy_checks/doors.py lists where clocks are made",
           ("base/clock.h", "base/clock.cpp") + CLOCK_ROOTS),
    Banned("random", r"\b(std::)?s?rand\s*\(\s*\)|\bsrand\s*\(|\bstd::(mt19937|random_device|default_random_engine)\b",
           "SplitMix64 of base/random.h, with a seed that is handed in"),
    # Placement new allocates nothing; a private constructor needs std::unique_ptr<T>(new T(...)), which owns the object at once.
    Banned("new", r"(?<!operator )\bnew\s+[A-Za-z_:]", "std::make_unique or a container", ("base/log.cpp",),
           unless=r"\b(unique|shared|intrusive)_ptr<.*>\s*\w*\(\s*$"),
    Banned("delete", r"(?<!operator )(?<!= )(?<!=)\bdelete\b(\s*\[\s*\])?\s+?[A-Za-z_*(]", "an owner: std::unique_ptr or a container"),
    Banned("malloc", r"\b(std::)?(malloc|calloc|realloc|free)\s*\(", "std::make_unique, a container, or a mapping"),
    Banned("printf", r"\b(std::)?(printf|fprintf|puts|fputs|vprintf)\s*\(|\bstd::(cout|cerr|clog)\b", "base/log.h",
           MAINS + ("base/check.cpp", "memserver/*_command*.cpp", "memserver/flags*.cpp", "memserver/commands*.cpp"), DAEMON),
    Banned("exit", r"(?<![.>\w])(_exit|exit|quick_exit|abort|terminate)\s*\(", "return a Status; main turns it into an exit code",
           MAINS + ("base/check.cpp", "memserver/run.cpp", "trainer/launch/*")),
    Banned("std::regex", r"\bstd::regex\b", "a small parser: its run time is bounded"),
    Banned("feature switch", r"^[ \t]*#[ \t]*(if|ifdef|ifndef|elif)\b.*\bTIDEPOOL_HAS_", "a seam; one switch in device/open_device.cpp",
           ("device/open_device.cpp", "device/cuda/*", "trainer/comm/nccl/nccl*")),
    Banned("FRIEND_TEST", r"\bFRIEND_TEST\b|\bfriend class \w*Test\b", "test through the public header or the seam", in_tests=True),
    Banned("skipped test", r"\bGTEST_SKIP\b|\bDISABLED_\w+", "a test that runs, or none", in_tests=True),
)


def check_banned(tree: Tree, rules: tuple[Banned, ...] = BANNED) -> list[Finding]:
    findings = []
    for source in tree.sources.values():
        for rule in rules:
            if (source.is_test and not rule.in_tests) or matches_any(source.path, rule.allowed) or not matches_any(source.path, rule.applies):
                continue
            for match in re.finditer(rule.pattern, source.code, re.MULTILINE):
                line = source.line_of(match.start())
                statement = re.split(r"[;{}]", source.code[:match.start()])[-1]
                owned = rule.unless and re.search(rule.unless, statement)
                if not owned and not source.allows(line, rule.what):
                    findings.append(Finding(source.path, line, "banned", f"{rule.what} is banned here; use {rule.instead}"))
    return findings
