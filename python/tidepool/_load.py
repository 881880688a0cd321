"""Models of Hugging Face: created without memory; their weights go from files straight to the server."""

from __future__ import annotations

import dataclasses
import logging
import re
from typing import Any, Dict, Iterable, List, Mapping, Optional, Set, Tuple, Union

import torch
from torch import nn

from . import _check, _handle, _options
from ._meta import init
from ._options import DTypeLike
from ._safetensors import Directory
from .errors import UsageError

log = logging.getLogger("tidepool")


class Checkpoint:
    """Parameter values from safetensors files: maps a parameter's name to a tensor, valid until the next call."""

    def __init__(self, directory: Directory, names: Mapping[str, str]) -> None:
        self._directory = directory
        self._names = names  # tensor names in the files, by name of parameter or buffer
        self._last: Optional[str] = None

    def __call__(self, name: str) -> torch.Tensor:
        if self._last is not None:
            self._directory.forget(self._last)
        if name not in self._names:
            raise UsageError(
                f"the files have no weights for the parameter {name}", where=name, fix="give parameters that you add after loading real memory"
            )
        self._last = self._names[name]
        return self._directory.tensor(self._last)

    def shard(self, name: str) -> Tuple[int, int]:
        """The number of a parameter's file, from 1, and the number of files."""
        return self._directory.place(self._names[name]) if name in self._names else (0, 0)

    def prefetch(self, name: str) -> None:
        """Announces that the values are needed soon: the kernel reads them into the page cache in the background."""
        if name in self._names:
            self._directory.prefetch(self._names[name])


def checkpoint(path: str, model: nn.Module) -> Checkpoint:
    """The weights of any module, from a directory or file with its state dict's names. Errors: FileError, UsageError."""
    directory = Directory(path)
    names, why = match(model, directory)
    if names is None:
        raise UsageError(f"the weights in {path} do not fit the model", where=path, why=why)
    weights = Checkpoint(directory, names)
    _fill_buffers(model, weights, names)
    return weights


def from_pretrained(auto_class: Any, directory: str, *, dtype: Union[DTypeLike, str] = "auto", **options: Any) -> nn.Module:
    """Creates a model of transformers, wrapped, whose weights go to the server when its optimizer is made.

    The model is created without memory for its parameters. When the optimizer begins the job, the safetensors files are mapped and the
    parameters are sent to the server one by one, so that this process never holds the model; a resumed job reads no parameters. If names or
    shapes in the files differ from the model's (older formats, fused experts), transformers' own loader first reads it into host memory; a
    log line says so.

    Args:
        auto_class: a class of transformers, such as AutoModelForCausalLM or LlamaForCausalLM.
        directory: contains ``config.json`` and the safetensors files. Nothing is downloaded.
        dtype: of the model: "fp32", "bf16", a torch dtype, or "auto": that of the configuration, else of the files. As in transformers,
            parameters that the model makes in fp32 or names in ``_keep_in_fp32_modules_strict`` stay fp32 beside bf16.
        **options: those of :func:`tidepool.wrap`; all others go to the configuration.

    Returns the model in eval mode, like transformers: call ``model.train()`` for dropout.
    Errors: UsageError, FileError, and those of transformers.
    """
    own = {name: options.pop(name) for name in list(options) if name in _options.option_names()}
    config, rest = _config(auto_class, directory, options)
    files = Directory(str(directory))
    wanted = _dtype(dtype, config, files)
    wrap_options = _options.make(own)

    model = _made_empty(auto_class, config, wanted, rest)
    wrap_options = dataclasses.replace(wrap_options, keep_fp32=(*wrap_options.keep_fp32, *_kept_by_model(model, wanted)))
    names, why = match(model, files)
    if names is None:
        log.warning("%s is read by transformers, into host memory: %s", directory, why)
        model = auto_class.from_pretrained(directory, dtype=wanted, local_files_only=True, **options)
        _handle.wrap(model, wrap_options, None)
    else:
        weights = Checkpoint(files, names)
        _fill_buffers(model, weights, names)
        _load_generation_config(model, directory)
        _handle.wrap(model, wrap_options, weights)
    return model.eval()


def _config(auto_class: Any, directory: str, options: Dict[str, Any]) -> Tuple[Any, Dict[str, Any]]:
    """The configuration, and the keywords that do not belong to it."""
    from transformers import AutoConfig

    config_class = getattr(auto_class, "config_class", None) or AutoConfig
    config, rest = config_class.from_pretrained(directory, return_unused_kwargs=True, local_files_only=True, **options)
    if getattr(config, "quantization_config", None) is not None:
        raise UsageError("the weights are quantised", where=str(directory), fix="train a model whose weights are fp32, fp16 or bf16")
    return config, rest


