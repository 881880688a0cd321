#!/usr/bin/env python3
"""Turns what a quickstart run left in its folder into figures, a loss plot and a page for the terminal. Standard library only.

usage: quickstart_report.py field FILE.json KEY
       quickstart_report.py write OUT_DIR --ranks N --data FILE|DIR [--json FILE] [--promise]

OUT_DIR holds metrics.jsonl (one object a step), estimate.json, plan.txt (`trainer run --dry-run`, which says what is held out), residency.txt,
untrained.txt and sample.txt (what the model writes before and after training) and leaks.txt; loss.svg is written there. Ends with 1 when
--promise is not kept.
"""

import argparse
import json
import math
import os
import re
import statistics
import sys
import textwrap

# The colours of base/picture/palette.cpp, for light and dark backgrounds.
STYLE = (
    ".paper{fill:#ffffff}text{fill:#17212b}.grid{stroke:#dde3e9}.training{stroke:#0072b2}.held-out{stroke:#d55e00}.training,.held-out{fill:none;stroke-width:1.8}"
    ".held-out{stroke-dasharray:7 3}circle{fill:#d55e00}@media (prefers-color-scheme:dark){.paper{fill:#18212a}text{fill:#e6ecf1}.grid{stroke:#2b3743}.training{stroke:#56b4e9}}"
)
# Guarantees of a run of default length: nats per byte, share of the sample's words, and characters.
LOSS_MOST, WORDS_LEAST, COPIED_MOST = 1.9, 0.8, 39


def read_text(path: str) -> str:
    if not os.path.exists(path):
        return ""
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


def read_metrics(path: str) -> list[dict]:
    return [json.loads(line) for line in read_text(path).splitlines() if line.strip()]


def training_text(data: str, plan: str) -> str:
    """The text of `data` that is not held out, according to `plan`. Includes files skipped as near-duplicates: the model may know them."""
    if os.path.isfile(data):
        text = read_text(data)
        held_out = re.search(r"its last (\d+) tokens are held out", plan)
        return text.encode()[: -int(held_out[1])].decode(errors="replace") if held_out and int(held_out[1]) else text
    held_out = re.search(r"held out: '([^']*)'", plan)
    paths = [os.path.join(folder, name) for folder, _, names in sorted(os.walk(data)) for name in sorted(names)]
    return "\n".join(read_text(path) for path in paths if not held_out or os.path.realpath(path) != os.path.realpath(held_out[1]))


def words_of(text: str) -> list[str]:
    return re.findall(r"[a-z]+", text.lower())


def known_words(sample: str, text: str) -> float:
    """The share of the sample's words that occur in the text."""
    known = set(words_of(text))
    words = words_of(sample)
    return sum(word in known for word in words) / len(words) if words else 0.0


def longest_copy(sample: str, text: str) -> str:
    """The longest run of characters of the sample that occurs in the text; any white space counts as one space in both."""
    sample, text = " ".join(sample.split()), " ".join(text.split())
    longest = ""
    for begin in range(len(sample)):
        while begin + len(longest) < len(sample) and sample[begin : begin + len(longest) + 1] in text:
            longest = sample[begin : begin + len(longest) + 1]
    return longest


def broken_promises(found: dict) -> list[str]:
    broken = []
    if found["loss_last"] is None or not found["loss_last"] <= LOSS_MOST:
        broken.append(f"the held-out loss is {found['loss_last']}, more than {LOSS_MOST}")
    if found["words_known"] < WORDS_LEAST:
        broken.append(f"{100 * found['words_known']:.0f} % of the sample's words are known, less than {100 * WORDS_LEAST:.0f} %")
    if len(found["longest_copy"]) > COPIED_MOST:
        broken.append(f"the sample repeats {len(found['longest_copy'])} characters of the training text: {found['longest_copy']!r}")
    return broken


def columns(left: str, right: str, width: int = 56) -> list[str]:
    """Two texts side by side under their headings; characters not printable in ASCII become dots, and blank lines are dropped."""

    def lines(text: str) -> list[str]:
        plain = ("".join(c if " " <= c <= "~" else "." for c in line) for line in text.splitlines())
        return [part for line in plain for part in textwrap.wrap(line, width) if part]

    a, b = lines(left), lines(right)
    a, b = a + [""] * (len(b) - len(a)), b + [""] * (len(a) - len(b))
    head = [f"{'before training':{width}}  | after", f"{'-' * width}--+{'-' * width}"]
    return head + [f"{x:{width}}  | {y}".rstrip() for x, y in zip(a, b)]


def mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def figures(metrics: list[dict], estimate: dict, ranks: int, leaks: list[str]) -> dict:
    """All values written by --json. Bytes are those of rank 0 in steps that followed a plan (the first one records it)."""
    held_out = [line["val_loss"] for line in metrics if line.get("val_loss") is not None]
    steps = [line for line in metrics if line["step"] > 0]
    planned = [line for line in steps if line.get("bytes_h2d_theory", 0) > 0]
    settled = steps[1:] or steps
    return {
        "loss_first": held_out[0] if held_out else None,
        "loss_last": held_out[-1] if held_out else None,
        "train_loss_last": steps[-1]["loss"] if steps else None,
        "steps": len(steps),
        "ranks": ranks,
        "params": estimate.get("params"),
        "resident_share": estimate.get("rcache", {}).get("resident_share"),
        "rcache_fraction": estimate.get("rcache", {}).get("fraction"),
        "pool_bytes": estimate.get("pool_bytes"),
        "bytes_h2d_per_step": mean([line["bytes_h2d"] for line in planned]),
        "bytes_h2d_theory": mean([line["bytes_h2d_theory"] for line in planned]),
        "bytes_d2h_per_step": mean([line["bytes_d2h"] for line in planned]),
        "bytes_d2h_theory": mean([line.get("bytes_d2h_theory", 0) for line in planned]),
        "hit_rate": mean([line["hit_rate"] for line in settled]),
        "tokens_per_s": statistics.median([line["tokens_per_s"] for line in settled]) if settled else 0.0,
        "training_s": sum(line.get("seconds", 0.0) for line in steps),
        "leaks": len(leaks),
    }


