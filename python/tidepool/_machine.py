"""This machine's free memory: of the host, within the process's control group, and of a GPU."""

from __future__ import annotations

import pathlib
from typing import Any, Mapping, Optional

import torch

_GROUP = pathlib.Path("/sys/fs/cgroup")


def free_host_bytes() -> Optional[int]:
    """Memory available without swapping; None: the system does not tell."""
    available = _field(pathlib.Path("/proc/meminfo"), "MemAvailable:")
    if available is None:
        return None
    limit, used = _number(_GROUP / "memory.max"), _number(_GROUP / "memory.current")
    left = available * 1024
    return left if limit is None or used is None else max(0, min(left, limit - used))


def free_device_bytes(device: str, place: Mapping[str, Any]) -> Optional[int]:
    """Of the GPU that this rank would get; None: there is none."""
    if not torch.cuda.is_available():
        return None
    count = torch.cuda.device_count()
    ordinal = int(device.partition(":")[2] or int(place["local_rank"]) % count)
    return None if ordinal >= count else int(torch.cuda.mem_get_info(ordinal)[0])


def _field(path: pathlib.Path, name: str) -> Optional[int]:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    found = [line.split() for line in lines if line.startswith(name)]
    return int(found[0][1]) if found else None


def _number(path: pathlib.Path) -> Optional[int]:
    """Reads a file with one number; None: it is missing, or says "max"."""
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
