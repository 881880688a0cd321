"""Errors that come out of backward: LibTorch turns the op library's exceptions into plain RuntimeErrors there."""

from __future__ import annotations

from typing import Any, Dict, Tuple

import torch

from ._code import replace_code
from .errors import TidepoolError, from_native

_plain: Any = None  # runs a backward, once watched


def watch() -> None:
    """From now on Tidepool's errors that end a backward are raised as TidepoolErrors."""
    global _plain
    if _plain is None:
        _plain = replace_code(torch.autograd.graph._engine_run_backward, _watched)


def _watched(t_outputs, *args, **kwargs):  # type: ignore[no-untyped-def]
    # This code runs with the globals of torch.autograd.graph.
    from tidepool import _backward

    return _backward.run(t_outputs, args, kwargs)


def run(outputs: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
    """Replaces torch.autograd.graph._engine_run_backward."""
    try:
        return _plain(outputs, *args, **kwargs)
    except TidepoolError:
        raise
    except RuntimeError as error:
        ours = from_native(error)
        if ours is error:
            raise
        raise ours from None
