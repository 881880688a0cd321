#!/usr/bin/env python3
"""Makes the tables of docs/performance_appendix.md from the results of benchmarks.

usage: bench_table.py [--check]

Results lie in bench/results/MACHINE/DATE....json, as scripts/bench --json writes them. For every machine and benchmark the newest result
counts. The tables stand in docs/performance_appendix.md between two marks; everything else there is written by hand. With --check nothing is
changed; ends with 1 when the tables are not those that the results make.
"""

import argparse
import collections
import glob
import json
import os
import string
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import bench_report  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BEGIN, END = "<!-- tables: made by scripts/bench_table.py -->", "<!-- end of the tables -->"


def load_results(folder: str) -> dict[str, list[dict]]:
    """Results by machine, oldest first."""
    results: dict[str, list[dict]] = {}
    for path in sorted(glob.glob(os.path.join(folder, "*", "*.json"))):
        with open(path, encoding="utf-8") as file:
            result = json.load(file)
        result["machine"].setdefault("date", os.path.basename(path)[:10])
        result["file"] = os.path.relpath(path, folder)
        results.setdefault(os.path.basename(os.path.dirname(path)), []).append(result)
    for of_machine in results.values():
        of_machine.sort(key=lambda result: result["machine"]["date"])
    return results


def newest_by_bench(results: list[dict]) -> list[tuple[dict, list[dict]]]:
    """(result, its rows not replaced by a newer result of the same benchmark), newest first."""
    seen: set[str] = set()
    kept = []
    for result in reversed(results):
        rows = [row for row in result["rows"] if row["bench"] not in seen]
        seen |= {row["bench"] for row in result["rows"]}
        if rows:
            kept.append((result, rows))
    return kept


def number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def ratio_text(row: dict, spreads: list[dict]) -> str:
    """The ratio with its quartiles."""
    for spread in spreads:
        if row["ratio"] is not None and all(spread.get(key) == row[key] for key in ("bench", "row", "against")):
            return f"{number(row['ratio'])} ({number(spread['spread'][0])}–{number(spread['spread'][1])})"
    return number(row["ratio"])


def change_text(row: dict, regimes: list[dict]) -> str:
    """The round trips on both sides, if the regime changed while the row was measured."""
    regime = bench_report.found_for(row, regimes)
    return f", {bench_report.regime_text(regime | {'dropped': 0})} ns" if regime is not None and bench_report.spans_a_change(regime) else ""


def regimes_text(regimes: list[dict]) -> list[str]:
    """For a whole result: the shortest and the longest round trip, and the dropped rounds."""
    if not regimes:
        return []
    lows, highs = zip(*(regime["round_trip_ns"] for regime in regimes))
    dropped = sum(regime["dropped"] for regime in regimes)
    return [f"round trips meanwhile {min(lows):.0f} to {max(highs):.0f} ns" + (f", {dropped} rounds dropped" if dropped else "")]


def hardware(result: dict) -> list[str]:
    machine = result["machine"]
    parts = [f"{machine['cpu']}, {machine['cores']} CPUs"]
    if "isa" in machine:
        parts.append(f"x86-64-{machine['isa']}")
    if machine.get("cache_bytes"):
        parts.append(f"last cache {machine['cache_bytes'] / 2**20:.0f} MiB")
    parts.append(f"{machine['memory_bytes'] / 2**30:.0f} GiB")
    if "gpu" in machine:
        parts.append(f"{machine['gpu']} of {machine['gpu_gib']:.0f} GiB, driver {machine['driver']}, PyTorch {machine['torch']}")
    return parts


def machine_line(result: dict, above: dict | None) -> str:
    """The record of the machine; its hardware only if it differs from that of the result above."""
    machine = result["machine"]
    parts = [] if above and hardware(above) == hardware(result) else hardware(result)
    parts.append(f"Linux {machine['kernel']}")
    if "read_gb_s" in machine:
        parts.append(f"read {machine['read_gb_s']:.1f}, in place {machine['modify_in_place_gb_s']:.1f}, streaming copy {machine['copy_streaming_gb_s']:.1f}, "
                     f"memcpy {machine['copy_memcpy_gb_s']:.1f} GB/s")
        parts.append(f"round trip between cores {machine['spin_round_trip_ns']:.0f} ns")
        parts.append(f"2 MiB pages {100 * machine['pool_huge_page_share']:.0f} %")
    parts += regimes_text(result.get("regimes", []))
    if "load_before" in machine:
        parts.append(f"load before {machine['load_before']}")
    return f"`{result['file']}` ({machine['date']}, commit {machine['commit']}): {', '.join(parts)}."


def table_row(cells: tuple[str, ...]) -> str:
    """Empty cells at the end are left out: a row may have fewer than its table's head."""
    shown = list(cells)
    while not shown[-1]:
        shown.pop()
    return f"| {' | '.join(shown)} |".replace("|  |", "| |")


def peer_letters(rows: list[dict]) -> dict[str, str]:
    """A letter for each peer that is several words long and stands in three rows or more, by the order of its first row."""
    counts = collections.Counter(row["against"] for row in rows if row["against"])
    often = [peer for peer, count in counts.items() if count >= 3 and len(peer.split()) >= 3]
    return dict(zip(often, string.ascii_uppercase))


def tables(results: dict[str, list[dict]]) -> str:
    lines = []
    for name in sorted(results):
        lines += [f"### {name}", ""]
        shown = None
        for result, rows in newest_by_bench(results[name]):
            letters = peer_letters(rows)
            lines += [machine_line(result, shown), ""]
            if letters:
                lines += [f"Against {'; '.join(f'{letter}: {peer}' for peer, letter in letters.items())}.", ""]
            lines += ["| row | value | against | ratio (quartiles) | target |", "|---|---|---|---|---|"]
            above, shown = None, result
            for row in rows:
                if row["bench"] != above:
                    lines.append(f"| **{row['bench']}** |")
                above = row["bench"]
                target = "" if row["holds"] is None else f"{number(row['target'])}, {'holds' if row['holds'] else '**missed**'}"
                ratio = ratio_text(row, result.get("spreads", [])) + change_text(row, result.get("regimes", []))
                lines.append(table_row((row["row"], f"{number(row['value'])} {row['unit']}", letters.get(row["against"], row["against"] or ""), ratio, target)))
            lines.append("")
    return "\n".join(lines).rstrip("\n")


def with_tables(page: str, text: str) -> str:
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page has no {BEGIN} ... {END}")
    return f"{before}{BEGIN}\n\n{text}\n\n{END}{after}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench_table.py", description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    page_path = os.path.join(ROOT, "docs", "performance_appendix.md")
    with open(page_path, encoding="utf-8") as file:
        page = file.read()
    made = with_tables(page, tables(load_results(os.path.join(ROOT, "bench", "results"))))
    if arguments.check:
        if made != page:
            print("docs/performance_appendix.md does not hold the tables that bench/results/ makes; run scripts/bench_table.py", file=sys.stderr)
        return 0 if made == page else 1
    with open(page_path, "w", encoding="utf-8") as file:
        file.write(made)
    return 0


if __name__ == "__main__":
    sys.exit(main())
