"""Estimates a job in advance: bytes at the server and on each rank, and whether this machine has them."""

from __future__ import annotations

import dataclasses
import json
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

import torch
from torch import nn

from . import _check, _handle, _machine, _options, _profile, experts
from ._library import new_job
from ._meta import unbacked
from ._options import Options, Rule, size_text, table
from .errors import call


@dataclasses.dataclass(frozen=True, kw_only=True)
class Estimate:
    """The needs of a job. Bytes: of this rank if it says so, else of the job. None: unknown."""

    parameters: int  # elements, including frozen ones
    parameter_bytes: int  # in their dtypes in the job
    chunks: int
    chunk_bytes: int
    rcache_bytes: int  # on this rank's device, for weights
    resident_bytes: int  # of that, for parameters that stay there
    host_bytes: int  # at the server, for all states
    optimizer_bytes: int  # of host_bytes: master weights and moments
    padding_bytes: int  # of host_bytes: padding
    frozen_bytes: int  # at the server in addition to host_bytes, once for all jobs with the same frozen parameters
    activation_bytes: Optional[int] = None  # on this rank's device, peak of a micro-batch of the example's size
    checkpointed_activation_bytes: Optional[int] = None  # the same with gradient checkpointing
    input_bytes: Optional[int] = None  # of the example
    fits: Optional[bool] = None  # whether this machine has what the job needs
    because: str = ""  # why it fits, does not fit, or is unknown
    remedy: str = ""  # a change that would make it fit

    def __str__(self) -> str:
        rows = [
            ("parameters", f"{self.parameters:,} ({size_text(self.parameter_bytes)})"),
            ("chunks", f"{self.chunks} of {size_text(self.chunk_bytes)}"),
            ("rCache of a rank", f"{size_text(self.rcache_bytes)}, of which {size_text(self.resident_bytes)} resident"),
        ]
        if self.activation_bytes is not None:
            rows.append(("activations of a rank", size_text(self.activation_bytes)))
        if self.checkpointed_activation_bytes is not None:
            rows.append(("  with gradient checkpointing", size_text(self.checkpointed_activation_bytes)))
        rows.append(("host memory at the server", size_text(self.host_bytes)))
        rows.append(("  master weights and moments", size_text(self.optimizer_bytes)))
        rows.append(("  padding", size_text(self.padding_bytes)))
        if self.frozen_bytes:
            rows.append(("  frozen parameters, beside", size_text(self.frozen_bytes)))
        if self.because:
            rows.append(("fits this machine", f"{_YES[self.fits]}: {self.because}"))
        if self.remedy:
            rows.append(("  what would", self.remedy))
        return table(rows)


_YES: Dict[Optional[bool], str] = {True: "yes", False: "no", None: "not known"}


def estimate(model: nn.Module, *, optimizer: str = "adamw", states: str = "fp32", **options: Any) -> Estimate:
    """Estimates a job for this model, with as many ranks as the launcher has started; contacts no server and creates nothing.

    The model may be on the meta device or wrapped; then its options apply, with `options` on top. `optimizer`: "adamw", "adam", "sgd"
    (without momentum), "adagrad" or "lion"; `states`: as in :mod:`tidepool.optim`; `options`: as in :func:`tidepool.wrap`. With ``example``
    it also estimates the activations of a step by running a copy of the model without memory: as the model is, and for models of
    transformers with gradient checkpointing off and on. Temporary memory inside operators is not seen.
    Errors: UsageError, MemoryTooSmall (an rCache below the smallest that works).
    """
    known = _handle.known(model)
    task = _Task.of(model, _options.make(options, known.options if known is not None else None))
    inputs = _profile.inputs_of(model, task.options.example)
    runs = _runs(task, inputs)
    plan, place = task.plan(Rule(optimizer, states), runs.get(None) or runs.get(False))
    found = Estimate(**numbers_of(plan), **_sizes(runs))
    return dataclasses.replace(found, **_fit(task, found, place, Rule(optimizer, states)))


def numbers_of(plan: Mapping[str, Any]) -> Dict[str, int]:
    """A native plan's numbers under an estimate's names."""
    same = (
        "parameters", "parameter_bytes", "chunks", "chunk_bytes", "rcache_bytes", "resident_bytes", "host_bytes", "padding_bytes",
        "frozen_bytes",
    )  # fmt: skip
    states = ("master_bytes", "momentum_bytes", "variance_bytes")
    return {**{name: int(plan[name]) for name in same}, "optimizer_bytes": sum(int(plan[name]) for name in states)}


