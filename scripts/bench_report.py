#!/usr/bin/env python3
"""Collects the rows that benchmark programs printed (one JSON object a line), shows them as a table, and adds a record of the machine.

usage: bench_report.py --repo DIR [--json FILE] [--probe FILE] [--load NUMBER] ROWS_FILE...

A row may be followed by its spread over the rounds of the run, and by the regime of the machine meanwhile (bench/harness/regime.h), each a line of
its own. --probe names what machine_probe printed, --load the
load average before the first benchmark. Ends with 1 when a row is malformed, a target does not hold, or there is no row at all.
"""

import argparse
import datetime
import json
import os
import platform
import re
import subprocess
import sys

KEYS = ("bench", "row", "value", "unit", "against", "ratio", "target", "holds")
SPREAD_KEYS = ("bench", "row", "spread", "samples")
REGIME_KEYS = ("bench", "row", "round_trip_ns", "dropped")
# As kRegimeFactor of bench/harness/regime.h: the least factor of a word's round trip between two CPUs in another regime.
REGIME_FACTOR = 1.6
# Below this, the two CPUs are most likely hardware threads of one core.
ROUND_TRIP_MIN_NS = 150


def parse_rows(text: str) -> tuple[list[dict], list[dict], list[dict]]:
    """The rows, spreads and regimes in a program's output. Each must have every key and no other; spread and regime follow their row."""
    rows, spreads, regimes = [], [], []
    for line in text.splitlines():
        if not line.startswith("{"):
            continue
        found = json.loads(line)
        of_row = bool(rows) and (found.get("bench"), found.get("row")) == (rows[-1]["bench"], rows[-1]["row"])
        if of_row and set(found) == set(SPREAD_KEYS):
            spreads.append(found | {"against": rows[-1]["against"]})
        elif of_row and set(found) == set(REGIME_KEYS):
            regimes.append(found | {"against": rows[-1]["against"]})
        elif set(found) == set(KEYS):
            rows.append(found)
        else:
            raise ValueError(f"a row must have exactly the keys {', '.join(KEYS)}, a spread and a regime must follow their row: {line}")
    return rows, spreads, regimes


