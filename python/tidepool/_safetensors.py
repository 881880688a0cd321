"""Safetensors files: 8 bytes with the length of the header, the header in JSON, the data.

Reads through a mapping, one tensor at a time; writes a stream of tensors into a file that appears atomically.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import json
import mmap
import os
import struct
from typing import Any, BinaryIO, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple

import torch

from .errors import FileError

_MADV_POPULATE_READ = 22  # Linux 5.14; not in Python's mmap
_HEADER_BYTES_MAX = 100 << 20
_DTYPES: Dict[str, torch.dtype] = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "C64": torch.complex64,
}  # fmt: skip
_CODES = {dtype: code for code, dtype in _DTYPES.items()}


@dataclasses.dataclass(frozen=True)
class Entry:
    """One tensor of a file; `begin` and `end` are bytes of the file."""

    dtype: torch.dtype
    shape: Tuple[int, ...]
    begin: int
    end: int


class Reader:
    """One file, mapped. Errors of the constructor: FileError."""

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            with open(path, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                self.entries = _entries(path, file, size)
                # A private writable mapping, so that LibTorch accepts it; nobody writes to it.
                self._map: Optional[mmap.mmap] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        except OSError as error:
            raise FileError(f"{path} cannot be read: {error.strerror}", where=path, id="FileUnreadable") from error

    def tensor(self, name: str) -> torch.Tensor:
        """A tensor over the mapped file, without a copy."""
        entry, mapped = self.entries[name], self._map
        assert mapped is not None
        count = _product(entry.shape)
        if count == 0:
            return torch.empty(entry.shape, dtype=entry.dtype)
        self._advise(entry, _MADV_POPULATE_READ)  # one call instead of a page fault every few pages
        if entry.begin % entry.dtype.itemsize != 0:
            raw = torch.frombuffer(mapped, dtype=torch.uint8, count=entry.end - entry.begin, offset=entry.begin)
            return raw.clone().view(entry.dtype).reshape(entry.shape)
        return torch.frombuffer(mapped, dtype=entry.dtype, count=count, offset=entry.begin).reshape(entry.shape)

    def prefetch(self, name: str) -> None:
        """Starts reading a tensor into the page cache."""
        self._advise(self.entries[name], mmap.MADV_WILLNEED)

    def forget(self, name: str) -> None:
        """Releases the pages of a tensor that has been used; it can be read again."""
        self._advise(self.entries[name], mmap.MADV_DONTNEED)

    def _advise(self, entry: Entry, advice: int) -> None:
        if self._map is None or entry.end <= entry.begin:
            return
        begin = entry.begin // mmap.PAGESIZE * mmap.PAGESIZE
        with contextlib.suppress(OSError):  # an older kernel
            self._map.madvise(advice, begin, entry.end - begin)


def _bad(path: str, why: str) -> FileError:
    return FileError(f"{path} is damaged, or no safetensors file", where=path, why=why, fix="write or copy it again", id="SafetensorsBad")


def _entries(path: str, file: BinaryIO, size: int) -> Dict[str, Entry]:
    head = file.read(8)
    length = struct.unpack("<Q", head)[0] if len(head) == 8 else 0
    if not 2 <= length <= min(_HEADER_BYTES_MAX, size - 8):
        raise _bad(path, f"the length of its header cannot be {length}")
    try:
        header = json.loads(file.read(length))
    except ValueError as error:
        raise _bad(path, f"its header is not JSON: {error}") from None
    if not isinstance(header, dict):
        raise _bad(path, "its header is no object")
    return {name: _entry(path, name, about, 8 + length, size) for name, about in header.items() if name != "__metadata__"}


def _entry(path: str, name: str, about: Any, data: int, size: int) -> Entry:
    try:
        dtype, shape = _DTYPES[about["dtype"]], tuple(int(dim) for dim in about["shape"])
        begin, end = (int(offset) for offset in about["data_offsets"])
    except (KeyError, TypeError, ValueError):
        raise _bad(path, f"its entry for {name} is not understood") from None
    if any(dim < 0 for dim in shape) or begin < 0 or data + end > size or end - begin != _product(shape) * dtype.itemsize:
        raise _bad(path, f"the place or the shape of {name} cannot be right; the file may be cut short")
    return Entry(dtype, shape, data + begin, data + end)


def _product(shape: Sequence[int]) -> int:
    count = 1
    for dim in shape:
        count *= dim
    return count


class Directory:
    """All files of a saved model, by tensor name. Errors: FileError."""

    def __init__(self, folder: str) -> None:
        self.readers = [Reader(path) for path in _files(folder)]
        self._reader_of = {name: reader for reader in self.readers for name in reader.entries}

    def __contains__(self, name: object) -> bool:
        return name in self._reader_of

    def __iter__(self) -> Iterator[str]:
        return iter(self._reader_of)

    def entry(self, name: str) -> Entry:
        return self._reader_of[name].entries[name]

    def tensor(self, name: str) -> torch.Tensor:
        return self._reader_of[name].tensor(name)

    def place(self, name: str) -> Tuple[int, int]:
        """The number of a tensor's file, from 1, and the number of files."""
        return self.readers.index(self._reader_of[name]) + 1, len(self.readers)

    def prefetch(self, name: str) -> None:
        self._reader_of[name].prefetch(name)

    def forget(self, name: str) -> None:
        self._reader_of[name].forget(name)