@dataclasses.dataclass(frozen=True)
class _Task:
    """The input of an estimate."""

    model: nn.Module
    options: Options
    trained: Sequence[_check.Member]
    members: Sequence[_check.Member]  # including frozen ones

    @staticmethod
    def of(model: nn.Module, options: Options) -> "_Task":
        trained = _check.check(model, options, has_weights=True)
        return _Task(model, options, trained, [*trained, *_check.frozen_parameters(model)])

    @property
    def dtypes(self) -> Dict[int, torch.dtype]:
        return _check.dtypes(self.model, self.members, self.options)

    @property
    def dtype(self) -> torch.dtype:
        """The job's dtype: bf16 if any trained parameter is."""
        return _check.job_dtype(self.trained, self.dtypes)

    def plan(self, rule: Rule, profile: Optional[_profile.Profile]) -> Tuple[Dict[str, Any], Dict[str, Any]]:
        """The native plan, and the rank's place."""
        dtypes = self.dtypes
        job = new_job(_options.settings(self.options, self.dtype, rule, ("", True)))
        units = experts.units_of(self.model)
        for one in self.members:
            stand_in = unbacked(one.parameter.shape, dtypes[id(one.parameter)], "cpu").requires_grad_(one.parameter.requires_grad)
            call(job, "add_parameter", one.name, stand_in, 0, one.multi_use, units.get(id(one.parameter), 0))
        if profile is not None:
            call(job, "foresee", profile.native)
        return json.loads(call(job, "plan")), json.loads(call(job, "place"))


def _runs(task: _Task, inputs: Optional[_profile.Inputs]) -> Dict[Optional[bool], _profile.Profile]:
    """Profiles with gradient checkpointing off and on; None: as the model is."""
    switches: Tuple[Optional[bool], ...] = (False, True) if inputs is not None and inputs.own and _profile.can_checkpoint(task.model) else (None,)
    found: Dict[Optional[bool], _profile.Profile] = {}
    for switch in switches:
        profile = _profile.profile(task.model, inputs, task.members, task.dtypes, switch)
        if profile is None:
            break
        found[switch] = profile
    return found


def _sizes(runs: Mapping[Optional[bool], _profile.Profile]) -> Dict[str, Optional[int]]:
    plain, checkpointed = runs.get(None) or runs.get(False), runs.get(True)
    if plain is None or not plain.own_inputs:
        return {}
    return {
        "activation_bytes": plain.activation_bytes,
        "checkpointed_activation_bytes": None if checkpointed is None else checkpointed.activation_bytes,
        "input_bytes": plain.input_bytes,
    }


@dataclasses.dataclass(frozen=True)
class _Need:
    """Bytes needed by this machine's ranks and their server together. Adds a quarter to activations, for operators' temporaries."""

    server: int
    rcaches: int
    activations: int
    on_host: bool

    @property
    def host(self) -> int:
        return self.server + (self.rank if self.on_host else 0)

    @property
    def rank(self) -> int:
        return self.rcaches + self.activations + self.activations // 4


def _fit(task: _Task, found: Estimate, place: Mapping[str, Any], rule: Rule) -> Dict[str, Any]:
    host = _machine.free_host_bytes()
    device = None if task.options.device_type == "cpu" else _machine.free_device_bytes(task.options.device, place)
    if host is None or (device is None and task.options.device_type != "cpu"):
        return {"because": "nothing says how much memory this machine has free"}
    ranks = int(place["local_world"])
    on_host = task.options.device_type == "cpu"

    def need(activations: Optional[int], server: int) -> _Need:
        count = ranks if on_host else 1
        return _Need(server, count * found.rcache_bytes, count * ((activations or 0) + (found.input_bytes or 0)), on_host)

    def has_room(one: _Need) -> bool:
        return one.host <= host and (device is None or one.rank <= device)

    now = need(found.activation_bytes, found.host_bytes + found.frozen_bytes)
    because = f"{size_text(now.host)} of host memory, of {size_text(host)} that is free"
    if device is not None:
        because += f", and {size_text(now.rank)} of the GPU, of {size_text(device)} that is free"
    if has_room(now):
        known = found.activation_bytes is not None
        return {"fits": True if known else None, "because": because + ("" if known else ", beside activations: give example=")}

    for words, activations, server in _changes(task, found, rule):
        if has_room(need(activations, server)):
            return {"fits": False, "because": because, "remedy": words}
    most = "a memserver with nvme directories keeps states there" if now.server > host else "a smaller micro-batch, or a machine with more memory"
    return {"fits": False, "because": because, "remedy": most}


def _changes(task: _Task, found: Estimate, rule: Rule) -> Iterator[Tuple[str, Optional[int], int]]:
    """Possible changes, smallest first: a description, the resulting activations, and the resulting bytes at the server."""
    forms: List[Tuple[str, int]] = [("", found.host_bytes + found.frozen_bytes)]
    names = ("fp32", "split", "split-bf16", "split-8bit")
    narrow = task if task.dtype is torch.bfloat16 else dataclasses.replace(task, options=dataclasses.replace(task.options, dtype="bf16"))
    later = names[names.index(rule.states) + 1 :] if task.dtype is torch.bfloat16 and rule.states in names else names
    for states in later:
        plan, _ = narrow.plan(dataclasses.replace(rule, states=states), None)
        words = "" if task.dtype is torch.bfloat16 else 'dtype="bf16", '
        forms.append((f'{words}states="{states}"', int(plan["host_bytes"]) + int(plan["frozen_bytes"])))
    for words, server in forms:
        if words:
            yield words, found.activation_bytes, server
        if found.checkpointed_activation_bytes is not None:
            yield f"gradient checkpointing{' and ' + words if words else ''}", found.checkpointed_activation_bytes, server