def first_match(path: str, pattern: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            found = re.search(pattern, file.read(), re.MULTILINE)
    except OSError:
        return "unknown"
    return found[1].strip() if found else "unknown"


def output_of(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def last_level_cache_bytes() -> int:
    """Size of the largest cache of the first CPU; 0 if the system does not tell."""
    sizes, folder = [0], "/sys/devices/system/cpu/cpu0/cache"
    for name in os.listdir(folder) if os.path.isdir(folder) else []:
        found = re.fullmatch(r"(\d+)K", first_match(os.path.join(folder, name, "size"), r"^(.+)$"))
        if found:
            sizes.append(int(found[1]) * 1024)
    return max(sizes)


def machine_record(repo: str) -> dict:
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "cpu": first_match("/proc/cpuinfo", r"^model name\s*:\s*(.+)$"),
        "cores": len(os.sched_getaffinity(0)),
        "cache_bytes": last_level_cache_bytes(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": platform.release(),
        "compiler": output_of("g++", "--version").partition("\n")[0],
        "build_type": first_match(os.path.join(repo, "build", "CMakeCache.txt"), r"^CMAKE_BUILD_TYPE:\w+=(.*)$"),
        "commit": output_of("git", "-C", repo, "describe", "--always", "--dirty"),
    }


def probe_record(path: str | None, load: float | None) -> dict:
    """The measurements taken on the spot."""
    record = {} if load is None else {"load_before": load}
    if path is None:
        return record
    with open(path, encoding="utf-8") as file:
        text = file.read()
    return record | (json.loads(text) if text.strip() else {})


def warnings(machine: dict) -> list[str]:
    """Reasons why results of this machine may mean little."""
    found = []
    if machine.get("load_before", 0) > 0.5:
        found.append(f"the load average was {machine['load_before']} before the first benchmark: others were using this machine")
    if machine.get("spin_round_trip_ns", ROUND_TRIP_MIN_NS) < ROUND_TRIP_MIN_NS:
        found.append(f"a word goes to the other CPU and back in {machine['spin_round_trip_ns']:.0f} ns: the two are most likely one core, and what is "
                     "measured between them means nothing")
    return found


def number(value) -> str:
    return "-" if value is None else value if isinstance(value, str) else f"{value:.4g}"


def found_for(row: dict, those: list[dict]) -> dict | None:
    """The spread, or the regime, that belongs to the row."""
    return next((one for one in those if all(one[key] == row[key] for key in ("bench", "row", "against"))), None)


def spread_of(row: dict, spreads: list[dict]) -> list[float] | None:
    found = found_for(row, spreads)
    return None if found is None else found["spread"]


def spans_a_change(regime: dict) -> bool:
    low, high = regime["round_trip_ns"]
    return high > REGIME_FACTOR * low


def regime_text(regime: dict | None) -> str:
    """The round trip in ns, both values at a change, and the number of rounds dropped for one."""
    if regime is None:
        return "-"
    low, high = regime["round_trip_ns"]
    text = f"{low:.0f}->{high:.0f}" if spans_a_change(regime) else f"{high:.0f}"
    return text if regime["dropped"] == 0 else f"{text} -{regime['dropped']}"


def regime_warnings(regimes: list[dict]) -> list[str]:
    changed = [regime for regime in regimes if spans_a_change(regime)]
    dropped = sum(regime["dropped"] for regime in regimes)
    ends = [regime["round_trip_ns"][1] for regime in regimes] or [0]
    found = []
    if changed:
        found.append(f"while {len(changed)} of {len(regimes)} rows were measured, the round trip between two CPUs changed by more than {REGIME_FACTOR}: their "
                     "values are of two machines, and ratios across the change may be wrong by as much")
    elif max(ends) > REGIME_FACTOR * min(ends):
        found.append(f"the round trip between two CPUs was {min(ends):.0f} ns for some rows and {max(ends):.0f} ns for others: compare within a row alone")
    if dropped:
        found.append(f"{dropped} rounds do not count, as the round trip changed in them")
    return found


def table(rows: list[dict], spreads: list[dict], regimes: list[dict] | None = None) -> str:
    lines = [f"{'bench':<12} {'row':<70} {'value':>9} {'unit':<14} {'ratio':>7} {'quartiles':>13} {'target':>6}  holds {'round trip':>12}  against"]
    for row in rows:
        holds = "-" if row["holds"] is None else "yes" if row["holds"] else "NO"
        spread = spread_of(row, spreads)
        quartiles = "-" if spread is None else f"{spread[0]:.3g}..{spread[1]:.3g}"
        trip = regime_text(found_for(row, regimes or []))
        lines.append(f"{row['bench']:<12} {row['row']:<70} {number(row['value']):>9} {row['unit']:<14} {number(row['ratio']):>7} "
                     f"{quartiles:>13} {number(row['target']):>6}  {holds:<5} {trip:>12}  {number(row['against'])}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench_report.py", description=__doc__.partition("\n")[0])
    parser.add_argument("--repo", required=True)
    parser.add_argument("--json")
    parser.add_argument("--probe")
    parser.add_argument("--load", type=float)
    parser.add_argument("files", nargs="+")
    arguments = parser.parse_args()
    rows, spreads, regimes = [], [], []
    for path in arguments.files:
        with open(path, encoding="utf-8") as file:
            try:
                of_file = parse_rows(file.read())
            except ValueError as error:
                print(f"error: {path}: {error}", file=sys.stderr)
                return 1
        rows += of_file[0]
        spreads += of_file[1]
        regimes += of_file[2]
    machine = machine_record(arguments.repo) | probe_record(arguments.probe, arguments.load)
    print(", ".join(f"{key} {number(value)}" for key, value in machine.items()))
    print(table(rows, spreads, regimes))
    for text in warnings(machine) + regime_warnings(regimes):
        print(f"warning: {text}", file=sys.stderr)
    if arguments.json:
        os.makedirs(os.path.dirname(os.path.abspath(arguments.json)), exist_ok=True)
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump({"machine": machine, "rows": rows, "spreads": spreads, "regimes": regimes}, file, indent=1)
            file.write("\n")
    return 0 if rows and all(row["holds"] is not False for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
