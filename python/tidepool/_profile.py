"""Profiles one training step before any weight is needed: runs the model's own code, forward and backward, on tensors without values.

A copy of the model runs on FakeTensors, which have shapes but no memory, while the op library records operators, gradients and bytes, as
for the built-in GPT. The model itself, its buffers and the states of random generators stay unchanged; its forward hooks are copied with
it, and run once more.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import json
import logging
import random
import sys
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode

from . import _check
from ._library import new_profile
from .errors import UsageError

log = logging.getLogger("tidepool")


@dataclasses.dataclass(frozen=True)
class Profile:
    """Results for a step of one micro-batch. Parameters are numbered like the profiled members."""

    native: Any  # for the native job's foresee
    order: Tuple[int, ...]  # of first use
    again: Tuple[int, ...]  # used after their gradients
    activation_bytes: int  # peak, without parameters and inputs
    input_bytes: int
    own_inputs: bool  # False: the inputs are transformers' dummies, whose size is meaningless


@dataclasses.dataclass(frozen=True)
class Inputs:
    """The arguments of forward."""

    positional: Tuple[Any, ...]
    named: Dict[str, Any]
    own: bool = True


def inputs_of(model: nn.Module, example: Any) -> Optional[Inputs]:
    """`example`, or the dummy_inputs of a model of transformers; None if there are none. Errors: UsageError."""
    if isinstance(example, Mapping):
        return Inputs((), {str(name): value for name, value in example.items()})
    if isinstance(example, (tuple, list)):
        return Inputs(tuple(example), {})
    if isinstance(example, torch.Tensor):
        return Inputs((example,), {})
    if example is not None:
        raise UsageError(
            f"example is a {type(example).__name__}",
            where="example",
            fix="give what forward is called with: a mapping of keyword arguments, a tuple, or one tensor",
        )
    if not any(kind.__name__ == "PreTrainedModel" for kind in type(model).__mro__):
        return None
    dummy = getattr(model, "dummy_inputs", None)
    if not isinstance(dummy, Mapping) or getattr(model, "main_input_name", None) not in dummy:
        return None
    return Inputs((), dict(dummy), own=False)


def profile(
    model: nn.Module, inputs: Optional[Inputs], members: Sequence[_check.Member], dtypes: Mapping[int, torch.dtype], checkpointing: Optional[bool] = None
) -> Optional[Profile]:
    """Profiles a training step on these inputs; None, with a log line, if an operator cannot run without values.

    `members`: the job's parameters, in its order; `dtypes`: their dtypes in the job, by id. `checkpointing`: switches that of transformers'
    models on or off for the profile; None: as the model is.
    """
    if inputs is None:
        return None
    operators = _Operators()
    try:
        found = _run(model, inputs, members, dtypes, operators, checkpointing)
    except Exception as error:  # any error of the model's code on tensors without values
        level = logging.WARNING if inputs.own else logging.INFO
        first = next(iter(str(error).splitlines()), "")
        log.log(
            level,
            "%s cannot be profiled, and is packed in the order of registration: %s: %s: %s",
            type(model).__name__,
            f"at the operator {operators.failed}, on tensors without values" if operators.failed else "its code, on tensors without values",
            type(error).__name__,
            first[:200],
        )
        return None
    if not inputs.own:
        log.info("%s is packed in the order of use that its dummy_inputs show; example= would say more", type(model).__name__)
    return found


def can_checkpoint(model: nn.Module) -> bool:
    """Whether the profile may switch gradient checkpointing: models of transformers that support it."""
    return bool(getattr(model, "supports_gradient_checkpointing", False)) and hasattr(model, "gradient_checkpointing_enable")


def _run(
    model: nn.Module, inputs: Inputs, members: Sequence[_check.Member], dtypes: Mapping[int, torch.dtype], operators: "_Operators", checkpointing: Optional[bool]
) -> Profile:
    native = operators.native = new_profile()
    try:
        with _undisturbed():
            mode = FakeTensorMode(allow_fallback_kernels=False, allow_non_fake_inputs=True)
            twin, stand_ins = _twin(model, mode, dtypes)
            _set_mode(twin, checkpointing)
            native.model_made()
            positional, named = _pytree.tree_map(_Faker(mode), (inputs.positional, inputs.named))
            with mode:
                watched = [stand_ins[id(one.parameter)] for one in members]
                native.watch(watched, [index for index, one in enumerate(members) if one.multi_use])
                with operators:
                    _loss_of(twin(*positional, **named)).backward()
            about = json.loads(native.finish())
            if not inputs.own:
                native.forget_sizes()
    finally:
        native.stop()
    if about["read"] == 0:
        raise RuntimeError("the forward reads no parameter of the job")
    return Profile(native, tuple(about["order"]), tuple(about["again"]), about["activation_bytes"], about["buffer_bytes"], inputs.own)


class _Operators(TorchDispatchMode):
    """Tells the recorder when operators end, and records the operator in which an exception occurred."""

    def __init__(self) -> None:
        super().__init__()
        self.failed = ""
        self.native: Any = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # torch infers this one's shapes only for bf16.
        is_other = func is torch.ops.aten._grouped_mm.default and args[0].dtype is not torch.bfloat16
        try:
            if _adds_in_place(func, args, kwargs):
                result = args[0].add_(args[1])
            else:
                result = (_grouped_product if is_other else func)(*args, **(kwargs or {}))
            self.native.operator_ended()
            return result
        except Exception:
            self.failed = self.failed or str(func)
            raise


def _adds_in_place(func: Any, args: Any, kwargs: Any) -> bool:
    """Whether backward would add the second gradient of a tensor to the first one, which nobody else holds: it never does so under a mode."""
    if func is not torch.ops.aten.add.Tensor or kwargs or len(args) != 2:
        return False
    if torch._C._current_graph_task_id() == -1 or torch.is_grad_enabled():
        return False
    first, second = args
    if not isinstance(second, torch.Tensor) or first.size() != second.size() or first.dtype != second.dtype:
        return False
    storage = first.untyped_storage()
    is_dense = first.numel() * first.element_size() <= storage.nbytes()
    held_here = 2  # by the tensor, and by the line above
    return is_dense and torch._C._storage_Use_Count(storage._cdata) == held_here


def _grouped_product(left: torch.Tensor, right: torch.Tensor, offs: Optional[torch.Tensor] = None, *_: Any, **__: Any) -> torch.Tensor:
    """A matrix product per group of rows, as in experts: its shape."""
    groups = [offs.numel()] if offs is not None and left.dim() == right.dim() == 2 else []
    if left.dim() == right.dim() == 3:
        groups = [left.size(0)]
    return left.new_empty([*groups, left.size(-2), right.size(-1)])


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Restores random generators and autograd settings, whatever the model's code does within."""
    numpy = sys.modules.get("numpy")
    state, numpy_state = random.getstate(), numpy.random.get_state() if numpy is not None else None
    told = logging.getLogger("torch._subclasses.fake_tensor")
    was_disabled, told.disabled = told.disabled, True  # it logs a traceback for each failing operator
    try:
        settings = contextlib.ExitStack()
        settings.enter_context(torch.random.fork_rng(devices=[]))
        settings.enter_context(torch.enable_grad())
        settings.enter_context(torch.autograd.set_multithreading_enabled(False))
        # Compiled parts run uncompiled: torch would otherwise mark their code, which the model shares, as not to be compiled.
        settings.enter_context(torch.compiler.set_stance("force_eager"))
        with settings:
            yield
    finally:
        told.disabled = was_disabled
        random.setstate(state)
        if numpy is not None:
            numpy.random.set_state(numpy_state)


