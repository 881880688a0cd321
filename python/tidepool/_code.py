"""Replaces the code of torch functions: programs, and torch itself, hold function objects from before a job begins."""

from __future__ import annotations

import types
from typing import Any

import torch


def replace_code(function: Any, other: Any) -> Any:
    """Gives `function` the code of `other`, run with the globals and cells of `function`. Returns a function with the former code.

    Errors: RuntimeError (this torch has a different function).
    """
    former, code = function.__code__, other.__code__
    if former.co_freevars != code.co_freevars:
        raise RuntimeError(f"torch {torch.__version__} has another {function.__qualname__} than Tidepool knows")
    plain = types.FunctionType(former, function.__globals__, function.__name__, function.__defaults__, function.__closure__)
    plain.__kwdefaults__ = function.__kwdefaults__
    function.__code__ = code
    return plain
