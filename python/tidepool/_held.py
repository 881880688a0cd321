"""Holds parameters for code that reads them by address, bypassing LibTorch's dispatcher: custom and compiled kernels.

For an operator with a schema the op library provides the parameters while it runs, and for a function's backward those of its forward. It
cannot see the forward of a torch.autograd.Function: this module inspects its arguments. Main thread.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from typing import TYPE_CHECKING, Any, Iterator, List, Tuple, Union

import torch
from torch import nn

from ._code import replace_code
from .errors import MemoryTooSmall

if TYPE_CHECKING:
    from ._handle import Handle

_running: "weakref.WeakSet[Handle]" = weakref.WeakSet()
_plain_apply: Any = None  # torch.autograd.Function.apply, once watched


@contextlib.contextmanager
def held(*params_or_modules: Union[nn.Module, torch.Tensor]) -> Iterator[None]:
    """Holds parameters of models with running jobs in the rCache within a ``with``: for code that reads them by address.

    Operators, and the arguments of a ``torch.autograd.Function``, do not need it. A kernel launched in another way does, and so do
    ``p.data_ptr()`` and ``p.numpy()``. For a module, holds all parameters. The addresses are valid until the end of the ``with``, for
    reading only. Leave it before you call ``backward`` or ``step``. Errors: MemoryTooSmall (the rCache has no room for all of them).
    """
    tensors: List[torch.Tensor] = []
    for one in params_or_modules:
        tensors += one.parameters() if isinstance(one, nn.Module) else [one]
    with Hold(tensors):
        yield


class Hold:
    """Holds the parameters that contain some tensors, within a `with`. Does nothing for other tensors."""

    def __init__(self, tensors: List[torch.Tensor], is_compiled: bool = False) -> None:
        self._tensors, self._is_compiled = tensors, is_compiled
        self._held: List[Tuple["Handle", int]] = []

    def __enter__(self) -> None:
        try:
            for handle in list(_running):
                number = handle.call("hold", self._tensors) if handle.running else 0
                if number:
                    self._held.append((handle, number))
        except MemoryTooSmall as error:
            self.__exit__()
            raise self._explained(error) from None
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_: Any) -> None:
        while self._held:
            handle, number = self._held.pop()
            if handle.running:
                handle.call("let_go", number)

    def _explained(self, error: MemoryTooSmall) -> MemoryTooSmall:
        if not self._is_compiled:
            return error
        why = "torch.compile makes one region of a whole model, which needs all of its parameters at once"
        fix = 'compile the blocks instead ("for block in model.layers: block.compile()"), or give rcache="100%"'
        return MemoryTooSmall(error.what, where="torch.compile", why=why, fix=fix, id=error.id)


def watch(handle: "Handle") -> None:
    """From now on user-defined functions have the handle's parameters present in forward."""
    global _plain_apply
    _running.add(handle)
    if _plain_apply is not None:
        return
    function = getattr(torch.autograd.Function.apply, "__func__", None)
    if function is not None:
        _plain_apply = replace_code(function, _Watched.apply)
        return

    # Implemented in C from torch 2.15 on: a bound method taken earlier, as in `apply = MyFunction.apply`, stays unwatched.
    plain = torch.autograd.Function.__dict__["apply"]
    _plain_apply = lambda cls, *args, **kwargs: plain.__get__(None, cls)(*args, **kwargs)  # noqa: E731
    torch.autograd.Function.apply = classmethod(_watched_apply)  # type: ignore[assignment, method-assign]


def _watched_apply(cls, *args, **kwargs):  # type: ignore[no-untyped-def]
    return apply(cls, args, kwargs)


_watched_apply.__name__, _watched_apply.__qualname__ = "apply", "Function.apply"


class _Watched:
    # This code runs with the globals of torch.autograd.function, and with the cell of that class.
    def apply(cls, *args, **kwargs):  # type: ignore[no-untyped-def]
        __class__  # noqa: B018
        from tidepool import _held

        return _held.apply(cls, args, kwargs)


def apply(function: Any, args: Tuple[Any, ...], kwargs: Any) -> Any:
    """torch.autograd.Function.apply, with the parameters among the arguments present."""
    if not _running or threading.current_thread() is not threading.main_thread():
        return _plain_apply(function, *args, **kwargs)
    tensors: List[torch.Tensor] = []
    _collect(args, tensors)
    _collect(kwargs.values(), tensors)
    if not tensors:
        return _plain_apply(function, *args, **kwargs)
    with Hold(tensors, is_compiled=function.__name__ == "CompiledFunction"):
        return _plain_apply(function, *args, **kwargs)


def _collect(values: Any, tensors: List[torch.Tensor]) -> None:
    for value in values:
        if isinstance(value, torch.Tensor):
            tensors.append(value)
        elif isinstance(value, (list, tuple)):
            _collect(value, tensors)
        elif isinstance(value, dict):
            _collect(value.values(), tensors)
