"""Optimizers that run at memserver: AdamW, Adam, SGD, Adagrad and Lion, as defined in torch.optim.

Making one begins, or continues, the job of the wrapped model to which its parameters belong. The groups' options are live: each step uses
the present learning rate, weight decay, betas, eps, momentum and so on. Fixed from the start are the rule, the groups themselves, nesterov,
and whether there is a momentum.

Gradients are averaged over the ranks, as in DistributedDataParallel, and summed over the micro-batches of a step. A parameter that no
backward of the step has reached, on any rank, stays unchanged, as in torch if its grad is None.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, Dict, Iterable, List, Mapping, Optional, Tuple, Union

import torch

from . import _check, _handle
from ._options import Rule
from .errors import UsageError

__all__ = ["AdamW", "Adam", "SGD", "Adagrad", "Lion"]

Params = Union[Iterable[torch.Tensor], Iterable[Dict[str, Any]], Iterable[Tuple[str, torch.Tensor]]]


class ServerOptimizer(torch.optim.Optimizer):
    """Common part of the optimizers. Main thread; ``step`` is collective: all ranks call it.

    Attributes:
        last_grad_norm: L2 norm of the last step's gradient over all parameters, before clipping; NaN before the first step.
        skipped: whether the last step changed nothing because a gradient was not finite.
    """

    _rule: ClassVar[str]
    _fixed: ClassVar[Tuple[str, ...]] = ()  # options of the whole job: equal in all groups, at all times

    last_grad_norm: float
    skipped: bool

    def __init__(self, params: Params, defaults: Dict[str, Any], max_grad_norm: float, states: str) -> None:
        self._server: Optional[_handle.Handle] = None
        super().__init__(params, defaults)
        self.last_grad_norm, self.skipped = math.nan, False
        _check_number("max_grad_norm", max_grad_norm)
        self._begun_with = {name: self.param_groups[0][name] for name in self._fixed}
        factors = _learning_rate_factors(self.param_groups)
        for index, group in enumerate(self.param_groups):
            self._check_fixed(index, group)

        handle = _handle.of_parameters(parameter for group in self.param_groups for parameter in group["params"])
        groups = [(factor, float(group["weight_decay"])) for factor, group in zip(factors, self.param_groups)]
        rule = Rule(self._rule, states, max_grad_norm, self._numbers(self.param_groups[0]), groups)
        handle.start(rule, _groups_of(handle, self.param_groups))
        self._server = handle

    @staticmethod
    def _numbers(group: Mapping[str, Any]) -> Dict[str, Any]:
        """The rule's numbers under the op library's names."""
        raise NotImplementedError

    @staticmethod
    def _live(group: Mapping[str, Any]) -> Tuple[float, float, float]:
        """The rule's values for beta1, beta2 and eps in a step (GroupNumbers in base/formats/optimizer.h)."""
        raise NotImplementedError

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Ends the step: submits it to the server and waits until it is sealed.

        Errors: UsageError (a closure, an option that must not change, no backward since the last step), RankLost,
        ServerError, MemoryTooSmall (the rCache), NotFinite.
        """
        if closure is not None:
            raise UsageError(
                "step() takes no closure",
                why="it would run forward and backward again within a step, and the server has the gradients already",
                fix="call loss.backward() and then step()",
            )
        self.last_grad_norm, self.skipped, _ = self._job().call("step", self._step_numbers())

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Does nothing: gradients are freed when the server has them."""

    @property
    def sealed_steps(self) -> int:
        """Number of the job's steps, including those before this process."""
        return int(self._job().call("version"))

    def add_param_group(self, param_group: Dict[str, Any]) -> None:
        if self._server is not None:
            raise UsageError("a job's parameter groups are fixed when it begins", fix="give all groups to the optimizer when you make it")
        super().add_param_group(param_group)

    def state_dict(self) -> Dict[str, Any]:
        """The groups' options and the number of sealed steps. The server keeps the moments with the job."""
        state = super().state_dict()
        state["tidepool"] = {"rule": self._rule, "sealed_steps": self.sealed_steps}
        return state

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        """Restores the groups' options. Errors: UsageError (another rule, other groups, a job at another step)."""
        about, groups = state_dict.get("tidepool"), state_dict.get("param_groups")
        if not isinstance(about, Mapping) or about.get("rule") != self._rule or not isinstance(groups, list):
            raise UsageError(f"this is no state of a tidepool.optim.{type(self).__name__}", where="load_state_dict")
        if [len(group["params"]) for group in groups] != [len(group["params"]) for group in self.param_groups]:
            raise UsageError("the state has other parameter groups than this optimizer", where="load_state_dict")
        if about["sealed_steps"] != self.sealed_steps:
            raise UsageError(
                f"the state is of step {about['sealed_steps']}, and the job is at step {self.sealed_steps}",
                where="load_state_dict",
                why="the state holds no moments: these are with the job at the server",
                fix="save the state once more whenever you save a model, or set the schedule to the job's step",
            )
        for index, group in enumerate(groups):
            self._check_fixed(index, group)
        for group, saved in zip(self.param_groups, groups):
            group.update({name: value for name, value in saved.items() if name != "params"})

    def _job(self) -> _handle.Handle:
        assert self._server is not None
        return self._server

    def _check_fixed(self, index: int, group: Mapping[str, Any]) -> None:
        for name, begun in self._begun_with.items():
            if group.get(name) == begun:
                continue
            raise UsageError(
                f"{name} of parameter group {index} is {group.get(name)}, and the job has {begun}",
                where=f"param_groups[{index}]['{name}']",
                why=f"{name} is one for the whole job, and fixed when it begins",
                fix="make the optimizer with that value for all groups, in a new job",
            )

    def _step_numbers(self) -> List[List[float]]:
        """By group: learning rate, weight decay, and the rule's beta1, beta2 and eps. Errors: UsageError."""
        numbers = []
        for index, group in enumerate(self.param_groups):
            self._check_fixed(index, group)
            for name in ("lr", "weight_decay"):
                _check_number(f"param_groups[{index}]['{name}']", float(group[name]))
            numbers.append([float(group["lr"]), float(group["weight_decay"]), *self._live(group)])
        return numbers


