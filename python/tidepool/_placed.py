"""Parameters while a job begins: the source of their values, and the tensors replaced by those of the job."""

from __future__ import annotations

import logging
from typing import Any, Callable, Dict, Iterable, Optional, Set, Tuple

import torch
from torch import nn

from . import _check
from ._meta import exchange, unbacked
from ._states import States
from .errors import UsageError, call

log = logging.getLogger("tidepool")

Weights = Callable[[str], torch.Tensor]  # maps a parameter's name to its values, in host memory


class Placed:
    """While a job begins: the tensors replaced by those of the job; restored if the start fails."""

    def __init__(self, weights: Optional[Weights], dtypes: Dict[int, torch.dtype], device: torch.device, states: Optional[States] = None) -> None:
        self._weights, self._dtypes, self._device, self._states = weights, dtypes, device, states
        self._former: Dict[int, Tuple[str, nn.Parameter, nn.Parameter]] = {}

    def undo(self) -> None:
        for name, parameter, former in self._former.values():
            try:
                torch.utils.swap_tensors(parameter, former)
            except RuntimeError:  # shared elsewhere: it gets uninitialised memory instead of none
                parameter.untyped_storage().resize_(parameter.numel() * parameter.element_size())
                log.warning("the parameter %s has lost its values: make the model anew", name)
        self._former.clear()

    def place(self, one: _check.Member) -> None:
        """Gives the parameter its dtype in the job and the job's device, without memory."""
        parameter, dtype = one.parameter, self._dtypes[id(one.parameter)]
        parameter.grad = None
        if parameter.is_meta or parameter.dtype != dtype or parameter.device.type != self._device.type:
            data = unbacked(parameter.shape, dtype, self._device)
            self._former[id(parameter)] = one.name, parameter, exchange(one.name, parameter, data)

    def prefetch(self, one: _check.Member) -> None:
        """Announces that values in a file will be needed soon."""
        tell = getattr(self._weights, "prefetch", None)
        if tell is not None:
            tell(one.name)

    def shard(self, one: _check.Member) -> Tuple[int, int]:
        """The number of the file with the values, from 1, and the number of files; (0, 0): none."""
        tell = getattr(self._weights, "shard", None)
        found: Tuple[int, int] = tell(one.name) if tell is not None else (0, 0)
        return found

    def begin(self, job: Any) -> None:
        """Sets the step of the checkpoint, if there is one, as the start of a new job."""
        if self._states is not None:
            call(job, "begin_at", *self._states.begin())

    def put(self, job: Any, index: int, one: _check.Member) -> None:
        """Puts the values of a trained parameter into the new job: its own, or those of the checkpoint with their moments."""
        if self._states is None:
            call(job, "put", index, self.values(one))
            return
        shape = tuple(one.parameter.shape)
        form, planes = call(job, "moments_of", index)
        for plane in planes:
            call(job, "put_moment", index, plane, self._states.words(one.name, plane, form, shape))
        call(job, "put", index, self._states.master(one.name, shape))
        self._states.forget(one.name)

    def values(self, one: _check.Member) -> torch.Tensor:
        """The initial values, in host memory; a frozen parameter's in its dtype in the job."""
        _, _, parameter = self._former.get(id(one.parameter), ("", None, one.parameter))
        values = self._read(one.name, parameter).detach().to("cpu")
        return (values if one.parameter.requires_grad else values.to(self._dtypes[id(one.parameter)])).contiguous()

    def place_the_rest(self, model: nn.Module, members: Set[int]) -> None:
        """Moves tensors that the job does not hold to the job's device, with values: weights that are not dense, and buffers."""
        for name, parameter in model.named_parameters():
            if id(parameter) not in members and (parameter.is_meta or parameter.device.type != self._device.type):
                exchange(name, parameter, self._read(name, parameter).detach().to(self._device, copy=parameter.is_meta))
        for module in model.modules():
            for name, buffer in module._buffers.items():
                if buffer is not None and buffer.device.type != self._device.type:
                    module._buffers[name] = buffer.to(self._device)

    def _read(self, name: str, parameter: torch.Tensor) -> torch.Tensor:
        if not parameter.is_meta:
            return parameter
        assert self._weights is not None
        values = self._weights(name)
        if not isinstance(values, torch.Tensor) or values.shape != parameter.shape:
            got = tuple(values.shape) if isinstance(values, torch.Tensor) else type(values).__name__
            raise UsageError(f"the weights for {name} are {got}, and the parameter is {tuple(parameter.shape)}", where=name)
        return values


class ReadAhead:
    """Prefetches values from files, a limited number of bytes ahead."""

    _BYTES = 256 << 20

    def __init__(self, placed: Placed, members: Sequence[_check.Member]) -> None:
        self._placed, self._left, self._ahead = placed, iter(members), 0

    def advance(self, used: int) -> None:
        """`used`: bytes of the parameter requested now."""
        self._ahead -= used
        while self._ahead < self._BYTES:
            one = next(self._left, None)
            if one is None:
                return
            self._placed.prefetch(one)
            self._ahead += one.bytes
