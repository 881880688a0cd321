#!/usr/bin/env python3
"""Makes the file of `trainer estimate --rcache auto --rates FILE` of what benchmarks measured.

usage: rates.py RESULTS_FILE... > rates.json

RESULTS_FILE is what `scripts/bench gpu update --json FILE` or scripts/gpu_check wrote; of several files the last one that has a row counts.
Copies are those of the largest size, from and to registered pool memory; updates are the workers' on the host and the kernel's on the GPU,
with bf16 gradients and fp32 states. The benchmarks measure one GPU, so the file has rates of one rank. Ends with 1 when there is no row of
copies; rows of updates may be missing, and are then missing in the file.
"""

import json
import re
import sys

COPY = re.compile(r"copies of (\d+) (KiB|MiB) (to|from) the GPU, registered pool memory")
HOST = "update pass by the daemon's workers, bf16 gradient and copy, fp32 states"
DEVICE = re.compile(r"AdamW kernel, bf16 gradient and copy, \d+ Mi elements")
DEVICE_BYTES = 28  # per element, as counted in bench/gpu/gpu_copies.cpp


def copy_rate(rows: list[dict], direction: str) -> float | None:
    """GB/s of the largest copies in this direction."""
    found = [(int(m[1]) << (10 if m[2] == "KiB" else 20), row["value"]) for row in rows if (m := COPY.fullmatch(row["row"])) and m[3] == direction]
    return max(found)[1] if found else None


def rates_of(rows: list[dict]) -> dict:
    """The rates in these rows, under the keys of trainer/advice/rates_file.h."""
    gpu = [row for row in rows if row["bench"] == "gpu" and row["unit"] == "GB/s"]
    host = [row["value"] for row in rows if row["bench"] == "update" and row["row"] == HOST and row["unit"] == "Gparam/s"]
    device = [row["value"] / DEVICE_BYTES for row in gpu if DEVICE.fullmatch(row["row"])]
    rates = {
        "to_device_gb_per_s": copy_rate(gpu, "to"),
        "from_device_gb_per_s": copy_rate(gpu, "from"),
        "host_update_g_elements_per_s": host[-1] if host else None,
        "device_update_g_elements_per_s": device[-1] if device else None,
    }
    return {key: rate for key, rate in rates.items() if rate is not None}


def main(files: list[str]) -> int:
    if not files or any(name.startswith("-") for name in files):
        print(__doc__, file=sys.stderr)
        return 0 if files in (["-h"], ["--help"]) else 2
    rates, origins = {}, []
    for name in files:
        with open(name, encoding="utf-8") as file:
            results = json.load(file)
        found = rates_of(results["rows"])
        machine = results["machine"]
        if found:
            origins.append("scripts/bench on " + ", ".join(str(machine[key]) for key in ("gpu", "cpu", "date", "commit") if machine.get(key)))
        rates |= found
    missing = [key for key in ("to_device_gb_per_s", "from_device_gb_per_s") if key not in rates]
    if missing:
        print(f"rates.py: no row of {', '.join(files)} has {' or '.join(missing)}: they come from `scripts/bench gpu`", file=sys.stderr)
        return 1
    json.dump({"origin": "; ".join(origins), "rates": [{"ranks": 1} | rates]}, sys.stdout, indent=1)
    print()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