class AdamW(ServerOptimizer):
    """AdamW, as torch.optim.AdamW.

    Args:
        params: all trained parameters of one wrapped model, each once: ``model.parameters()``, named ones, or groups with ``lr`` and
            ``weight_decay`` of their own.
        lr: learning rate.
        betas: decay of the first and of the second moment, in [0, 1).
        eps: added to the root of the second moment.
        weight_decay: decoupled weight decay.
        max_grad_norm: largest L2 norm of the whole gradient, as torch.nn.utils.clip_grad_norm_; 0: no clipping.
        states: form of master weights and moments at the server: "fp32"; in bf16 jobs also "split", "split-bf16", "split-8bit".
    Errors: UsageError (the parameters are not those of a wrapped model, or a number is out of range), and those of a job's start:
    MemoryTooSmall, JobExists, JobLost, ServerError, RankLost.
    """

    _rule = "adamw"

    def __init__(
        self,
        params: Params,
        lr: float = 1e-3,
        betas: Tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        *,
        max_grad_norm: float = 0.0,
        states: str = "fp32",
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}, max_grad_norm, states)

    @staticmethod
    def _numbers(group: Mapping[str, Any]) -> Dict[str, Any]:
        return {**_betas(group), "eps": float(group["eps"])}

    @staticmethod
    def _live(group: Mapping[str, Any]) -> Tuple[float, float, float]:
        beta1, beta2 = group["betas"]
        return float(beta1), float(beta2), float(group["eps"])


class Adam(AdamW):
    """Adam, as torch.optim.Adam: weight decay is added to the gradient. Arguments and errors: as :class:`AdamW`."""

    _rule = "adam"

    def __init__(
        self,
        params: Params,
        lr: float = 1e-3,
        betas: Tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        max_grad_norm: float = 0.0,
        states: str = "fp32",
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay, max_grad_norm=max_grad_norm, states=states)


class SGD(ServerOptimizer):
    """Stochastic gradient descent, as torch.optim.SGD. Other arguments and errors: as :class:`AdamW`.

    Args:
        momentum: in [0, 1); 0: none, and no memory for it.
        dampening: of momentum, in [0, 1].
        nesterov: needs a momentum and no dampening.
    """

    _rule = "sgd"
    _fixed = ("nesterov",)

    def __init__(
        self,
        params: Params,
        lr: float = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        *,
        max_grad_norm: float = 0.0,
        states: str = "fp32",
    ) -> None:
        options = {"lr": lr, "momentum": momentum, "dampening": dampening, "weight_decay": weight_decay, "nesterov": nesterov}
        super().__init__(params, options, max_grad_norm, states)

    @staticmethod
    def _numbers(group: Mapping[str, Any]) -> Dict[str, Any]:
        return {
            "momentum": float(group["momentum"]),
            "dampening": float(group["dampening"]),
            "nesterov": bool(group["nesterov"]),
        }

    @staticmethod
    def _live(group: Mapping[str, Any]) -> Tuple[float, float, float]:
        return float(group["momentum"]), float(group["dampening"]), 0.0


