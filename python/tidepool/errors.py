"""Errors of the package: one hierarchy; each error has a message, a location, a cause and a remedy.

``docs/errors.md`` lists numbers and names; programs should branch on the class or on ``id``, never on the text.
"""

from __future__ import annotations

import json
import re
import textwrap
from typing import Any, Dict, Optional, Tuple, Type

__all__ = [
    "TidepoolError",
    "UsageError",
    "ServerError",
    "MemoryTooSmall",
    "JobExists",
    "JobLost",
    "RankLost",
    "FileError",
    "NotFinite",
]


class TidepoolError(RuntimeError):
    """Base class of the package's errors.

    Attributes:
        what: one sentence with the relevant numbers.
        where: a parameter, option, rank or file; may be empty.
        why: the cause, if known; may be empty.
        fix: the remedy; may be empty.
        id: the name in ``docs/errors.md``, such as ``"RcacheTooSmall"``.
    """

    def __init__(self, what: str, *, where: str = "", why: str = "", fix: str = "", id: str = "Internal") -> None:
        super().__init__(what)
        self.what, self.where, self.why, self.fix, self.id = what, where, why, fix, id

    def __str__(self) -> str:
        # A traceback puts the name of the class before the first line.
        name = " " * len(f"{type(self).__module__}.{type(self).__qualname__}: ")
        lines = [_folded(name + (self.what if self.what else self.id))[len(name) :]]
        lines += [_folded(f"   {label:<6} {text}") for label, text in (("where:", self.where), ("why:", self.why), ("fix:", self.fix)) if text]
        return "\n".join(lines)

    def __reduce__(self) -> Tuple[Any, ...]:
        return _again, (type(self), self.what, self.where, self.why, self.fix, self.id)


class UsageError(TidepoolError, ValueError):
    """An argument, a model or the order of calls is wrong; nothing has changed."""

    def __init__(self, what: str, *, where: str = "", why: str = "", fix: str = "", id: str = "UsageError") -> None:
        super().__init__(what, where=where, why=why, fix=fix, id=id)


class ServerError(TidepoolError):
    """No memserver was reached, or it refused or ended the session."""


class MemoryTooSmall(TidepoolError):
    """The host pool, the rCache or the device has too little memory; the text says how much is needed."""


class JobExists(TidepoolError):
    """A job of this name exists with another specification, or its ranks are attached."""


class JobLost(TidepoolError):
    """The states of the job are gone: it can be started over, but not continued."""


class RankLost(TidepoolError):
    """Another rank of the job has died or does not answer; the job stays at its last sealed step."""


class FileError(TidepoolError):
    """A file of weights cannot be read or written, or is damaged."""


class NotFinite(TidepoolError):
    """The loss or a gradient is NaN or infinite."""


_CLASSES: Dict[Type[TidepoolError], str] = {
    UsageError: "UsageError ConfigUnreadable ConfigSyntax ConfigUnknownKey ConfigBadValue JobSpecBad ParameterTooLarge "
    "TensorStateIllegal ChunkNotReady DataBad ChunkFrozen",
    ServerError: "NoServer AbiMismatch HandshakeBad NotOwner SessionEnded ServerGone ProtocolViolation WaitTimeout VersionGone "
    "NotReady SocketFailed KeeperFailed",
    MemoryTooSmall: "HostMemoryShort MemoryMapFailed PoolFull RcacheRefused TooManySessions QuotaExceeded NvmeFull "
    "DeviceMemoryShort RcacheTooSmall",
    JobExists: "JobMismatch RankTaken RankCountMismatch JobBusy",
    JobLost: "StatesLost NvmeIoFailed NvmeDataBad NvmeStalled",
    RankLost: "PeerLost CollectiveFailed RanksMissing",
    FileError: "FileUnreadable SafetensorsBad SaveFailed FileWriteFailed ContentMismatch CheckpointBad",
    NotFinite: "NonFinite",
}
_CLASS_OF: Dict[str, Type[TidepoolError]] = {name: kind for kind, names in _CLASSES.items() for name in names.split()}

