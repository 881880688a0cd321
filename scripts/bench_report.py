#!/usr/bin/env python3
"""Collects the rows that benchmark programs printed (one JSON object a line), shows them as a table, and adds a record of the machine.

usage: bench_report.py --repo DIR [--json FILE] ROWS_FILE...

Ends with 1 when a row is malformed, a target does not hold, or there is no row at all.
"""

import argparse
import json
import os
import platform
import re
import subprocess
import sys

KEYS = ("bench", "row", "value", "unit", "against", "ratio", "target", "holds")


def parse_rows(text: str) -> list[dict]:
    """The rows among the lines of a program's output. A row must have every key and no other."""
    rows = []
    for line in text.splitlines():
        if not line.startswith("{"):
            continue
        row = json.loads(line)
        if set(row) != set(KEYS):
            raise ValueError(f"a row must have exactly the keys {', '.join(KEYS)}: {line}")
        rows.append(row)
    return rows


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


def machine_record(repo: str) -> dict:
    return {
        "cpu": first_match("/proc/cpuinfo", r"^model name\s*:\s*(.+)$"),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": platform.release(),
        "compiler": output_of("g++", "--version").partition("\n")[0],
        "build_type": first_match(os.path.join(repo, "build", "CMakeCache.txt"), r"^CMAKE_BUILD_TYPE:\w+=(.*)$"),
        "commit": output_of("git", "-C", repo, "describe", "--always", "--dirty"),
    }


def number(value) -> str:
    return "-" if value is None else value if isinstance(value, str) else f"{value:.4g}"


def table(rows: list[dict]) -> str:
    lines = [f"{'bench':<10} {'row':<34} {'value':>10} {'unit':<12} {'against':<30} {'ratio':>8} {'target':>8}  holds"]
    for row in rows:
        holds = "-" if row["holds"] is None else "yes" if row["holds"] else "NO"
        lines.append(f"{row['bench']:<10} {row['row']:<34} {number(row['value']):>10} {row['unit']:<12} {number(row['against']):<30} "
                     f"{number(row['ratio']):>8} {number(row['target']):>8}  {holds}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench_report.py", description=__doc__.partition("\n")[0])
    parser.add_argument("--repo", required=True)
    parser.add_argument("--json")
    parser.add_argument("files", nargs="+")
    arguments = parser.parse_args()
    rows = []
    for path in arguments.files:
        with open(path, encoding="utf-8") as file:
            try:
                rows += parse_rows(file.read())
            except ValueError as error:
                print(f"error: {path}: {error}", file=sys.stderr)
                return 1
    print(table(rows))
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump({"machine": machine_record(arguments.repo), "rows": rows}, file, indent=1)
            file.write("\n")
    return 0 if rows and all(row["holds"] is not False for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