class Adagrad(ServerOptimizer):
    """Adagrad, as torch.optim.Adagrad with an accumulator that begins with zero. Other arguments and errors: as :class:`AdamW`.

    Args:
        lr_decay: the rate of step t is ``lr / (1 + (t - 1) * lr_decay)``.
    """

    _rule = "adagrad"

    def __init__(
        self,
        params: Params,
        lr: float = 1e-2,
        lr_decay: float = 0.0,
        weight_decay: float = 0.0,
        eps: float = 1e-10,
        *,
        max_grad_norm: float = 0.0,
        states: str = "fp32",
    ) -> None:
        super().__init__(params, {"lr": lr, "lr_decay": lr_decay, "weight_decay": weight_decay, "eps": eps}, max_grad_norm, states)

    @staticmethod
    def _numbers(group: Mapping[str, Any]) -> Dict[str, Any]:
        return {"lr_decay": float(group["lr_decay"]), "eps": float(group["eps"])}

    @staticmethod
    def _live(group: Mapping[str, Any]) -> Tuple[float, float, float]:
        return float(group["lr_decay"]), 0.0, float(group["eps"])


class Lion(ServerOptimizer):
    """Lion (Chen et al. 2023), with decoupled weight decay. Other arguments and errors: as :class:`AdamW`.

    Args:
        betas: weight of the momentum in the direction of a step, and its decay.
    """

    _rule = "lion"

    def __init__(
        self,
        params: Params,
        lr: float = 1e-4,
        betas: Tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
        *,
        max_grad_norm: float = 0.0,
        states: str = "fp32",
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay}, max_grad_norm, states)

    @staticmethod
    def _numbers(group: Mapping[str, Any]) -> Dict[str, Any]:
        return _betas(group)

    @staticmethod
    def _live(group: Mapping[str, Any]) -> Tuple[float, float, float]:
        beta1, beta2 = group["betas"]
        return float(beta1), float(beta2), 0.0


def _betas(group: Mapping[str, Any]) -> Dict[str, Any]:
    beta1, beta2 = group["betas"]
    return {"beta1": float(beta1), "beta2": float(beta2)}


def _check_number(name: str, value: float) -> None:
    if not math.isfinite(value) or value < 0:
        raise UsageError(f"{name}={value} is not a finite number from 0", where=name)


def _learning_rate_factors(groups: List[Dict[str, Any]]) -> List[float]:
    """Each group's rate as a multiple of the largest, which is exactly 1; all 1 if a warm-up starts at zero."""
    rates = [float(group["lr"]) for group in groups]
    for rate in rates:
        _check_number("lr", rate)
    for group in groups:
        _check_number("weight_decay", float(group["weight_decay"]))
    largest = max(rates)
    return [rate / largest if largest > 0 else 1.0 for rate in rates]


def _groups_of(handle: _handle.Handle, groups: List[Dict[str, Any]]) -> Dict[int, int]:
    """Group by id of a trained parameter. Errors: UsageError if the groups are not exactly the model's trained parameters."""
    group_of = {id(parameter): index for index, group in enumerate(groups) for parameter in group["params"] if parameter.requires_grad}
    count = sum(parameter.requires_grad for group in groups for parameter in group["params"])
    if count != len(group_of):
        raise UsageError("a parameter is given to the optimizer more than once", fix="give each parameter once: model.parameters() does")
    trained = {id(one.parameter): one.name for one in _check.trained_parameters(handle.model)}
    left_out = [name for key, name in trained.items() if key not in group_of]
    if left_out:
        raise UsageError(
            f"{len(left_out)} trained parameters are not given to the optimizer, among them {left_out[0]}",
            where=left_out[0],
            why="all parameters that ask for a gradient belong to the job",
            fix="give the optimizer model.parameters(), or call requires_grad_(False) on those that are not to be trained",
        )
    if len(trained) != len(group_of):
        raise UsageError(
            f"{len(group_of) - len(trained)} parameters given to the optimizer are not of this model",
            why="a job trains one model",
            fix="wrap a module that has all of them, or make an optimizer for each wrapped model",
        )
    return group_of
