"""Sources of the states of a new job: a checkpoint, or a directory of torch.distributed.checkpoint."""

from __future__ import annotations

import json
import os
import struct
from typing import Any, Dict, List, Optional, Tuple

import torch

from . import _library
from ._safetensors import Reader
from .errors import FileError, UsageError, from_parts

MASTER = 0
_SUFFIXES = {MASTER: "", 1: ".exp_avg", 2: ".exp_avg_sq", 3: ".exp_avg_scale", 4: ".exp_avg_sq_scale"}  # by plane, numbered as in puts
_BLOCK = 32  # elements that share a scale
_FORMS = {"fp32": "F32", "split": "F32", "split-bf16": "BF16"}  # types of moments


class States:
    """Weights and moments of every trained parameter at one step. `step` holds the numbers of the step record."""

    path = ""
    step: Dict[str, Any] = {}
    files = ""  # the directory with the other saved files; "": none

    def tensor(self, name: str, plane: int) -> Optional[torch.Tensor]:
        """A plane of a parameter, unchanged from the files; None if it does not exist."""
        raise NotImplementedError

    def forget(self, name: str) -> None:
        """Releases the memory of the values read for the parameter."""

    def begin(self) -> Tuple[List[int], float]:
        """The arguments of `begin_at` of the native job."""
        numbers = [self.step[key] for key in ("version", "optimizer_step", "data_cursor", "random_state", "scaler_steps")]
        return [struct.unpack("<q", struct.pack("<Q", number))[0] for number in numbers], float(self.step["loss_scale"])

    def master(self, name: str, shape: Tuple[int, ...]) -> torch.Tensor:
        """The fp32 weights of a parameter. Errors: UsageError, FileError."""
        return self._fitting(name, MASTER, tuple(shape)).to(torch.float32)

    def words(self, name: str, plane: int, form: str, shape: Tuple[int, ...]) -> torch.Tensor:
        """A moment as the words of `put_moment`: 32 bits per element, in the form of the job's states. Errors: UsageError (it would be rounded), FileError."""
        count = torch.Size(shape).numel()
        if plane > 2:
            scales = self._fitting(name, plane, (-(-count // _BLOCK),)).to(torch.float32)
            return scales.repeat_interleave(_BLOCK)[:count].contiguous()
        found = self._fitting(name, plane, tuple(shape))
        if form == "split-8bit" and found.dtype == (torch.int8 if plane == 1 else torch.uint8):
            return found.contiguous().view(torch.uint8).to(torch.int32).view(torch.float32).reshape(-1)
        exact = {torch.bfloat16} if form == "split-bf16" else {torch.float32, torch.bfloat16} if form in _FORMS else set()
        if found.dtype not in exact:
            raise UsageError(
                f'the moments of the checkpoint are {found.dtype}, and states="{form}" would round them',
                where=f"{self.path}, {name}{_SUFFIXES[plane]}",
                fix="go on with the states that the checkpoint has",
            )
        return found.to(torch.float32).contiguous().reshape(-1)

    def _fitting(self, name: str, plane: int, shape: Tuple[int, ...]) -> torch.Tensor:
        found, where = self.tensor(name, plane), f"{self.path}, {name}{_SUFFIXES[plane]}"
        if found is None:
            raise UsageError("the checkpoint has no such tensor", where=where, fix="give a checkpoint of this model and this optimizer")
        if tuple(found.shape) != shape:
            raise UsageError(
                f"the tensor of the checkpoint has the shape {list(found.shape)}, and the model's is {list(shape)}",
                where=where,
                fix="give a checkpoint of this model",
            )
        return found


class Saved(States):
    """A checkpoint of Tidepool (docs/checkpoints.md). Errors: FileError, which names file and tensor."""

    def __init__(self, path: str, verify: bool = True) -> None:
        _library.load()
        self.step = json.loads(torch.ops.tidepool.checkpoint_at(path, verify))
        if "id" in self.step:
            raise from_parts(self.step)
        self.path = self.files = self.step["path"]
        adapters = os.path.join(self.path, "adapter.safetensors")
        self._weights = Reader(adapters if os.path.exists(adapters) else os.path.join(self.path, "model.safetensors"))
        moments = os.path.join(self.path, "optimizer.safetensors")
        self._moments = Reader(moments) if os.path.exists(moments) else None

    def names(self) -> List[str]:
        """The names of the saved parameters."""
        return list(self._weights.entries)

    def tensor(self, name: str, plane: int) -> Optional[torch.Tensor]:
        reader, full = (self._weights if plane == MASTER else self._moments), name + _SUFFIXES[plane]
        return reader.tensor(full) if reader is not None and full in reader.entries else None

    def forget(self, name: str) -> None:
        for plane, suffix in _SUFFIXES.items():
            reader = self._weights if plane == MASTER else self._moments
            if reader is not None and name + suffix in reader.entries:
                reader.forget(name + suffix)


def open_states(path: str, verify: bool) -> States:
    """The states at `path`: a checkpoint, a folder of them (the newest whole one), or a directory of torch.distributed.checkpoint. Errors: FileError."""
    if os.path.exists(os.path.join(path, ".metadata")):
        from ._dcp import Distributed

        return Distributed(path)
    if not os.path.isdir(path):
        raise FileError(f"{path} cannot be read: there is no such directory", where=path, id="FileUnreadable")
    return Saved(path, verify)
