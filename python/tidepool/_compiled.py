"""torch.compile: a compiled region reads parameters by address and needs all of its parameters at once. Main thread.

Regions that record gradients are functions whose arguments _held sees; those of an evaluation are not, so their modules are held.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, List

import torch
from torch import nn

from ._held import Hold
from .errors import UsageError

if TYPE_CHECKING:
    from ._handle import Handle

_eval_frame: Any = torch._C._dynamo.eval_frame  # type: ignore[attr-defined]


def never_compile(function: Any) -> Any:
    """Makes torch.compile skip the frames of this function and not trace into it: like torch.compiler.disable, but without loading it."""
    function._torchdynamo_disable, function._torchdynamo_disable_msg = True, None
    action = _eval_frame._FrameAction
    _eval_frame.set_code_exec_strategy(function.__code__, _eval_frame._FrameExecStrategy(action.SKIP, action.DEFAULT))
    return function


class Paused:
    """Within a `with`, torch.compile ignores frames. `callback`: the paused compiler; None: nothing."""

    @never_compile
    def __enter__(self) -> "Paused":
        self.callback: Any = _eval_frame.set_eval_frame(None)
        return self

    @never_compile
    def __exit__(self, *_: Any) -> None:
        _eval_frame.set_eval_frame(self.callback)


class WholeModel:
    """The forward of a model compiled as a whole: holds all parameters until it ends."""

    def __init__(self, handle: "Handle") -> None:
        self._handle = handle
        self._held: List[Hold] = []
        self._refused: Any = None  # the compiler that was checked

    def begin(self, callback: Any) -> None:
        """`callback`: compiles the frames. Errors: UsageError (CUDA graphs), MemoryTooSmall (the rCache cannot hold the whole model)."""
        if self._refused is not callback:
            _refuse_graphs(_innermost(callback))
            self._refused = callback
        hold = Hold(list(self._handle.model.parameters()), is_compiled=True)
        hold.__enter__()
        self._held.append(hold)

    def end(self) -> None:
        if self._held:
            self._held.pop().__exit__()


def watch_modules(model: nn.Module) -> None:
    """Makes compiled modules of the model hold their parameters in evaluation. Errors: UsageError (CUDA graphs)."""
    for module in model.modules():
        name = "forward" if hasattr(module, "_orig_mod") else "_compiled_call_impl"
        call = module.__dict__.get(name)
        if call is not None and not isinstance(call, _HeldCall):
            _refuse_graphs(call)
            module.__dict__[name] = _HeldCall(module, call)


class _HeldCall:
    def __init__(self, module: nn.Module, call: Any) -> None:
        self._module, self._call = module, call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.is_grad_enabled():
            return self._call(*args, **kwargs)
        with Hold(list(self._module.parameters()), is_compiled=True):
            return self._call(*args, **kwargs)


def _innermost(callback: Any) -> Any:
    while hasattr(callback, "_torchdynamo_orig_backend"):
        callback = callback._torchdynamo_orig_backend
    return callback


def _refuse_graphs(compiled: Any) -> None:
    config = getattr(compiled, "get_compiler_config", lambda: None)()
    if config and config.get("triton.cudagraphs"):
        raise UsageError(
            "a module is compiled with CUDA graphs",
            where='torch.compile, mode="reduce-overhead" or "max-autotune"',
            why="a graph reads parameters at the addresses that it has recorded, and in the rCache a parameter's address changes",
            fix='compile without a mode, or with mode="max-autotune-no-cudagraphs"',
        )