# Numbers in the text of an error, used if there is no object to ask for its name.
_NUMBERS: Dict[str, str] = {
    "1001": "UsageError", "1104": "ConfigBadValue", "2001": "HostMemoryShort", "2002": "MemoryMapFailed", "2101": "PoolFull",
    "2102": "RcacheRefused", "2104": "QuotaExceeded", "2301": "CudaUnavailable", "2302": "CudaFailed", "2303": "DeviceMemoryShort",
    "3001": "NoServer", "3004": "JobSpecBad", "3005": "JobMismatch", "3006": "RankTaken", "3009": "ServerGone", "3011": "WaitTimeout",
    "3012": "PeerLost", "3014": "StatesLost", "4001": "RcacheTooSmall", "4002": "ParameterTooLarge", "4003": "TensorStateIllegal",
    "4004": "ChunkNotReady", "6001": "NonFinite", "6002": "CollectiveFailed", "6003": "StepAbandoned", "6004": "RanksMissing",
}  # fmt: skip
# The widest line of an error, and the columns before what goes on: those of "   fix:   ".
_COLUMNS, _INDENT = 100, " " * 10
_FLAG = re.compile(r"--([a-z]+(?:-[a-z]+)*)")
_TEXT = re.compile(r"error\[TP(\d+)\]: (.*?)(?:\n   where: (.*?))?(?:\n   why:   (.*?))?(?:\n   fix:   (.*?))?\s*\Z", re.DOTALL)


def _folded(text: str) -> str:
    """Breaks lines at blanks to at most 100 columns; a longer word, such as a path, stays whole."""
    lines = []
    for line in text.split("\n"):
        own = line[: len(line) - len(line.lstrip(" "))]
        wrapped = textwrap.wrap(line.lstrip(" "), _COLUMNS, initial_indent=own, subsequent_indent=_INDENT, break_long_words=False, break_on_hyphens=False)
        lines += wrapped or [line]
    return "\n".join(lines)


def call(job: Any, name: str, *arguments: Any) -> Any:
    """Calls a method of a native job. Raises TidepoolError for its errors."""
    try:
        return getattr(job, name)(*arguments)
    except RuntimeError as error:
        raise from_native(error, job) from None


def from_native(error: RuntimeError, job: Any = None) -> RuntimeError:
    """The exception for an error of the op library; `error` itself if it is not one of Tidepool's."""
    text = str(error)
    parts = _reported(job, text) or _parsed(text)
    if parts is None:
        return error
    # Flags of the programs under their Python names: "--chunk-size" is chunk_size.
    texts = [_FLAG.sub(lambda flag: flag.group(1).replace("-", "_"), parts[part]) for part in ("what", "where", "why", "fix")]
    return _again(_CLASS_OF.get(parts["id"], TidepoolError), *texts, parts["id"])


def from_parts(parts: Dict[str, str]) -> "TidepoolError":
    """The exception for an error described by the op library."""
    return _again(_CLASS_OF.get(parts["id"], TidepoolError), parts["what"], parts["where"], parts["why"], parts["fix"], parts["id"])


def _again(kind: Type[TidepoolError], what: str, where: str, why: str, fix: str, id: str) -> TidepoolError:
    return kind(what, where=where, why=why, fix=fix, id=id)


def _reported(job: Any, text: str) -> Optional[Dict[str, str]]:
    """The job's last error, if it has this text."""
    if job is None:
        return None
    parts: Dict[str, str] = json.loads(job.last_error())
    return parts if parts.get("id") and parts["what"] in text else None


def _parsed(text: str) -> Optional[Dict[str, str]]:
    match = _TEXT.search(text.split("\nException raised from ")[0])  # LibTorch's own stack follows
    if match is None:
        return None
    number, what, where, why, fix = (part or "" for part in match.groups())
    return {"id": _NUMBERS.get(number, "TP" + number), "what": what, "where": where, "why": why, "fix": fix}
