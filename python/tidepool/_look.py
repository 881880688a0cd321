"""Inspects a job, its parameters and its memory; ends it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import types
from typing import Iterable, Iterator, List, Mapping, Tuple, Union

import torch
from torch import nn

from . import _handle
from ._estimate import Estimate, numbers_of
from ._options import size_text, table
from .errors import UsageError


@contextlib.contextmanager
def gathered(params_or_module: Union[nn.Module, torch.Tensor, Iterable[torch.Tensor]]) -> Iterator[Mapping[str, torch.Tensor]]:
    """Copies of parameters, by name, in their dtypes in the job and on its device.

    For a wrapped model or a module in it: all of its parameters, by their names in that module. For parameters: those, by their names in
    the model. Collective: all ranks pass the same ones. The copies are complete and take that much memory. Nothing is written back: this
    version cannot change the weights of a running job. Errors: UsageError, those of a job.
    """
    handle, named = _asked(params_or_module)
    yield types.MappingProxyType({name: handle.values(name, parameter) for name, parameter in named})


def _asked(asked: Union[nn.Module, torch.Tensor, Iterable[torch.Tensor]]) -> Tuple[_handle.Handle, List[Tuple[str, nn.Parameter]]]:
    if isinstance(asked, nn.Module):
        return _handle.of_part(asked), list(asked.named_parameters())
    parameters = [asked] if isinstance(asked, torch.Tensor) else list(asked)
    handle = _handle.of_parameters(parameters)
    names = {id(parameter): (name, parameter) for name, parameter in handle.model.named_parameters()}
    if any(id(parameter) not in names for parameter in parameters):
        raise UsageError("a tensor that was asked for is no parameter of the model", fix="ask for parameters themselves, not for views or copies")
    return handle, [names[id(parameter)] for parameter in parameters]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Memory(Estimate):
    """The resources of a job, and its rCache counters on this rank since the job began here."""

    job: str
    socket_dir: str
    pool_bytes: int  # reserved by the server for the job
    hits: int  # chunks that were still there from an earlier use
    ahead: int  # chunks that were prefetched for this use
    misses: int
    prefetches: int
    evictions: int
    wait_seconds: float  # time that operators waited for weights
    bytes_to_device: int
    bytes_from_device: int

    def __str__(self) -> str:
        rows = [
            ("job", f"{self.job}, memserver at {self.socket_dir}"),
            ("reserved for the job", size_text(self.pool_bytes)),
            ("rCache", f"{self.hits} hits, {self.ahead} fetched ahead, {self.misses} misses, {self.prefetches} prefetches, {self.evictions} evictions"),
            ("moved", f"{size_text(self.bytes_to_device)} to the device, {size_text(self.bytes_from_device)} from it"),
            ("waited for weights", f"{self.wait_seconds:.3f} s"),
        ]
        return super().__str__() + "\n" + table(rows)


def memory(model: nn.Module) -> Memory:
    """The resources of a wrapped model's job on this rank. Errors: UsageError (no job runs)."""
    handle = _handle.of_model(model)
    counters = json.loads(handle.call("counters"))
    numbers = {**numbers_of(handle.plan), "rcache_bytes": handle.slot["rcache_bytes"]}
    return Memory(
        **numbers,
        job=handle.slot["job"],
        socket_dir=handle.slot["socket_dir"],
        pool_bytes=handle.slot["pool_bytes"],
        hits=counters["hits"],
        ahead=counters["ahead"],
        misses=counters["misses"],
        prefetches=counters["prefetches"],
        evictions=counters["evictions"],
        wait_seconds=counters["wait_ns"] / 1e9,
        bytes_to_device=counters["bytes_h2d"],
        bytes_from_device=counters["bytes_d2h"],
    )


def report_step(model: nn.Module, loss: Union[float, torch.Tensor], tokens: int) -> None:
    """What ``memctl``, its page and the metrics show of the step that the optimizer's next ``step()`` ends.

    ``loss``: a number, or a tensor of one element, whose value is waited for. ``tokens``: of all ranks. Call it on one rank; for the mean of
    several, reduce the loss before. Errors: UsageError (no job runs, another shape, a number of tokens that no step has).
    """
    if isinstance(loss, torch.Tensor) and loss.numel() != 1:
        raise UsageError(f"a loss of shape {tuple(loss.shape)} is no number", where="report_step", fix="give its mean: loss.mean()")
    if not 0 <= tokens <= 2**48:
        raise UsageError("a step has 0 to 2^48 tokens", where=f"report_step(tokens={tokens})")
    _handle.of_model(model).call("report_step", float(loss), int(tokens))


def sealed_steps(model: nn.Module) -> int:
    """Number of steps of a wrapped model's job, including those before this process. Errors: UsageError (no job runs)."""
    return int(_handle.of_model(model).call("version"))


def close(model: nn.Module) -> None:
    """Ends the job: the server frees its memory, and the weights are gone. Save them before.

    Collective: all ranks call it. Afterwards reading the model's parameters is an error. A model whose job has not begun is only unwrapped;
    a second call does nothing. Errors: those of a job.
    """
    _handle.of_model(model).end("close")


def leave(model: nn.Module) -> None:
    """Detaches from the job: a shared server keeps it for a later start with the same ``job`` and ``resume="auto"``.

    A private server ends, and the job with it. Otherwise like :func:`close`, but not collective.
    """
    _handle.of_model(model).end("leave")
