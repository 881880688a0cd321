"""Errors that come out of backward: LibTorch makes plain RuntimeErrors of what the op library throws there."""

from __future__ import annotations

from typing import Any, Dict, Tuple

import torch

from ._code import replace_code
from .errors import TidepoolError, from_native

_plain: Any = None  # what runs a backward, once it is watched


def watch() -> None:
    """From here on Tidepool's errors that end a backward are TidepoolErrors."""
    global _plain
    if _plain is None:
        _plain = replace_code(torch.autograd.graph._engine_run_backward, _watched)


def _watched(t_outputs, *args, **kwargs):  # type: ignore[no-untyped-def]
    # Its code runs with the globals of torch.autograd.graph.
    from tidepool import _backward

    return _backward.run(t_outputs, args, kwargs)


def run(outputs: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
    """torch.autograd.graph._engine_run_backward."""
    try:
        return _plain(outputs, *args, **kwargs)
    except TidepoolError:
        raise
    except RuntimeError as error:
        ours = from_native(error)
        if ours is error:
            raise
        raise ours from None