def _twin(model: nn.Module, mode: FakeTensorMode, dtypes: Mapping[int, torch.dtype]) -> Tuple[nn.Module, Dict[int, torch.Tensor]]:
    """A copy of the model whose tensors have no values, and its parameters by the model's parameter ids."""
    stand_ins: Dict[int, Any] = {}
    for tensor in _tensors_of(model):
        if id(tensor) in stand_ins:
            continue
        with mode:
            empty = torch.empty_strided(tensor.size(), tensor.stride(), dtype=dtypes.get(id(tensor), tensor.dtype), device="cpu")
        if isinstance(tensor, nn.Parameter):
            empty = nn.Parameter(empty, tensor.requires_grad)
            empty.__dict__.update(tensor.__dict__)
        stand_ins[id(tensor)] = empty
    # The memo maps objects to their copies, and keeps both alive.
    twin: nn.Module = copy.deepcopy(model, dict(stand_ins))
    return twin, stand_ins


def _tensors_of(model: nn.Module) -> Iterator[torch.Tensor]:
    """Parameters, buffers, and tensors stored as plain attributes of modules."""
    yield from model.parameters()
    yield from model.buffers()
    for module in model.modules():
        yield from (value for value in vars(module).values() if isinstance(value, torch.Tensor))


def _set_mode(twin: nn.Module, checkpointing: Optional[bool]) -> None:
    if not twin.training:
        twin.train()  # the profile is of a training step
    for module in twin.modules():  # a model without weights refuses forward
        for key, hook in list(module._forward_pre_hooks.items()):
            if getattr(hook, "__module__", "") == "tidepool._hooks":
                del module._forward_pre_hooks[key]
    if checkpointing is not None and can_checkpoint(twin):
        getattr(twin, "gradient_checkpointing_enable" if checkpointing else "gradient_checkpointing_disable")()


class _Faker:
    """Makes a tensor without values from an example's. Keeps values of integers beside it: models check whether a mask is full."""

    def __init__(self, mode: FakeTensorMode) -> None:
        self._mode = mode

    def __call__(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if value.is_meta or value.is_floating_point() or value.is_complex():
            with self._mode:
                return torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device="cpu").requires_grad_(value.requires_grad)
        converter = self._mode.fake_tensor_converter
        return converter.from_real_tensor(self._mode, value.detach().cpu(), make_constant=True)


def _loss_of(output: Any) -> torch.Tensor:
    """The start of backward: the loss that a model of transformers returns, else the sum of the first output."""
    for name in ("loss", "logits", "last_hidden_state"):
        value = output.get(name) if isinstance(output, Mapping) else getattr(output, name, None)
        if _has_graph(value):
            return value.sum()
    results: List[Any] = [value for value in _pytree.tree_leaves(output) if _has_graph(value)]
    if not results:
        raise RuntimeError("the forward returns no tensor that depends on a trained parameter")
    return results[0].sum()


def _has_graph(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad and value.is_floating_point()