def _dtype(asked: Union[DTypeLike, str], config: Any, files: Directory) -> torch.dtype:
    if asked == "auto":
        asked = getattr(config, "dtype", None)
        if asked is None:
            floating = [files.entry(name).dtype for name in files if files.entry(name).dtype.is_floating_point]
            asked = floating[0] if floating else torch.float32
    found = _options.dtype_of(asked)
    return torch.float32 if found is None else found


def _made_empty(auto_class: Any, config: Any, dtype: torch.dtype, rest: Dict[str, Any]) -> nn.Module:
    make = auto_class.from_config if hasattr(auto_class, "from_config") else auto_class._from_config
    with init():
        model: nn.Module = make(config, dtype=dtype, **rest)
    return model


def _kept_by_model(model: nn.Module, dtype: torch.dtype) -> List[str]:
    """Patterns of the parameters that transformers loads in fp32 into a model of this dtype."""
    if dtype is not torch.bfloat16:
        return []
    names = [name for name, _ in model.named_parameters(remove_duplicate=False)]
    return [pattern for pattern in _check.strict_patterns(model) if any(map(_check.name_matcher([pattern]), names))]


def _load_generation_config(model: Any, directory: str) -> None:
    if hasattr(model, "can_generate") and model.can_generate():
        from transformers import GenerationConfig

        try:
            model.generation_config = GenerationConfig.from_pretrained(directory, local_files_only=True)
        except OSError:
            pass  # none: the model makes its own from its configuration


def match(model: nn.Module, files: Directory) -> Tuple[Optional[Dict[str, str]], str]:
    """The name in the files of each parameter and persistent buffer, by each of its names in the model; or None and the reason.

    Names match as they are, or with the model's base_model_prefix added or removed. Of tied parameters one name is enough, and buffers may
    be missing.
    """
    in_model = named_tensors(model)
    found: Dict[str, str] = {}
    strange: List[str] = []
    for name in files:
        own = _own_name(name, in_model, getattr(model, "base_model_prefix", ""))
        if own is not None and own not in found:
            found[own] = name
        elif not _is_ignored(name, getattr(model, "_keys_to_ignore_on_load_unexpected", None)):
            strange.append(name)
    if strange:
        return None, f"the model has no parameter for {strange[0]}"
    for own, name in found.items():
        if files.entry(name).shape != tuple(in_model[own].shape):
            return None, f"{name} has the shape {list(files.entry(name).shape)}, and the model's is {list(in_model[own].shape)}"
    return _spread_ties(model, found)


def named_tensors(model: nn.Module) -> Dict[str, torch.Tensor]:
    """Parameters and persistent buffers by all of their names: the content of a state dict, without making one."""
    tensors: Dict[str, torch.Tensor] = dict(model.named_parameters(remove_duplicate=False))
    for prefix, module in model.named_modules(remove_duplicate=False):
        for name, buffer in module._buffers.items():
            if buffer is not None and name not in module._non_persistent_buffers_set:
                tensors[f"{prefix}.{name}" if prefix else name] = buffer
    return tensors


def _own_name(name: str, in_model: Mapping[str, torch.Tensor], prefix: str) -> Optional[str]:
    shorter = name[len(prefix) + 1 :] if prefix and name.startswith(prefix + ".") else name
    for candidate in (name, shorter, f"{prefix}.{name}"):
        if candidate in in_model:
            return candidate
    return None


def _is_ignored(name: str, patterns: Optional[Iterable[str]]) -> bool:
    return any(re.search(pattern, name) for pattern in patterns or ())


def _spread_ties(model: nn.Module, found: Dict[str, str]) -> Tuple[Optional[Dict[str, str]], str]:
    """Maps each name of a tied parameter to the one in the files."""
    names: Dict[int, List[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    for several in names.values():
        there: Set[str] = {found[name] for name in several if name in found}
        if not there:
            return None, f"the files have no weights for {several[0]}"
        if len(there) > 1:
            return None, f"the files have {' and '.join(sorted(there))}, which are one parameter of the model"
        found.update(dict.fromkeys(several, there.pop()))
    return found, ""


def _fill_buffers(model: nn.Module, weights: Checkpoint, names: Mapping[str, str]) -> None:
    parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    with torch.no_grad():
        for name, tensor in named_tensors(model).items():
            if name not in parameters and name in names:
                tensor.copy_(weights(name))
