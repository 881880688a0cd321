"""Experts of transformers' models, one by one: each has parameters of its own, and is fetched only where a batch has tokens for it.

transformers keeps all experts of a layer in two tensors of three dimensions. They are cut along the first one. A module of experts then does
what the one before did, expert by expert, and tells the job which of them have tokens, before it uses any.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Optional, Sequence, Tuple, TypeVar, Union

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from ..errors import UsageError

if TYPE_CHECKING:
    from .._handle import Handle

Module = TypeVar("Module", bound=nn.Module)

_PARTS = ("gate_up_proj", "down_proj")


def cut_experts(model: Module) -> Module:
    """Cuts the fused experts of a model of transformers into single ones, in place, and returns it. Call it before :func:`tidepool.wrap`.

    For models whose experts are ``gate_up_proj`` and ``down_proj`` of shape ``(experts, ...)``, without biases, such as Mixtral and
    Qwen3-MoE. Their parameters are then ``...experts.5.gate_up_proj`` and so on, each with the values it had, and each expert's are
    fetched only if some rank has tokens for it. The results are those of transformers' own loop over experts
    (``experts_implementation="eager"``), and :func:`tidepool.save_pretrained` writes the names that transformers reads.

    Errors: UsageError (no such experts; weights that are not loaded yet; the model is wrapped already).
    """
    from .. import _handle

    if _handle.known(model) is not None:
        raise UsageError("this model is wrapped already", fix="call tidepool.cut_experts(model) before tidepool.wrap(model)")
    found = [(name, module) for name, module in model.named_modules() if _is_fused(module)]
    if not found:
        raise UsageError(
            f"{type(model).__name__} has no fused experts",
            where="cut_experts",
            why="it looks for modules with gate_up_proj and down_proj of three dimensions, an activation and no biases, as in Mixtral and Qwen3-MoE",
        )
    for name, fused in found:
        if any(parameter.is_meta for parameter in fused.parameters()):
            raise UsageError(f"the experts {name} have no values yet", where=name, fix="load the weights first, then cut the experts, then wrap the model")
    for name, fused in found:
        parent, _, last = name.rpartition(".")
        setattr(model.get_submodule(parent), last, Experts(fused))
    return model


def _is_fused(module: nn.Module) -> bool:
    """Whether a module is of the form of transformers' experts with a gate."""
    own = dict(module.named_parameters())
    if set(own) != set(_PARTS) or not callable(getattr(module, "act_fn", None)):
        return False
    if getattr(module, "is_transposed", False) or getattr(module, "has_bias", False) or not getattr(module, "has_gate", True):
        return False
    gate_up, down = (own[part] for part in _PARTS)
    if gate_up.dim() != 3 or down.dim() != 3:
        return False
    experts, wide, hidden = gate_up.shape
    return tuple(down.shape) == (experts, hidden, wide // 2) and wide % 2 == 0 and getattr(module, "num_experts", experts) == experts


class Expert(nn.Module):
    """One expert's MLP."""

    def __init__(self, gate_up: torch.Tensor, down: torch.Tensor, trained: Sequence[bool], activation: Any) -> None:
        super().__init__()
        # Copies: what a job trains has memory of its own.
        self.gate_up_proj = nn.Parameter(gate_up.detach().clone(), requires_grad=trained[0])
        self.down_proj = nn.Parameter(down.detach().clone(), requires_grad=trained[1])
        self.act_fn = activation

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        gate, up = nn.functional.linear(rows, self.gate_up_proj).chunk(2, dim=-1)
        return nn.functional.linear(self.act_fn(gate) * up, self.down_proj)


class Experts(nn.Module):
    """The experts of a layer: children "0", "1" and so on."""

    def __init__(self, fused: nn.Module) -> None:
        super().__init__()
        gate_up, down = (fused.get_parameter(part) for part in _PARTS)
        self.num_experts = gate_up.shape[0]
        for number in range(self.num_experts):
            trained = (gate_up.requires_grad, down.requires_grad)
            self.add_module(str(number), Expert(gate_up[number], down[number], trained, fused.act_fn))
        self.train(fused.training)
        self.routing: Optional[Routing] = None

    def each(self) -> List[Expert]:
        return [self.get_submodule(str(number)) for number in range(self.num_experts)]  # type: ignore[misc]

    def forward(self, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor) -> torch.Tensor:
        """hidden_states: (tokens, hidden); top_k_index and top_k_weights: (tokens, k)."""
        places = _places(top_k_index, self.num_experts)
        used = self._used(hidden_states, [int(token.shape[0]) for _, token in places])
        total = torch.zeros_like(hidden_states)
        for number, expert in enumerate(self.each()):
            choice, token = places[number]
            rows = hidden_states[token]
            if used[number]:
                rows = expert(rows) * top_k_weights[token, choice, None]
            else:
                rows = _PassedBy.apply(rows, self.routing, number)
            total.index_add_(0, token, rows.to(total.dtype))
        return total

    def _used(self, hidden_states: torch.Tensor, counts: List[int]) -> List[bool]:
        """Which experts are to be computed, those without tokens included unless the job leaves them out."""
        # Without a gradient to carry, backward would not come past the place of one that is left out.
        reaches = hidden_states.requires_grad or not torch.is_grad_enabled()
        if self.routing is None or not reaches or isinstance(hidden_states, FakeTensor):
            return [True] * self.num_experts
        return self.routing.used(counts)


def _places(top_k_index: torch.Tensor, experts: int) -> List[Tuple[torch.Tensor, torch.Tensor]]:
    """For each expert, which choice of which token it is, by choice, then by token: the order of transformers' loop."""
    if isinstance(top_k_index, FakeTensor):
        return _even_places(top_k_index, experts)
    flat = top_k_index.t().reshape(-1)
    order = torch.argsort(flat, stable=True)
    counts = torch.bincount(flat, minlength=experts)[:experts].tolist()
    tokens = top_k_index.shape[0]
    return [(at // tokens, at % tokens) for at in order[: sum(counts)].split(counts)]


def _even_places(top_k_index: torch.Tensor, experts: int) -> List[Tuple[torch.Tensor, torch.Tensor]]:
    """For a profile, on tensors without values: routing as even as possible."""
    choices = top_k_index.numel()
    counts = [choices // experts + (1 if number < choices % experts else 0) for number in range(experts)]
    empty = top_k_index.new_empty
    return [(empty((count,)), empty((count,))) for count in counts]


class _PassedBy(torch.autograd.Function):
    """The place of an expert that is left out, in forward and in backward: no rows come, none go."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, routing: "Routing", number: int) -> torch.Tensor:
        ctx.routing, ctx.number = routing, number
        routing.pass_by(number)
        return rows.new_empty(rows.shape)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Tuple[torch.Tensor, None, None]:
        ctx.routing.pass_by(ctx.number)
        return gradients[0], None, None


class Routing:
    """The job's side of the experts of a layer. A copy of the module (copy.deepcopy, pickle) has none."""

    def __init__(self, handle: "Handle", units: Sequence[int]) -> None:
        self._handle, self._units = weakref.ref(handle), list(units)

    def used(self, counts: List[int]) -> List[bool]:
        handle = self._handle()
        if handle is None or not handle.running:
            return [True] * len(counts)
        return [flag != 0 for flag in handle.call("route", self._units, counts)]

    def pass_by(self, number: int) -> None:
        handle = self._handle()
        if handle is not None:
            handle.call("pass_by", self._units[number])

    def __reduce__(self) -> Any:
        return type(None), ()


def units_of(model: nn.Module) -> Dict[int, int]:
    """The unit of each parameter of a trained expert, by id, from 1. Parameters of other modules, and frozen experts, have none."""
    units: Dict[int, int] = {}
    number = 0
    for layer in _cut(model):
        for expert in layer.each():
            number += 1
            if all(parameter.requires_grad for parameter in expert.parameters()):
                units.update({id(parameter): number for parameter in expert.parameters()})
    return units


def attach(handle: "Handle") -> None:
    """From now on the experts of a handle's model tell its job which of them have tokens."""
    units = units_of(handle.model)
    for layer in _cut(handle.model):
        of_layer = [units.get(id(expert.gate_up_proj), 0) for expert in layer.each()]
        layer.routing = Routing(handle, of_layer) if all(of_layer) else None


def _cut(model: nn.Module) -> Iterator[Experts]:
    return (module for module in model.modules() if isinstance(module, Experts))


class Stacked:
    """The parameters of a layer's experts, as one tensor of transformers' files."""

    def __init__(self, parts: Dict[str, nn.Parameter]) -> None:
        self.parts = parts
        first = next(iter(parts.values()))
        self.dtype, self.shape = first.dtype, (len(parts), *first.shape)


def as_fused(model: nn.Module, tensors: Dict[str, torch.Tensor]) -> Dict[str, Union[torch.Tensor, Stacked]]:
    """The same tensors, those of cut experts by the names that they had before."""
    layers = {f"{prefix}.": module for prefix, module in model.named_modules() if isinstance(module, Experts)}
    fused: Dict[str, Union[torch.Tensor, Stacked]] = {}
    for name, tensor in tensors.items():
        prefix = next((each for each in layers if name.startswith(each)), None)
        if prefix is None:
            fused[name] = tensor
            continue
        part = name.rpartition(".")[2]
        names = [f"{prefix}{number}.{part}" for number in range(layers[prefix].num_experts)]
        if prefix + part not in fused:
            fused[prefix + part] = Stacked({each: layers[prefix].get_parameter(each[len(prefix) :]) for each in names})
    return fused
