"""Options of a job, checked as far as possible without a model, and the settings for the op library."""

from __future__ import annotations

import dataclasses
import json
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Union

import torch

from ._library import program_path
from .errors import UsageError

DTypeLike = Union[None, str, torch.dtype]

_DTYPES: Dict[torch.dtype, str] = {torch.float32: "fp32", torch.bfloat16: "bf16"}
_NAMES: Dict[str, torch.dtype] = {
    "fp32": torch.float32,
    "float32": torch.float32,
    "bf16": torch.bfloat16,
    "bfloat16": torch.bfloat16,
}


def dtype_of(given: DTypeLike) -> Optional[torch.dtype]:
    """The torch dtype for "fp32", "bf16", their long names or a torch dtype; None for None. Errors: UsageError."""
    if given is None:
        return None
    found = _NAMES.get(given.removeprefix("torch.")) if isinstance(given, str) else given
    if found in _DTYPES:
        return found
    raise UsageError(
        f"dtype {given} cannot be trained",
        where="dtype",
        why="parameters are fp32 or bf16; fp16 would need a loss scale that changes with the steps",
        fix="use dtype bf16, whose range is that of fp32",
    )


def dtype_name(dtype: torch.dtype) -> str:
    """The name of a dtype in the job's settings, "fp32" or "bf16". Errors: UsageError."""
    dtype_of(dtype)
    return _DTYPES[dtype]


@dataclasses.dataclass(frozen=True)
class Options:
    """The options of :func:`tidepool.wrap`; see there."""

    job: str = ""
    dtype: DTypeLike = None
    rcache: Union[str, int] = "auto"
    plan: str = ""
    chunk_size: Union[str, int] = "auto"
    device: str = "cpu"
    resume: str = "auto"
    or_new: bool = False
    server: Optional[str] = None
    standalone: Optional[bool] = None
    pool: Union[str, int] = ""
    gradient_accumulation_steps: int = 1
    seed: int = 1
    server_timeout: str = "120s"
    queue_timeout: str = "0s"
    rejoin_timeout: str = "10min"
    multi_use: Tuple[str, ...] = ()
    example: Any = dataclasses.field(default=None, compare=False, repr=False)
    keep_fp32: Tuple[str, ...] = ()

    def __post_init__(self) -> None:
        dtype_of(self.dtype)
        if self.resume not in ("auto", "never"):
            raise UsageError(f'resume={self.resume!r} is neither "auto" nor "never"', where="resume")
        if self.server is not None and self.standalone:
            raise UsageError(
                "server names a memserver that runs, and standalone=True asks for a private one",
                where="server, standalone",
                fix="give one of them",
            )
        steps = self.gradient_accumulation_steps
        if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
            raise UsageError(f"gradient_accumulation_steps={steps!r} is not a whole number from 1", where="gradient_accumulation_steps")
        for name, given in (("multi_use", self.multi_use), ("keep_fp32", self.keep_fp32)):
            if isinstance(given, str):
                raise UsageError(f"{name} is a list of names of parameters, not a text", where=name)

    @property
    def device_type(self) -> str:
        """The device without its number: "cpu" or "cuda"."""
        return str(self.device).partition(":")[0]


def option_names() -> Tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(Options))


def make(given: Mapping[str, Any], base: Optional[Options] = None) -> Options:
    """Options from keyword arguments, on top of `base`. Errors: UsageError (unknown names)."""
    unknown = sorted(set(given) - set(option_names()))
    if unknown:
        raise UsageError(f"unknown option {', '.join(unknown)}", fix="options are: " + ", ".join(option_names()))
    return dataclasses.replace(base or Options(), **given)


@dataclasses.dataclass(frozen=True)
class Rule:
    """The update rule of a job: fixed once it has begun."""

    name: str
    states: str = "fp32"
    max_grad_norm: float = 0.0
    numbers: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # beta1, beta2, eps, ...
    groups: Sequence[Tuple[float, float]] = ((1.0, 0.0),)  # factor of the learning rate, weight decay


def settings(options: Options, dtype: torch.dtype, rule: Rule, place: Tuple[str, bool]) -> str:
    """The JSON object from which a native job is made. `place`: socket directory, and whether the server is private."""
    socket_dir, standalone = place
    keys: Dict[str, Any] = {
        "job": options.job,
        "dtype": dtype_name(dtype),
        "rcache": str(options.rcache),
        "plan": str(options.plan),
        "chunk_size": str(options.chunk_size),
        "device": str(options.device),
        "socket_dir": socket_dir,
        "standalone": standalone,
        "memserver": program_path("memserver"),
        "pool": str(options.pool) if standalone else "",
        "server_timeout": options.server_timeout,
        "queue_timeout": options.queue_timeout,
        "rejoin_timeout": options.rejoin_timeout,
        "resume": options.resume,
        "or_new": options.or_new and options.resume == "auto" and not standalone,
        "seed": options.seed,
        "micro_batches": options.gradient_accumulation_steps,
        "max_grad_norm": float(rule.max_grad_norm),
        "optimizer": {"rule": rule.name, "states": rule.states, **rule.numbers},
        "parameter_groups": [list(group) for group in rule.groups],
    }
    return json.dumps(keys)


def size_text(count: int) -> str:
    """Formats bytes: "1.5 GiB"."""
    value, units = float(count), ["B", "KiB", "MiB", "GiB", "TiB"]
    while value >= 1024 and len(units) > 1:
        value /= 1024
        units.pop(0)
    return f"{value:.0f} {units[0]}" if units[0] == "B" else f"{value:.3g} {units[0]}"


def table(rows: List[Tuple[str, str]]) -> str:
    """Formats two columns of text."""
    width = max(len(label) for label, _ in rows)
    return "\n".join(f"{label:<{width}}  {value}" for label, value in rows)