def nice_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers (1, 2 or 5 times a power of ten apart) within [low, high]."""
    span = max(high - low, 1e-9)
    raw = span / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(index * step, 12) for index in range(first, last + 1)]


def loss_svg(metrics: list[dict], title: str) -> str:
    """A line of training losses and a dotted line of held-out losses over the steps."""
    train = [(line["step"], line["loss"]) for line in metrics if line["step"] > 0 and line["loss"] is not None]
    held_out = [(line["step"], line["val_loss"]) for line in metrics if line.get("val_loss") is not None]
    points = train + held_out
    if not points:
        raise ValueError("no losses to draw")
    width, height, left, right, top, bottom = 720, 420, 60, 20, 40, 50
    x_low, x_high = min(x for x, _ in points), max(max(x for x, _ in points), 1)
    y_low, y_high = 0.0, 1.05 * max(y for _, y in points)

    def place(x: float, y: float) -> tuple[float, float]:
        return (left + (x - x_low) / max(x_high - x_low, 1) * (width - left - right), height - bottom - (y - y_low) / (y_high - y_low) * (height - top - bottom))

    def line(series: list[tuple[float, float]], kind: str) -> str:
        path = " ".join(f"{px:.1f},{py:.1f}" for px, py in (place(x, y) for x, y in series))
        return f'<polyline class="{kind}" points="{path}"/>'

    def key(x: int, kind: str, name: str) -> str:
        return f'<line class="{kind}" x1="{x}" x2="{x + 24}" y1="20" y2="20"/><text x="{x + 30}" y="24">{name}</text>'

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
        f"<style>{STYLE}</style>",
        f'<rect class="paper" width="{width}" height="{height}"/>',
        f'<text x="{left}" y="24" font-size="15">{title}</text>',
    ]
    for tick in nice_ticks(y_low, y_high):
        _, y = place(x_low, tick)
        parts.append(f'<line x1="{left}" y1="{y:.1f}" x2="{width - right}" y2="{y:.1f}" class="grid"/>')
        parts.append(f'<text x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">{tick:g}</text>')
    for tick in nice_ticks(x_low, x_high):
        x, _ = place(tick, y_low)
        parts.append(f'<text x="{x:.1f}" y="{height - bottom + 18}" text-anchor="middle">{tick:g}</text>')
    parts.append(f'<text x="{width / 2:.0f}" y="{height - 10}" text-anchor="middle">step</text>')
    parts.append(line(train, "training"))
    parts.append(line(held_out, "held-out"))
    parts += [f'<circle cx="{px:.1f}" cy="{py:.1f}" r="3"/>' for px, py in (place(x, y) for x, y in held_out)]
    parts.append(f'<text x="{left - 8}" y="{top - 4}" text-anchor="end">nats</text>')
    parts.append(key(width - right - 220, "training", "training") + key(width - right - 110, "held-out", "held out"))
    parts.append("</svg>")
    return "\n".join(parts) + "\n"


def mib(value: float) -> str:
    return f"{value / 2**20:.2f} MiB"


def page(found: dict, out: str, residency: str, untrained: str, sample: str) -> str:
    """The text for the user at the end."""
    share = f", of which {100 * (found['resident_share'] or 0):.1f} % always resident on each rank"
    loss = "none was measured" if found["loss_first"] is None else f"{found['loss_first']:.3f} at the start, {found['loss_last']:.3f} at the end"
    lines = [
        "",
        f"held-out loss    {loss}",
        f"model            {(found['params'] or 0) / 1e6:.1f} M parameters{share}",
        f"rCache           {100 * (found['rcache_fraction'] or 0):.0f} % of the other parameters; hit rate {100 * found['hit_rate']:.0f} %",
        f"training         {found['steps']} steps in {found['training_s']:.0f} s on {found['ranks']} ranks, {found['tokens_per_s']:.0f} tokens/s",
        f"host to device   {mib(found['bytes_h2d_per_step'])} a step and rank; in theory {mib(found['bytes_h2d_theory'])}",
        f"device to host   {mib(found['bytes_d2h_per_step'])} a step and rank; in theory {mib(found['bytes_d2h_theory'])}",
        f"left behind      {found['leaks']} processes, sockets or files",
        "",
    ]
    if residency:
        lines += ["residency in mid-run (memctl residency):", residency.rstrip(), ""]
    if sample:
        lines += ["the model writes:", *columns(untrained, sample), "",
                  f"known words      {100 * found['words_known']:.0f} % of the sample's words stand in the training text",
                  f"longest copy     {len(found['longest_copy'])} characters: {found['longest_copy']!r}", ""]
    lines += [
        f"loss plot        {os.path.join(out, 'loss.svg')}",
        f"TensorBoard      tensorboard --logdir {out}",
        "try next         build/bin/trainer run --standalone --steps 50 --rcache 15%",
        f'                 build/bin/trainer sample {os.path.join(out, "weights")} "This License"',
        f'                 build/bin/trainer run --standalone --base {os.path.join(out, "weights")} --lora-rank 8 --steps 50',
        "                 build/bin/trainer estimate --preset gpt2-10b --ranks 4",
        "                 build/bin/memserver run --socket-dir DIR --pool 4GiB, then build/bin/memctl -s DIR status",
        "",
    ]
    return "\n".join(lines)


def write(out: str, ranks: int, data: str, json_path: str | None, promise: bool) -> int:
    metrics = read_metrics(os.path.join(out, "metrics.jsonl"))
    estimate = json.loads(read_text(os.path.join(out, "estimate.json")) or "{}")
    leaks = read_text(os.path.join(out, "leaks.txt")).splitlines()
    found = figures(metrics, estimate, ranks, leaks)
    text, sample = training_text(data, read_text(os.path.join(out, "plan.txt"))), read_text(os.path.join(out, "sample.txt"))
    found["words_known"], found["longest_copy"] = known_words(sample, text), longest_copy(sample, text)
    with open(os.path.join(out, "loss.svg"), "w", encoding="utf-8") as file:
        file.write(loss_svg(metrics, "Tidepool quickstart: loss"))
    if json_path:
        with open(json_path, "w", encoding="utf-8") as file:
            json.dump(found, file, indent=2)
            file.write("\n")
    print(page(found, out, read_text(os.path.join(out, "residency.txt")), read_text(os.path.join(out, "untrained.txt")), sample))
    broken = broken_promises(found) if promise else []
    for what in broken:
        print(f"error: the quickstart does not keep its promise: {what}", file=sys.stderr)
    return 1 if broken else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="quickstart_report.py", description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    field = commands.add_parser("field", help="prints one value of a JSON object")
    field.add_argument("file")
    field.add_argument("key")
    writer = commands.add_parser("write", help="writes loss.svg and the figures, prints the page")
    writer.add_argument("out")
    writer.add_argument("--ranks", type=int, required=True)
    writer.add_argument("--data", required=True, help="what was trained on")
    writer.add_argument("--json")
    writer.add_argument("--promise", action="store_true", help="end with 1 where loss or sample are not what a whole run gives")
    arguments = parser.parse_args()
    if arguments.command == "write":
        return write(arguments.out, arguments.ranks, arguments.data, arguments.json, arguments.promise)
    print(json.loads(read_text(arguments.file))[arguments.key])
    return 0


if __name__ == "__main__":
    sys.exit(main())
