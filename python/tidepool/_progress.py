"""Progress of a job's start: one changing line if stderr is a terminal; else a summary in the package's log."""

from __future__ import annotations

import logging
import sys
import time
from typing import Callable, Tuple

from ._options import size_text

log = logging.getLogger("tidepool")

_EVERY_SECONDS = 0.2  # limits the cost of a terminal


class Progress:
    """Progress in bytes, of a known total. Shown by rank 0 only."""

    def __init__(self, what: str, bytes_in_all: int, is_shown: bool, now: Callable[[], float] = time.monotonic) -> None:
        self._what, self._bytes_in_all, self._is_shown, self._now = what, bytes_in_all, is_shown, now
        self._begun = self._shown_at = now()
        self._bytes = 0
        self._on_terminal = is_shown and sys.stderr.isatty()

    def advance(self, bytes_more: int, shard: Tuple[int, int] = (0, 0)) -> None:
        """`shard`: number of the source file, and number of files; (0, 0): unknown."""
        self._bytes += bytes_more
        if self._on_terminal and self._now() - self._shown_at >= _EVERY_SECONDS:
            self._shown_at = self._now()
            of_files = f", shard {shard[0]} of {shard[1]}" if shard[1] else ""
            sys.stderr.write(f"\r\033[Ktidepool: {self._what}: {size_text(self._bytes)} of {size_text(self._bytes_in_all)}{of_files}, {self._rate()}")
            sys.stderr.flush()

    def end(self) -> None:
        """All bytes have arrived, or no more will."""
        if self._on_terminal:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()
        elif self._is_shown:
            log.info("%s: %s, %s", self._what, size_text(self._bytes), self._rate())

    def _rate(self) -> str:
        return f"{size_text(int(self._bytes / max(self._now() - self._begun, 1e-9)))}/s"


def waits_for(what: str, is_shown: bool) -> None:
    """Reports what the start waits for: on a terminal as a line, else in the log."""
    if is_shown and sys.stderr.isatty():
        sys.stderr.write(f"tidepool: {what}\n")
        sys.stderr.flush()
    elif is_shown:
        log.info("%s", what)
