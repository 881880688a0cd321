"""Requirements on a model to be trained, and the selection of its trained and frozen parameters."""

from __future__ import annotations

import dataclasses
import re
from typing import Callable, Dict, Iterable, List, Optional, Sequence, Tuple

import torch
from torch import nn

from ._options import Options, dtype_of
from .errors import UsageError

_WRAPPERS = ("DistributedDataParallel", "DataParallel", "FullyShardedDataParallel", "FSDPModule", "DeepSpeedEngine", "PipelineStage")
_CONVERTED = (torch.float64, torch.float32, torch.bfloat16, torch.float16)  # other types are quantised, or not numeric
_DIMENSIONS_MAX, _NAME_BYTES_MAX = 6, 255  # as in shm/spec/spec_limits.h


@dataclasses.dataclass(frozen=True)
class Member:
    """A parameter of the job: a leaf, trained if it requires a gradient, else frozen."""

    name: str  # its first name
    parameter: nn.Parameter
    multi_use: bool  # it has several names, or the user declared it

    @property
    def bytes(self) -> int:
        return self.parameter.numel() * self.parameter.element_size()


def check(model: nn.Module, options: Options, has_weights: bool) -> List[Member]:
    """The trained parameters, in order of registration. `has_weights`: the values of meta parameters come from elsewhere.

    Errors: UsageError, naming the problem and its location.
    """
    if not isinstance(model, nn.Module):
        raise UsageError(f"a {type(model).__name__} is not a torch.nn.Module", where="model")
    _refuse_wrappers(model)
    trained = trained_parameters(model, options.multi_use)
    for one in trained:
        _check_kind(one.name, one.parameter)
    for name, parameter in model.named_parameters():
        _check_not_lazy(name, parameter)
        if parameter.is_meta and not has_weights:
            raise UsageError(
                f"the parameter {name} is on the meta device, and nothing says what its values are",
                where=name,
                fix="give weights=: a directory, a safetensors file, or a function from a name to a tensor; or use tidepool.from_pretrained",
            )
    _check_dtypes(model, trained, options)
    _check_one_device(trained, options)
    _check_own_memory(model, trained)
    return trained


