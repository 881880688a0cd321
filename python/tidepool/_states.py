"""Sources of the states of a new job: a checkpoint, a directory of torch.distributed.checkpoint, or one of transformers' Trainer."""

from __future__ import annotations

import json
import os
import pickle
import re
import struct
from typing import Any, Dict, Iterator, List, Optional, Set, Tuple

import torch
from torch import nn

from . import _library
from ._safetensors import Directory, Reader
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


# Trainer's rules of which parameters decay: names with one of these words do not, nor does what lies in a norm of these types.
_NO_DECAY_WORDS = re.compile(r"bias|layernorm|rmsnorm|(?:^|\.)norm(?:$|\.)|_norm(?:$|\.)")
_OPTIMIZER_FILE, _TRAINER_FILE = "optimizer.pt", "trainer_state.json"


class OfTrainer(States):
    """A checkpoint of transformers' Trainer: safetensors weights, and optimizer.pt, which names its parameters by number alone.

    The numbers are those of Trainer's parameter groups: first the parameters that decay, then the others, each in the order of the model.
    Errors: FileError, UsageError (numbers that fit no such order, or more than one; another optimizer than Adam or AdamW).
    """

    def __init__(self, path: str, model: nn.Module) -> None:
        self.path = path
        self._weights = Directory(path)
        if not list(self._weights):
            raise FileError(f"{path} has no weights in safetensors files", where=path, fix="save with save_safetensors=True", id="FileUnreadable")
        file = os.path.join(path, _OPTIMIZER_FILE)
        saved = _unpickled(file)
        states, groups = saved.get("state"), saved.get("param_groups")
        if not isinstance(states, dict) or not isinstance(groups, list) or not all("exp_avg" in of_one for of_one in states.values()):
            raise UsageError(
                "the optimizer of the checkpoint is no AdamW or Adam of torch", where=file, why="it holds no exp_avg", fix="load its weights alone"
            )
        self._states = {name: states[number] for name, number in _numbered(model, groups, states, file).items() if number in states}
        taken = sorted({int(of_one["step"]) for of_one in self._states.values()})
        if len(taken) != 1 or len(self._states) != len(states):
            raise UsageError(
                f"the parameters of the checkpoint have from {taken[0] if taken else 0} to {taken[-1] if taken else 0} steps",
                where=file,
                why="a job begins behind one step of all of its parameters",
            )
        version = max(taken[0], _global_step(path))
        self.step = {"version": version, "optimizer_step": taken[0], "data_cursor": 0, "random_state": 0, "scaler_steps": 0, "loss_scale": 1.0}

    def tensor(self, name: str, plane: int) -> Optional[torch.Tensor]:
        if plane == MASTER:
            return self._weights.tensor(name) if name in self._weights else None
        found = self._states.get(name, {}).get(_SUFFIXES[plane][1:])
        return found if isinstance(found, torch.Tensor) else None

    def forget(self, name: str) -> None:
        if name in self._weights:
            self._weights.forget(name)


def _unpickled(file: str) -> Dict[str, Any]:
    """The file's dictionary, its tensors mapped; pickled code is refused. Errors: FileError."""
    try:
        saved = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    except (OSError, ValueError, RuntimeError, EOFError, KeyError, pickle.UnpicklingError) as error:
        raise FileError(f"{file} is damaged, or holds more than tensors", where=file, why=str(error).split("\n", 1)[0], id="FileUnreadable") from error
    if not isinstance(saved, dict):
        raise FileError(f"{file} holds no state dict", where=file, id="FileUnreadable")
    return saved


def _global_step(path: str) -> int:
    """Trainer's count of steps; 0: not recorded. Steps that an overflow has skipped count too."""
    file = os.path.join(path, _TRAINER_FILE)
    if not os.path.exists(file):
        return 0
    try:
        with open(file, encoding="utf-8") as opened:
            return int(json.load(opened)["global_step"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FileError(f"{file} cannot be read", where=file, why=str(error), id="FileUnreadable") from error


def _numbered(model: nn.Module, groups: List[Dict[str, Any]], states: Dict[int, Any], file: str) -> Dict[str, int]:
    """The number of each parameter, by name. Errors: UsageError."""
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters() if parameter.requires_grad}
    numbers = [number for group in groups for number in group["params"]]
    if all("param_names" in group for group in groups):
        return dict(zip((name for group in groups for name in group["param_names"]), numbers))
    found: List[Dict[str, int]] = []
    for names in _orders(model, list(shapes), [len(group["params"]) for group in groups]):
        pairs = dict(zip(names, numbers))
        if pairs not in found and all(tuple(states[number]["exp_avg"].shape) == shapes[name] for name, number in pairs.items() if number in states):
            found.append(pairs)
    if len(found) == 1:
        return found[0]
    raise UsageError(
        "which parameter a number of the optimizer means is not clear",
        where=file,
        why="no order of Trainer's parameters has these shapes" if not found else "several orders of Trainer's parameters have these shapes",
        fix="give the model that was trained; or load the weights alone",
    )


def _orders(model: nn.Module, names: List[str], sizes: List[int]) -> Iterator[List[str]]:
    """The orders in which releases of transformers give the parameters to an optimizer with groups of these sizes."""
    if sizes == [len(names)]:
        yield names
    if len(sizes) != 2:
        return
    in_norms: Set[str] = {
        f"{prefix}.{name}" for prefix, module in model.named_modules() for name in module._parameters if isinstance(module, nn.LayerNorm)
    }
    all_norms: Set[str] = in_norms | {
        f"{prefix}.{name}" for prefix, module in model.named_modules() for name in module._parameters if type(module).__name__.endswith("RMSNorm")
    }
    for still in (
        {name for name in names if name in in_norms or _NO_DECAY_WORDS.search(name.lower())},  # by names, from 4.49 on
        {name for name in names if name in all_norms or "bias" in name},  # by types, before
    ):
        ordered = [name for name in names if name not in still] + [name for name in names if name in still]
        if sizes == [len(names) - len(still), len(still)]:
            yield ordered


def _newest_of_trainer(path: str) -> Optional[str]:
    """`path` if it is a checkpoint of Trainer's, else the newest one in it; None: there is none."""
    if os.path.exists(os.path.join(path, _OPTIMIZER_FILE)):
        return path
    found = [int(name[11:]) for name in os.listdir(path) if re.fullmatch(r"checkpoint-[0-9]+", name)]
    whole = [step for step in found if os.path.exists(os.path.join(path, f"checkpoint-{step}", _OPTIMIZER_FILE))]
    return os.path.join(path, f"checkpoint-{max(whole)}") if whole else None


def open_states(path: str, verify: bool, model: nn.Module) -> States:
    """The states at `path`: a checkpoint, a folder of them (the newest whole one), or a directory of torch.distributed.checkpoint or Trainer. Errors: FileError."""
    if os.path.exists(os.path.join(path, ".metadata")):
        from ._dcp import Distributed

        return Distributed(path)
    if not os.path.isdir(path):
        raise FileError(f"{path} cannot be read: there is no such directory", where=path, id="FileUnreadable")
    of_trainer = _newest_of_trainer(path)
    return Saved(path, verify) if of_trainer is None else OfTrainer(of_trainer, model)
