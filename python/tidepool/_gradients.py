"""Access to gradients, which are freed once the server has them: copies are kept if requested before backward."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Dict, Iterator, List, Optional, Tuple, Union

import torch
from torch import nn

from .errors import UsageError

if TYPE_CHECKING:
    from ._handle import Handle


class KeptGradient:
    """The gradient of one parameter, summed over the micro-batches of a step."""

    def __init__(self) -> None:
        self.asked = 0  # number of open with-blocks
        self.total: Optional[torch.Tensor] = None
        self._before: Optional[torch.Tensor] = None  # from the step's earlier micro-batches
        self._at: Tuple[int, int] = (-1, -1)  # sealed steps, micro-batch

    def see(self, gradient: Optional[torch.Tensor], at: Tuple[int, int]) -> None:
        """Called when a gradient has been accumulated; for a parameter with several uses, after each use, with a growing sum."""
        if gradient is None:
            return
        if at[0] != self._at[0]:
            self._before = None
        elif at[1] != self._at[1]:
            self._before = self.total
        self._at = at
        with torch.no_grad():
            self.total = gradient.detach().clone() if self._before is None else self._before + gradient


@contextlib.contextmanager
def keep_gradients(*params_or_modules: Union[nn.Module, torch.Tensor]) -> Iterator[None]:
    """Within a ``with``, :func:`gradient` has copies of the gradients of these parameters: for debugging.

    A copy takes the parameter's memory once more, on its device. For a module, includes all trained parameters. Errors: UsageError (no
    parameters of a model with a running job).
    """
    from ._handle import of_parameters

    asked: List[Tuple["Handle", int]] = []
    for one in params_or_modules:
        for parameter in one.parameters() if isinstance(one, nn.Module) else [one]:
            if parameter.requires_grad:
                asked.append((of_parameters([parameter]), id(parameter)))
    for handle, key in asked:
        handle.kept_gradients.setdefault(key, KeptGradient()).asked += 1
    try:
        yield
    finally:
        for handle, key in asked:
            _give_up(handle.kept_gradients, key)


def _give_up(kept: Dict[int, KeptGradient], key: int) -> None:
    kept[key].asked -= 1
    if kept[key].asked == 0:
        del kept[key]


def gradient(parameter: torch.Tensor) -> Optional[torch.Tensor]:
    """The sum of this rank's gradients for a parameter since the last step, within :func:`keep_gradients`.

    Like ``p.grad`` in plain torch on this rank: the sum over its micro-batches, before the mean over the ranks and before clipping. After
    ``step`` it is that of the step just ended, until the next backward. None: no backward has reached the parameter.
    Errors: UsageError (it was not requested).
    """
    from ._handle import of_parameters

    kept = of_parameters([parameter]).kept_gradients.get(id(parameter))
    if kept is None:
        raise UsageError(
            "the gradient of this parameter was not kept",
            why="a gradient is given up when the server has it",
            fix="call backward, and ask, within: with tidepool.keep_gradients(parameter)",
        )
    return kept.total
