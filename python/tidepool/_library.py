"""Locates the op library and the programs, and loads the library."""

from __future__ import annotations

import functools
import os
import pathlib
from typing import Any, List, Tuple

import torch

from .errors import TidepoolError, from_native

_PACKAGE = pathlib.Path(__file__).resolve().parent
_NAME = "libtidepool_torch.so"


def _checkout_build() -> pathlib.Path:
    return _PACKAGE.parents[1] / "build"


def library_path() -> pathlib.Path:
    """The op library: TIDEPOOL_TORCH_LIBRARY of the environment, else in the package, else in the checkout. Errors: TidepoolError."""
    named = os.environ.get("TIDEPOOL_TORCH_LIBRARY", "")
    places: List[pathlib.Path] = [pathlib.Path(named)] if named else [_PACKAGE / "lib" / _NAME, _checkout_build() / "lib" / _NAME]
    for place in places:
        if place.is_file():
            return place
    raise TidepoolError(
        f"the library of operators, {_NAME}, is not there",
        where=", ".join(map(str, places)),
        fix="install the wheel, build the checkout, or name the file in TIDEPOOL_TORCH_LIBRARY",
        id="FileUnreadable",
    )


def program_path(name: str) -> str:
    """`name` in TIDEPOOL_BIN, the package or the checkout; "" if it has to be in PATH."""
    folders: Tuple[pathlib.Path, ...] = (_PACKAGE / "bin", _checkout_build() / "bin")
    if os.environ.get("TIDEPOOL_BIN"):
        folders = (pathlib.Path(os.environ["TIDEPOOL_BIN"]),)
    for folder in folders:
        if os.access(folder / name, os.X_OK):
            return str(folder / name)
    return ""


@functools.lru_cache(maxsize=None)
def load() -> None:
    """Loads the op library, once. Errors: TidepoolError."""
    path = library_path()
    try:
        torch.ops.load_library(str(path))
    except OSError as error:
        raise TidepoolError(
            "the library of operators cannot be loaded",
            where=str(path),
            why=str(error),
            fix=f"use a build of Tidepool for this torch, {torch.__version__}",
            id="LibraryFailed",
        ) from error
    built_for, here = str(torch.ops.tidepool.torch_version()), torch.__version__
    if built_for.split(".")[:2] != here.split(".")[:2]:
        raise TidepoolError(
            f"the library of operators is built for torch {built_for}, and this is torch {here}",
            where=str(path),
            why="LibTorch's classes have other members in each minor version",
            fix=f"install torch {'.'.join(built_for.split('.')[:2])}, or use a build of Tidepool for this torch, {here}",
            id="LibraryFailed",
        )


def new_job(settings: str) -> Any:
    """A native job with these settings, a JSON object; contacts nobody. Errors: UsageError."""
    load()
    try:
        return torch.classes.tidepool.Job(settings)
    except RuntimeError as error:
        raise from_native(error) from None


def new_profile() -> Any:
    """A native recorder of one forward and backward."""
    load()
    return torch.classes.tidepool.Profile()


def version() -> str:
    """The op library's version."""
    load()
    return str(torch.ops.tidepool.version())
