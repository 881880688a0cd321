"""Writes states in the format of torch.distributed.checkpoint (DCP), and reads them tensor by tensor."""

from __future__ import annotations

import os
from typing import Any, Dict, List, Optional, Tuple, Union

import torch

from ._states import MASTER, Saved, States
from .errors import FileError, UsageError

_MOMENTS = {1: "exp_avg", 2: "exp_avg_sq"}
_CODES = 127.0
_ROOT_CODES = 255.0
_BLOCK = 32


def export_dcp(checkpoint: Union[str, "os.PathLike[str]"], directory: Union[str, "os.PathLike[str]"]) -> str:
    """Writes the states of a checkpoint in the format of torch.distributed.checkpoint, so that plain torch can continue from them.

    In a folder it takes the newest whole checkpoint. ``model.NAME`` holds the fp32 weights; ``optim.state.NAME.exp_avg``, ``.exp_avg_sq``
    and ``.step`` hold the states of torch's AdamW in fp32 (8-bit moments are decoded). ``get_state_dict(model, optimizer)`` of
    ``torch.distributed.checkpoint.state_dict`` returns the same under the keys ``model`` and ``optim``. ``optim.param_groups`` is left
    out: learning rates and decays belong to the program. The files are mapped, so that memory holds no second copy of the states.

    Returns the path of the checkpoint. Errors: FileError, UsageError (the directory already contains a checkpoint of torch).
    """
    from torch.distributed import checkpoint as dcp

    states, to = Saved(os.fspath(checkpoint)), os.fspath(directory)
    if os.path.exists(os.path.join(to, ".metadata")):
        raise UsageError("the directory has a checkpoint of torch's already", where=to, fix="name another directory, or remove it")
    step = torch.tensor(float(states.step["optimizer_step"]))
    model: Dict[str, torch.Tensor] = {}
    optim: Dict[str, Dict[str, torch.Tensor]] = {}
    for name in states.names():
        master = states.tensor(name, MASTER)
        assert master is not None
        model[name] = master
        optim[name] = {"step": step, **{_MOMENTS[plane]: value for plane in _MOMENTS if (value := _decoded(states, name, plane)) is not None}}
    try:
        dcp.save({"model": model, "optim": {"state": optim}}, storage_writer=dcp.FileSystemWriter(to), no_dist=True)
        _sync(to)
    except OSError as error:
        raise FileError(f"{to} cannot be written: {error.strerror}", where=to, id="SaveFailed") from error
    return states.path


def _sync(directory: str) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _decoded(states: Saved, name: str, plane: int) -> Optional[torch.Tensor]:
    """A moment in fp32; optim/state_forms.h defines the codes."""
    found = states.tensor(name, plane)
    if found is None or found.dtype not in (torch.int8, torch.uint8):
        return None if found is None else found.to(torch.float32)
    scales = states.tensor(name, plane + 2)
    assert scales is not None
    scale = scales.repeat_interleave(_BLOCK)[: found.numel()].reshape(found.shape)
    if plane == 2:
        root = found.to(torch.float32) * (scale * (1.0 / _ROOT_CODES))
        return torch.where(found == 0, torch.zeros_like(root), root * root)
    z = found.to(torch.float32) * (1.0 / _CODES)
    return torch.where(found == 0, torch.zeros_like(z), z / (2.0 - z.abs()) * scale)


class Distributed(States):
    """A directory of torch.distributed.checkpoint, from any writer: `model.NAME` or `NAME`, and `...NAME.exp_avg`. Errors: FileError, UsageError."""

    def __init__(self, path: str) -> None:
        from torch.distributed import checkpoint as dcp

        self.path = path
        try:
            self._about: Dict[str, Any] = dict(dcp.FileSystemReader(path).read_metadata().state_dict_metadata)
        except (OSError, ValueError, EOFError, AttributeError) as error:
            raise FileError(f"{path} cannot be read", where=path, why=str(error), id="FileUnreadable") from error
        self._keys: Dict[Tuple[str, int], str] = {}
        version = int(self._newest_step())
        if version < 1:
            raise UsageError("the checkpoint has no step of an optimizer", where=path, why="no tensor or number is called ....step", fix="load its weights alone")
        self.step = {"version": version, "optimizer_step": version, "data_cursor": 0, "random_state": 0, "scaler_steps": 0, "loss_scale": 1.0}

    def tensor(self, name: str, plane: int) -> Optional[torch.Tensor]:
        key = self._key(name, plane)
        return None if key is None else self._read(key)

    def _key(self, name: str, plane: int) -> Optional[str]:
        if plane > 2:
            return None
        wanted = name if plane == MASTER else f"{name}.{_MOMENTS[plane]}"
        if wanted in self._about:
            return wanted
        ends = [key for key in self._about if key.endswith("." + wanted)]
        if plane == MASTER:  # excludes modules with a longer name
            ends = [key for key in ends if key[: -len(wanted) - 1] in ("model", "state_dict", "module", "app.model")] or ends
        return min(ends, key=len) if ends else None

    def _read(self, key: str) -> torch.Tensor:
        from torch.distributed import checkpoint as dcp

        about = self._about[key]
        into = {key: torch.empty(about.size, dtype=about.properties.dtype)}
        dcp.load(into, storage_reader=dcp.FileSystemReader(self.path), no_dist=True)
        return into[key]

    def _newest_step(self) -> float:
        """The number of optimizer steps; 0: none. Torch counts them per parameter. Errors: UsageError (the counts differ)."""
        steps: List[float] = [float(self._read(key)) for key, about in self._about.items() if key.endswith(".step") and hasattr(about, "properties")]
        if steps and min(steps) != max(steps):
            raise UsageError(
                f"the parameters of the checkpoint have from {min(steps):.0f} to {max(steps):.0f} steps",
                where=self.path,
                why="a job begins behind one step of all of its parameters",
            )
        return steps[0] if steps else 0.0
