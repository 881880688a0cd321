"""Parameters without memory: created on the meta device, they get their tensor later and keep their identity."""

from __future__ import annotations

import contextlib
from typing import Any, Iterator, Optional

import torch
from torch import nn

from .errors import UsageError


@contextlib.contextmanager
def init() -> Iterator[None]:
    """Modules created within it get parameters on the meta device, which take no memory, and real buffers.

    A parameter becomes meta when its module registers it, so weight initialisation after that does nothing. Pass the model to
    :func:`tidepool.wrap` with ``weights`` for the values. Not thread-safe.
    """
    register = nn.Module.register_parameter

    def register_meta(module: nn.Module, name: str, param: Optional[nn.Parameter]) -> None:
        register(module, name, param)
        if isinstance(param, nn.Parameter) and not param.is_meta and not nn.parameter.is_lazy(param):
            module._parameters[name] = _made_meta(param)

    nn.Module.register_parameter = register_meta  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]


def _made_meta(param: nn.Parameter) -> nn.Parameter:
    """The same object if possible, so that a parameter registered more than once stays one."""
    empty = _like(param, torch.empty_like(param, device="meta"))
    try:
        torch.utils.swap_tensors(param, empty)
    except RuntimeError:
        return empty
    return param


def _like(param: nn.Parameter, data: torch.Tensor) -> nn.Parameter:
    """A parameter of the same class, with the same Python attributes, around other data."""
    made: nn.Parameter = torch.Tensor._make_subclass(type(param), data.detach(), param.requires_grad)
    made.__dict__.update(param.__dict__)
    return made


def unbacked(shape: Any, dtype: torch.dtype, device: Any) -> torch.Tensor:
    """A contiguous tensor without memory, which must not be read."""
    tensor = torch.empty(shape, dtype=dtype, device=device)
    tensor.untyped_storage().resize_(0)
    return tensor


def exchange(name: str, param: nn.Parameter, data: torch.Tensor) -> nn.Parameter:
    """Replaces the data of `param`, also with another dtype or device, and returns a parameter with the former data.

    Other references to `param` see the new data. Errors: UsageError if LibTorch still uses the old data.
    """
    other = _like(param, data)
    try:
        torch.utils.swap_tensors(param, other)
    except RuntimeError as error:
        raise UsageError(
            f"the parameter {name} cannot be given other memory",
            where=name,
            why=str(error),
            fix="make the optimizer before the first forward, and keep no views or weak references of parameters",
        ) from None
    return other