def _files(folder: str) -> List[str]:
    """The safetensors files of a directory, or the single file at that path; empty if there are none."""
    if os.path.isfile(folder):
        return [folder]
    index = os.path.join(folder, "model.safetensors.index.json")
    if os.path.exists(index):
        try:
            with open(index, encoding="utf-8") as file:
                names = sorted(set(json.load(file)["weight_map"].values()))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise FileError(f"{index} cannot be read: {error}", where=index, id="FileUnreadable") from error
        return [os.path.join(folder, name) for name in names]
    single = os.path.join(folder, "model.safetensors")
    return [single] if os.path.exists(single) else []


def write(path: str, about: Mapping[str, Tuple[torch.dtype, Tuple[int, ...]]], tensors: Iterable[torch.Tensor]) -> None:
    """Writes tensors with these dtypes and shapes, in this order, as they arrive.

    The file has a temporary name until it is complete and on the drive. Errors: FileError; the remaining tensors are then not requested.
    """
    header, total = _header(about)
    temporary = f"{path}.{os.getpid()}.new"
    try:
        _check_room(path, len(header) + total)
        with open(temporary, "wb") as file:
            file.write(header)
            for tensor in tensors:
                _write_tensor(file, tensor)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        _sync_folder(os.path.dirname(path) or ".")
    except OSError as error:
        raise FileError(
            f"{path} cannot be written: {error.strerror}", where=path, fix="check room and permissions; a former file is untouched", id="SaveFailed"
        ) from error
    finally:
        if os.path.exists(temporary):
            os.unlink(temporary)


def _header(about: Mapping[str, Tuple[torch.dtype, Tuple[int, ...]]]) -> Tuple[bytes, int]:
    entries: Dict[str, Any] = {"__metadata__": {"format": "pt"}}
    total = 0
    for name, (dtype, shape) in about.items():
        if dtype not in _CODES:
            raise FileError(f"{name} is {dtype}, which safetensors files cannot hold", where=name, id="SaveFailed")
        size = _product(shape) * dtype.itemsize
        entries[name] = {"dtype": _CODES[dtype], "shape": list(shape), "data_offsets": [total, total + size]}
        total += size
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text, total


def _check_room(path: str, needed: int) -> None:
    about = os.statvfs(os.path.dirname(path) or ".")
    free = about.f_bavail * about.f_frsize
    if free < needed:
        raise FileError(
            f"{path} needs {needed} bytes, and its file system has {free} free", where=path, fix="free space, or save elsewhere", id="SaveFailed"
        )


def _write_tensor(file: BinaryIO, tensor: torch.Tensor) -> None:
    values = tensor.detach().to("cpu").contiguous()
    size = values.numel() * values.element_size()
    if size > 0:
        file.write(memoryview((ctypes.c_char * size).from_address(values.data_ptr())).cast("B"))


def _sync_folder(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
