"""Hooks of a running job: the model's forward announces a pass, and each parameter reports its complete gradient.

They refer to the handle weakly. In a copy of the model (copy.deepcopy, pickle) the hooks do nothing.
"""

from __future__ import annotations

import logging
import weakref
from typing import TYPE_CHECKING, Any, List, Sequence

import torch
from torch import nn

from ._compiled import Paused, never_compile, watch_modules
from ._options import size_text
from .errors import UsageError

if TYPE_CHECKING:
    from ._handle import Handle

log = logging.getLogger("tidepool")


def install(handle: "Handle", parameters: Sequence[torch.Tensor]) -> List[Any]:
    """Watches the handle's model and its trained parameters. Returns handles that remove the hooks."""
    model = handle.model
    hooks: List[Any] = [
        model.register_forward_pre_hook(_BeginForward(handle), prepend=True),
        model.register_forward_hook(_LetGo(handle), always_call=True),
        model.register_forward_hook(_EndForward(handle)),
    ]
    # Through Python's own list of hooks: LibTorch has one slot per tensor, which serves the user's hooks too.
    hooks += [parameter.register_post_accumulate_grad_hook(_Gradient(handle, index)) for index, parameter in enumerate(parameters)]
    return hooks


def refuse_forward(model: nn.Module) -> Any:
    """Until the job begins, makes the forward of a model without weights an error that says so. Returns the hook's removal handle."""
    return model.register_forward_pre_hook(_no_weights_yet, prepend=True)


def _no_weights_yet(module: nn.Module, _: Any) -> None:
    if any(parameter.is_meta for parameter in module.parameters()):
        raise UsageError(
            "this model has no weights yet", why="they are loaded when its optimizer is made", fix="make the optimizer before the first forward"
        )


class _Hook:
    def __init__(self, handle: "Handle") -> None:
        self._handle = weakref.ref(handle)

    def __reduce__(self) -> Any:
        return _nothing, ()


class _BeginForward(_Hook):
    @never_compile
    def __call__(self, module: nn.Module, _: Any) -> None:
        handle = self._handle()
        if handle is None or not handle.is_of(module):
            return
        with Paused() as paused:
            _keep_no_casts(handle)
            watch_modules(module)
            handle.call("begin_forward", torch.is_grad_enabled())
            if paused.callback:
                handle.whole.begin(paused.callback)


class _EndForward(_Hook):
    @never_compile
    def __call__(self, module: nn.Module, *_: Any) -> None:
        handle = self._handle()
        if handle is not None and handle.is_of(module):
            with Paused():
                handle.call("check")


class _LetGo(_Hook):
    """Runs also if forward ends in an exception."""

    @never_compile
    def __call__(self, module: nn.Module, *_: Any) -> None:
        handle = self._handle()
        if handle is not None and handle.is_of(module):
            with Paused():
                handle.whole.end()


class _Gradient(_Hook):
    def __init__(self, handle: "Handle", index: int) -> None:
        super().__init__(handle)
        self._index = index

    def __call__(self, parameter: torch.Tensor) -> None:
        handle = self._handle()
        if handle is None:
            return
        kept = handle.kept_gradients.get(id(parameter)) if handle.kept_gradients else None
        if kept is not None:
            kept.see(parameter.grad, (handle.call("version"), handle.call("micro_batch")))
        handle.call("gradient_arrived", self._index)


def _keep_no_casts(handle: "Handle") -> None:
    """Autocast would cache a 16-bit copy of every weight until its region ends: the whole model, on the device. Set in each region."""
    if not torch.is_autocast_cache_enabled() or not torch.is_autocast_enabled(handle.options.device_type):
        return
    torch.set_autocast_cache_enabled(False)
    if handle.told_of_casts:
        return
    handle.told_of_casts = True
    log.warning(
        "autocast's cache of weights is switched off: it would keep %s of copies until the forward ends; with dtype=\"bf16\" the weights "
        "come in 16 bits, and the server keeps fp32 masters",
        size_text(handle.plan["parameter_bytes"] // 2),
    )


def _nothing() -> Any:
    return _do_nothing


def _do_nothing(*_: Any) -> None:
    return None
