"""Checkpoints: saves all states of a job at a step while it trains, and begins a new job from them."""

from __future__ import annotations

import dataclasses
import json
import os
import tempfile
from typing import Any, Dict, Set, Union

import torch
from torch import nn

from . import _handle
from ._library import program_path
from ._safetensors import Reader, write
from ._save import save_configuration
from ._states import open_states
from .errors import UsageError

_EXTRA = "extra.json"
_BUFFERS = "buffers.safetensors"


@dataclasses.dataclass(frozen=True)
class Loaded:
    """The result of :func:`load`: the checkpoint, and the step after which the job begins."""

    path: str
    step: int
    extra: Any  # the `extra` given to :func:`save`; None: there was none


def save(model: nn.Module, folder: Union[str, "os.PathLike[str]"], *, keep: int = 0, extra: Any = None, wait: bool = True) -> str:
    """Writes all states of the last sealed step: fp32 weights, moments, and the step, to FOLDER/step-00000300.

    Call it on rank 0; other ranks may call it too: there it does nothing and returns the same path. A separate process writes the files.
    With ``wait=False`` training continues meanwhile, and :func:`saved` waits for the end. A checkpoint is written completely or not at
    all, even if the power fails. ``memctl checkpoint`` lists, verifies and prunes checkpoints.

    Args:
        folder: the folder of checkpoints; created if it does not exist.
        keep: the number of newest checkpoints to keep; 0: all.
        extra: a JSON-serializable value with further state of the program (schedulers, data).
        wait: whether to return only when the checkpoint is on the drive.

    Frozen parameters are not saved, because they do not change. Persistent buffers and the configuration of a transformers model are.
    Returns the path. Errors: FileError (disk full, permission denied, the writer died), UsageError, those of a job.
    """
    handle = _handle.of_model(model)
    path = os.path.join(os.fspath(folder), f"step-{int(handle.call('version')):08d}")
    if handle.rank != 0:
        return path
    with tempfile.TemporaryDirectory(prefix="tidepool-save-") as files:
        _describe(model, files, extra)
        handle.call("begin_checkpoint", os.fspath(folder), int(keep), program_path("tidepool-checkpoint"), files)
    if wait:
        handle.call("finish_checkpoint")
    return path


def saved(model: nn.Module) -> None:
    """Waits until the last checkpoint begun by :func:`save` is on the drive. Errors: FileError (it could not be written)."""
    handle = _handle.of_model(model)
    if handle.rank == 0:
        handle.call("finish_checkpoint")


def load(model: nn.Module, path: Union[str, "os.PathLike[str]"]) -> Loaded:
    """Makes the job of a wrapped model begin after the step of a checkpoint. Call it on every rank, before you make the optimizer.

    The optimizer then begins the job with these weights and moments instead of the model's own, on any number of ranks. A job that the
    server still holds (``resume="auto"``) continues unchanged; ``optimizer.sealed_steps`` is its step. Saved buffers are copied into the
    model now. Rank 0 first verifies the checksums of all files.

    Args:
        path: a checkpoint, a folder of them (the newest whole one), a directory of torch.distributed.checkpoint that holds the
            states of torch's AdamW, or a checkpoint of transformers' Trainer (or its output directory: the newest one there).

    Returns the path, the step and the extra value. Errors: FileError (names file and tensor), UsageError (another model or optimizer).
    """
    handle = _handle.of_model(model)
    if handle.state != "wrapped":
        raise UsageError("the job of this model has begun already", fix="load the checkpoint before you make the optimizer")
    states = open_states(os.fspath(path), verify=int(os.environ.get("RANK", 0)) == 0, model=model)
    handle.checkpoint = states
    _take_buffers(model, states.files)
    return Loaded(path=states.path, step=int(states.step["version"]), extra=_extra(states.files))


def _describe(model: nn.Module, files: str, extra: Any) -> None:
    save_configuration(model, files)
    if extra is not None:
        try:
            text = json.dumps(extra)
        except (TypeError, ValueError) as error:
            raise UsageError("extra cannot be written as JSON", where="extra", why=str(error)) from None
        with open(os.path.join(files, _EXTRA), "w", encoding="utf-8") as file:
            file.write(text)
    buffers = _buffers(model)
    if buffers:
        about = {name: (buffer.dtype, tuple(buffer.shape)) for name, buffer in buffers.items()}
        write(os.path.join(files, _BUFFERS), about, buffers.values())


def _buffers(model: nn.Module) -> Dict[str, torch.Tensor]:
    """The persistent buffers by name, each buffer once."""
    found: Dict[str, torch.Tensor] = {}
    seen: Set[int] = set()
    for prefix, module in model.named_modules():
        for name, buffer in module._buffers.items():
            if buffer is not None and name not in module._non_persistent_buffers_set and id(buffer) not in seen:
                seen.add(id(buffer))
                found[f"{prefix}.{name}" if prefix else name] = buffer
    return found


def _take_buffers(model: nn.Module, files: str) -> None:
    path = os.path.join(files, _BUFFERS)
    if not files or not os.path.exists(path):
        return
    reader = Reader(path)
    with torch.no_grad():
        for name, buffer in _buffers(model).items():
            if name not in reader.entries or reader.entries[name].shape != tuple(buffer.shape):
                raise UsageError("the checkpoint has no such buffer of this shape", where=f"{path}, {name}", fix="give a checkpoint of this model")
            buffer.copy_(reader.tensor(name))


def _extra(files: str) -> Any:
    path = os.path.join(files, _EXTRA)
    if not files or not os.path.exists(path):
        return None
    with open(path, encoding="utf-8") as file:
        return json.load(file)
