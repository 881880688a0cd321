"""Saves a model as a directory that transformers, and readers of safetensors, can load."""

from __future__ import annotations

import os
from typing import Any, Dict, Iterator, Set, Tuple, Union

import torch
from torch import nn

from . import _handle
from ._load import named_tensors
from ._safetensors import write
from .errors import FileError
from .experts import Stacked, as_fused


def save_pretrained(model: nn.Module, directory: Union[str, "os.PathLike[str]"]) -> None:
    """Writes ``model.safetensors``, each parameter in its dtype in the job, and the model's configuration, if it has one.

    Collective: all ranks call it, and rank 0 writes. Parameters are gathered and written one by one, so that no process holds the model. An
    existing file is replaced when the new one is complete and on the drive. Experts that were cut are written as transformers has them, a
    layer's at a time. Tied parameters are written once, under the name that comes
    first in ``model.named_parameters()``; frozen parameters and persistent buffers are written too.

    Errors: FileError (no space, no permission; on rank 0 only), UsageError (the model has no weights yet), those of a job.
    """
    handle = _handle.of_model(model)
    tensors = _saved(model)
    values = (_value(handle, name, tensor) for name, tensor in tensors.items())
    try:
        if handle.rank == 0:
            _write(model, os.fspath(directory), tensors, values)
    except FileError:
        _drain(values)
        raise
    _drain(values)


def _drain(values: Iterator[torch.Tensor]) -> None:
    """Takes part in the remaining gathers, on ranks that write nothing or have stopped writing."""
    for _ in values:
        pass


def _saved(model: nn.Module) -> Dict[str, Union[torch.Tensor, Stacked]]:
    """The tensors to save, by name, each once."""
    left_out = set(getattr(model, "_keys_to_ignore_on_save", None) or ())
    saved: Dict[str, torch.Tensor] = {}
    seen: Set[int] = set()
    for name, tensor in named_tensors(model).items():
        if name not in left_out and id(tensor) not in seen:
            saved[name] = tensor
            seen.add(id(tensor))
    return as_fused(model, saved)


def _value(handle: _handle.Handle, name: str, tensor: Union[torch.Tensor, Stacked]) -> torch.Tensor:
    if isinstance(tensor, Stacked):
        return torch.stack([handle.values(each, parameter) for each, parameter in tensor.parts.items()])
    return handle.values(name, tensor) if isinstance(tensor, nn.Parameter) else tensor


def _write(model: nn.Module, directory: str, tensors: Dict[str, Union[torch.Tensor, Stacked]], values: Iterator[torch.Tensor]) -> None:
    about: Dict[str, Tuple[torch.dtype, Tuple[int, ...]]] = {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()}
    try:
        os.makedirs(directory, exist_ok=True)
        write(os.path.join(directory, "model.safetensors"), about, values)
        save_configuration(model, directory)
    except OSError as error:
        raise FileError(f"{directory} cannot be written: {error.strerror}", where=directory, id="SaveFailed") from error


def _main_dtype(model: nn.Module) -> torch.dtype:
    """The floating type of most weights: a model may also have some in fp32, and quantised ones."""
    counts: Dict[torch.dtype, int] = {}
    for parameter in model.parameters():
        if parameter.is_floating_point():
            counts[parameter.dtype] = counts.get(parameter.dtype, 0) + parameter.numel()
    return max(counts, key=lambda dtype: counts[dtype], default=torch.float32)


def save_configuration(model: Any, directory: str) -> None:
    """Writes the configuration of a transformers model; nothing for other models."""
    config = getattr(model, "config", None)
    if not hasattr(config, "save_pretrained"):
        return
    config.architectures = [type(model).__name__]
    config.dtype = str(_main_dtype(model)).rpartition(".")[2]
    config.save_pretrained(directory)
    if hasattr(model, "can_generate") and model.can_generate() and getattr(model, "generation_config", None) is not None:
        model.generation_config.save_pretrained(directory)