def trained_parameters(model: nn.Module, multi_use: Sequence[str] = ()) -> List[Member]:
    """The parameters with requires_grad. Errors: UsageError (none; unknown names in `multi_use`)."""
    names: Dict[int, List[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    unknown = set(multi_use) - {name for several in names.values() for name in several}
    if unknown:
        raise UsageError(f"the model has no parameter {', '.join(sorted(unknown))}", where="multi_use")
    trained = [
        Member(name, parameter, len(names[id(parameter)]) > 1 or any(each in multi_use for each in names[id(parameter)]))
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    ]
    if not trained:
        raise UsageError(
            "the model has no parameter that is trained",
            where=type(model).__name__,
            why="it has no parameters" if not names else "none of its parameters asks for a gradient",
            fix="call requires_grad_(True) on those that are to be trained",
        )
    return trained


def frozen_parameters(model: nn.Module) -> List[Member]:
    """The parameters without requires_grad that the job can hold: dense ones, of any type. Others stay in this process."""
    return [
        Member(name, parameter, False)
        for name, parameter in model.named_parameters()
        if not parameter.requires_grad
        and parameter.layout is torch.strided
        and parameter.is_contiguous()
        and parameter.numel() > 0
        and type(parameter.data) is torch.Tensor
    ]


def dtypes(model: nn.Module, members: Sequence[Member], options: Options) -> Dict[int, torch.dtype]:
    """The dtype of each parameter in the job, by id. Errors: UsageError (keep_fp32 matches nothing)."""
    wanted = dtype_of(options.dtype)
    kept = _kept_in_fp32(model, options.keep_fp32, strict=wanted is torch.bfloat16)
    placed: Dict[int, torch.dtype] = {}
    for one in members:
        own = one.parameter.dtype
        if own in _CONVERTED:
            own = torch.float32 if id(one.parameter) in kept else wanted or own
        placed[id(one.parameter)] = own
    return placed


def job_dtype(trained: Sequence[Member], placed: Dict[int, torch.dtype]) -> torch.dtype:
    """The dtype of the job: bf16 if any trained parameter is. Others are then fp32, in separate chunks."""
    return torch.bfloat16 if any(placed[id(one.parameter)] is torch.bfloat16 for one in trained) else torch.float32


def _kept_in_fp32(model: nn.Module, patterns: Sequence[str], strict: bool) -> Tuple[int, ...]:
    """Ids of the parameters that the caller names and, with `strict`, of those that the model keeps in fp32 in bf16 models too."""
    named = list(model.named_parameters(remove_duplicate=False))
    kept = set()
    for pattern in patterns:
        fits = name_matcher([pattern])
        found = [id(parameter) for name, parameter in named if fits(name)]
        if not found:
            raise UsageError(
                f"no parameter of the model has a name with {pattern} in it", where="keep_fp32", fix="give names as named_parameters() has them, or parts of them"
            )
        kept.update(found)
    if strict:
        fits = name_matcher(strict_patterns(model))
        kept.update(id(parameter) for name, parameter in named if fits(name))
    return tuple(kept)


def strict_patterns(model: nn.Module) -> List[str]:
    """Names that transformers keeps in fp32 in a bf16 model. (It applies `_keep_in_fp32_modules` to fp16 only.)"""
    return sorted({pattern for module in model.modules() for pattern in getattr(module, "_keep_in_fp32_modules_strict", None) or ()})


def name_matcher(patterns: Iterable[str]) -> Callable[[str], bool]:
    """Matches names as transformers does: regular expressions that may match anywhere, where * stands for any text."""
    fits = [re.compile(pattern.replace("*", ".*")) for pattern in patterns]
    return lambda name: any(each.search(name) for each in fits)


def _refuse_wrappers(model: nn.Module) -> None:
    for name, module in model.named_modules():
        for kind in type(module).__mro__:
            if kind.__name__ in _WRAPPERS:
                raise UsageError(
                    f"the model is wrapped by {kind.__name__}",
                    where=name or type(model).__name__,
                    why="it moves weights and gradients itself; so does Tidepool, between the ranks too",
                    fix="hand over the plain module, and start the ranks with `python -m tidepool.launch` or torchrun",
                )


def _check_not_lazy(name: str, parameter: nn.Parameter) -> None:
    if nn.parameter.is_lazy(parameter):
        raise UsageError(
            f"the parameter {name} has no shape yet", where=name, why="its module is a lazy one", fix="run one forward before you wrap the model"
        )


def _check_kind(name: str, parameter: nn.Parameter) -> None:
    _check_not_lazy(name, parameter)
    if type(parameter.data) is not torch.Tensor:
        raise UsageError(
            f"the parameter {name} is a {type(parameter.data).__name__}",
            where=name,
            why="a job's parameters are plain dense tensors, whole on each rank",
            fix="hand over the model before it is distributed or quantised",
        )
    if parameter.layout is not torch.strided:
        raise UsageError(f"the parameter {name} is sparse", where=name, why="a job's parameters are dense", fix="use to_dense()")
    if not parameter.is_contiguous():
        raise UsageError(f"the parameter {name} is not contiguous", where=name, fix="set p.data = p.data.contiguous() before you wrap the model")
    if parameter.numel() == 0:
        raise UsageError(f"the parameter {name} has no elements", where=name, fix="call requires_grad_(False) on it")
    if parameter.dim() > _DIMENSIONS_MAX:
        raise UsageError(
            f"the parameter {name} has {parameter.dim()} dimensions, and the server takes {_DIMENSIONS_MAX}",
            where=name,
            fix="train one of a flatter shape, and view it in forward",
        )
    if len(name.encode()) > _NAME_BYTES_MAX:
        raise UsageError(f"the name of a parameter has {len(name.encode())} bytes, and the server takes {_NAME_BYTES_MAX}", where=name)
    if not parameter.is_floating_point():
        raise UsageError(f"the parameter {name} is {parameter.dtype}", where=name, why="only floating-point parameters can be trained")


def _check_dtypes(model: nn.Module, trained: Sequence[Member], options: Options) -> None:
    placed = dtypes(model, trained, options)
    for one in trained:
        if placed[id(one.parameter)] not in (torch.float32, torch.bfloat16):
            raise UsageError(
                f"the parameter {one.name} is {one.parameter.dtype}, which cannot be trained",
                where=one.name,
                why="trained parameters are fp32 or bf16; fp16 would need a loss scale that changes with the steps",
                fix='give dtype="bf16", to which all are converted, or freeze it',
            )


def _check_one_device(trained: Sequence[Member], options: Options) -> None:
    real = [one for one in trained if not one.parameter.is_meta]
    for one in real:
        if one.parameter.device != real[0].parameter.device:
            raise UsageError(
                f"trained parameters are on several devices: {real[0].name} on {real[0].parameter.device}, "
                f"{one.name} on {one.parameter.device}",
                where=one.name,
                fix="load the model on the CPU; the server brings its weights to the device",
            )
        if one.parameter.device.type not in ("cpu", options.device_type):
            raise UsageError(
                f"the parameter {one.name} is on {one.parameter.device}, and the job computes on {options.device}",
                where="device",
                fix='give device="cuda", or move the model to the CPU',
            )


def _check_own_memory(model: nn.Module, trained: Sequence[Member]) -> None:
    """Checks that member parameters overlap no other parameter or buffer: the job moves each separately."""
    asked = {id(one.parameter) for one in trained}
    spans: Dict[int, List[Span]] = {}
    everything = [(name, tensor) for name, tensor in model.named_parameters()] + [(name, tensor) for name, tensor in model.named_buffers()]
    for name, tensor in everything:
        if tensor.is_meta or type(tensor.data) is not torch.Tensor or tensor.layout is not torch.strided or tensor.numel() == 0:
            continue
        storage = tensor.untyped_storage()
        begin = tensor.storage_offset() * tensor.element_size()
        extent = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
        spans.setdefault(storage._cdata, []).append(Span(begin, begin + extent * tensor.element_size(), name, id(tensor) in asked))
    for shared in spans.values():
        _refuse_overlap(sorted(shared))


@dataclasses.dataclass(frozen=True, order=True)
class Span:
    """The bytes of a storage that a tensor covers."""

    begin: int
    end: int
    name: str
    is_trained: bool


def _refuse_overlap(spans: Sequence[Span]) -> None:
    reach: Optional[Span] = None  # the span with the latest end so far
    for span in spans:
        if reach is not None and span.begin < reach.end and (span.is_trained or reach.is_trained):
            raise UsageError(
                f"{reach.name} and {span.name} share memory, and are not the same parameter",
                where=span.name,
                why="each is trained on its own, so that a change of one would not show in the other",
                fix="tie them by the same Parameter object (a.weight = b.weight), or give one its own memory: nn.Parameter(p.clone())",
            )
        if reach is None or span.end > reach.end:
            reach = span
