"""A wrapped model: its options, its job once there is one, and the hooks between them.

The registry maps models to handles, weakly; a handle refers to its model weakly, and a hook to its handle. So an unused model is freed
together with its handle, and the job is left at the server or ended.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import traceback
import weakref
from typing import Any, Dict, Iterable, Iterator, List, Optional, Sequence, Set, Tuple

import torch
from torch import nn

from . import _backward, _check, _held, _options, _profile, _server, experts
from ._compiled import WholeModel, watch_modules
from ._gradients import KeptGradient
from ._hooks import install, refuse_forward
from ._library import new_job
from ._options import Options, Rule
from ._placed import Placed, ReadAhead, Weights
from ._progress import Progress, waits_for
from ._states import States
from .errors import UsageError, call

log = logging.getLogger("tidepool")


class Handle:
    """One wrapped model on this rank. Main thread only."""

    def __init__(self, model: nn.Module, options: Options, weights: Optional[Weights]) -> None:
        self._model = weakref.ref(model)
        self.options = options
        self.weights = weights
        self.checkpoint: Optional[States] = None  # a new job begins after its step
        self.state = "wrapped"  # then running, and finally closed or left
        self.told_of_casts = False
        self.kept_gradients: Dict[int, KeptGradient] = {}  # by parameter id
        self.whole = WholeModel(weakref.proxy(self))
        self.foreign = False  # this process is a fork of the training one
        self.job: Any = None
        self.place: Dict[str, Any] = {}
        self.slot: Dict[str, Any] = {}
        self.plan: Dict[str, Any] = {}
        self._members: Set[int] = set()  # ids of the job's parameters
        self._hooks: List[Any] = []
        self._finalizer: Optional[weakref.finalize] = None

    @property
    def model(self) -> nn.Module:
        model = self._model()
        if model is None:
            raise UsageError("the model of this job is gone", fix="keep a reference to it while you train")
        return model

    def is_of(self, model: nn.Module) -> bool:
        return self._model() is model

    @property
    def running(self) -> bool:
        return self.state == "running"

    @property
    def rank(self) -> int:
        return int(self.place.get("rank", os.environ.get("RANK", 0)))

    def start(self, rule: Rule, group_of: Dict[int, int]) -> None:
        """Begins the job, or continues it. `group_of`: the group of each trained parameter, by id. Errors: TidepoolError."""
        self._check_may_start()
        trained = _check.check(self.model, self.options, self.weights is not None)
        frozen = _check.frozen_parameters(self.model)
        dtypes = _check.dtypes(self.model, (*trained, *frozen), self.options)
        dtype = _check.job_dtype(trained, dtypes)
        server = _server.choose(self.options)
        job = new_job(_options.settings(self.options, dtype, rule, server))
        place = json.loads(call(job, "place"))

        inputs = _profile.inputs_of(self.model, self.options.example)
        profile = _profile.profile(self.model, inputs, [*trained, *frozen], dtypes)
        placed = Placed(self.weights, dtypes, _device(self.options, place), self.checkpoint)
        try:
            asked = f"asking memserver at {server[0] or _server.default_socket_dir()} for room"
            waits_for("starting a private memserver" if server[1] else asked, self.rank == 0)
            units = experts.units_of(self.model)
            plan, slot = _begin(job, trained, frozen, group_of, units, placed, profile, is_shown=self.rank == 0)
            placed.place_the_rest(self.model, {id(one.parameter) for one in (*trained, *frozen)})
            call(job, "bind")
        except BaseException as error:
            del job  # it shares each parameter, and so do the calling frames
            traceback.clear_frames(error.__traceback__)
            placed.undo()
            raise

        self.job, self.place, self.plan, self.slot, self.state = job, place, plan, slot, "running"
        self._members = {id(one.parameter) for one in (*trained, *frozen)}
        self.weights = self.checkpoint = None
        self._say_what_goes_on(is_private=server[1])
        self._remove_hooks()
        torch.autograd.set_multithreading_enabled(False)
        self._hooks = install(self, [one.parameter for one in trained])
        _held.watch(self)
        _backward.watch()
        experts.attach(self)
        self._finalizer = weakref.finalize(self, _let_go, job, self._is_kept(), os.getpid())

    def watch_for_early_forward(self) -> None:
        self._hooks = [refuse_forward(self.model)]

    def call(self, name: str, *arguments: Any) -> Any:
        """Calls a method of the job. Errors: TidepoolError."""
        if self.foreign:
            raise UsageError(
                "a forked process uses the job of its parent",
                why="the parameters are with the process that trains",
                fix='give workers (a DataLoader\'s too) what they need before, or start them with "spawn"',
            )
        if not self.running:
            raise UsageError(self._why_not_running())
        return call(self.job, name, *arguments)

    def values(self, name: str, parameter: torch.Tensor) -> torch.Tensor:
        """A copy of a parameter of the model, on its device. Collective while the job runs."""
        if id(parameter) in self._members:
            self.call("version")  # checks that the job runs, and in this process
            with torch.no_grad():
                copy = parameter.detach().clone()  # an operator, so the values are fetched
            self.call("check")
            return copy
        if parameter.is_meta:
            raise UsageError(
                f"the parameter {name} has no values yet", where=name, fix="make the optimizer first: the job begins, and the weights are loaded, then"
            )
        return parameter.detach().clone()

    def end(self, how: str) -> None:
        """Closes or leaves the job; `how` is the native method's name. A model without a job is only unwrapped."""
        if self.state == "wrapped":
            self._remove_hooks()
            _handles.pop(self.model, None)
            return
        if not self.running:
            return
        self.call(how)
        self._remove_hooks()
        if self._finalizer is not None:
            self._finalizer.detach()
        self.job, self.state = None, {"close": "closed", "leave": "left"}[how]

    def _remove_hooks(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def _check_may_start(self) -> None:
        watch_modules(self.model)
        if self.state != "wrapped":
            raise UsageError(
                "the job of this model has begun already" if self.running else self._why_not_running(),
                why="an optimizer begins the job of its model, and there is one job a model",
                fix="make the model anew, wrap it, and then make its optimizer",
            )
        if threading.current_thread() is not threading.main_thread():
            raise UsageError("the optimizer is made on another thread than the main one", fix="build and train the model on the main thread")
        for other in handles():
            if other is not self and other.running and self.options.job and other.options.job == self.options.job:
                raise UsageError(
                    f"job {self.options.job} runs already, in this process",
                    why="a notebook cell that ran before has begun it",
                    fix="call tidepool.leave(model) or tidepool.close(model) on the former model first, or choose another job=",
                )

    def _say_what_goes_on(self, is_private: bool) -> None:
        """Logs one line if resume="auto" cannot help a later start, unless the user has opted out of resuming."""
        if self.options.resume != "auto" or self.rank != 0:
            return
        name = self.options.job or self.place["job_name"]
        if is_private and self.options.job and self.options.standalone is None:
            log.warning("job %s is at a private memserver, and ends with this process: nobody serves at %s", name, _server.default_socket_dir())
        elif not is_private and not name:
            log.warning("job %s has a name that was made up: no later start can go on with it; give job=", self.slot["job"])

    def _is_kept(self) -> bool:
        """Whether the job outlives a process that ends without close(): a later start could resume it, or other ranks continue."""
        return self.place["world"] > 1 or (bool(self.options.job) and self.options.resume == "auto")

    def _why_not_running(self) -> str:
        return {
            "wrapped": "the job has not begun: it begins when the optimizer is made",
            "closed": "the job of this model was closed, and its weights went with it",
            "left": "the job of this model was left to the server, and this process has no part in it any more",
        }[self.state]


def _begin(
    job: Any,
    trained: Sequence[_check.Member],
    frozen: Sequence[_check.Member],
    group_of: Dict[int, int],
    units: Dict[int, int],
    placed: Placed,
    profile: Optional[_profile.Profile],
    is_shown: bool,
) -> Tuple[Dict[str, Any], Dict[str, Any]]:
    """Describes the parameters, takes the session slot, and puts the initial values of a new job. Returns plan and slot."""
    for one in trained:
        placed.place(one)
        call(job, "add_parameter", one.name, one.parameter, group_of[id(one.parameter)], one.multi_use, units.get(id(one.parameter), 0))
    for one in frozen:
        placed.place(one)
        index = call(job, "add_parameter", one.name, one.parameter, 0, False, 0)
        call(job, "give_frozen", index, placed.values(one))
    if profile is not None:
        call(job, "foresee", profile.native)
    first = [trained[index] for index in profile.order if index < len(trained)] if profile is not None else trained
    ReadAhead(placed, first).advance(0)  # while the server prepares its memory
    slot = json.loads(call(job, "open"))
    plan = json.loads(call(job, "plan"))  # after open: a resumed job has its own plan
    if not slot["resumed"]:
        placed.begin(job)
        order = call(job, "put_order")
        ahead = ReadAhead(placed, [trained[index] for index in order])
        progress = Progress("weights to the server", sum(one.bytes for one in trained), is_shown)
        try:
            for index in order:
                ahead.advance(trained[index].bytes)
                placed.put(job, index, trained[index])
                progress.advance(trained[index].bytes, placed.shard(trained[index]))
        finally:
            progress.end()
    return plan, slot


def _device(options: Options, place: Dict[str, Any]) -> torch.device:
    return torch.device("cuda", place["local_rank"]) if options.device == "cuda" else torch.device(options.device)


def _let_go(job: Any, keep: bool, owner: int) -> None:
    """Runs at the end of a handle or of the process if nobody has closed the job."""
    if os.getpid() != owner:
        return
    try:
        call(job, "leave" if keep else "close")
    except RuntimeError as error:
        log.warning("the job did not end in order: %s", error)


_handles: "weakref.WeakKeyDictionary[nn.Module, Handle]" = weakref.WeakKeyDictionary()


def handles() -> Iterator[Handle]:
    alive = list(_handles.items())  # models too, so that none is freed while its handle is inspected
    for _, handle in alive:
        yield handle


def wrap(model: nn.Module, options: Options, weights: Optional[Weights]) -> Handle:
    """Registers the model. Errors: UsageError."""
    former = known(model)
    if former is not None:
        raise UsageError(
            "this model is wrapped already" if former.state == "wrapped" else "this model is wrapped already, and its job has begun",
            why="the code that wraps it (a notebook cell?) ran twice on the same object",
            fix="make the model anew in the same cell; tidepool.leave(model) lets go of the former one's job",
        )
    _check.check(model, options, weights is not None)
    _profile.inputs_of(model, options.example)
    handle = Handle(model, options, weights)
    if weights is not None:
        handle.watch_for_early_forward()
    _handles[model] = handle
    return handle


def known(model: nn.Module) -> Optional[Handle]:
    """The handle of a model, if it is wrapped."""
    return _handles.get(model) if isinstance(model, nn.Module) else None


def of_model(model: nn.Module) -> Handle:
    """The handle of a wrapped model. Errors: UsageError."""
    handle = known(model)
    if handle is None:
        raise UsageError("this model is not wrapped", where=type(model).__name__, fix="call tidepool.wrap(model) first")
    return handle


def of_part(module: nn.Module) -> Handle:
    """The handle of the wrapped model that contains this module. Errors: UsageError."""
    for handle in handles():
        if any(part is module for part in handle.model.modules()):
            return handle
    return of_model(module)


def of_parameters(parameters: Iterable[torch.Tensor]) -> Handle:
    """The handle of the wrapped model that contains one of these parameters. Errors: UsageError."""
    asked = {id(parameter) for parameter in parameters}
    for handle in handles():
        if any(id(parameter) in asked for parameter in handle.model.parameters()):
            return handle
    raise UsageError(
        "these parameters belong to no wrapped model",
        fix="call model = tidepool.wrap(model) before you make the optimizer, and give it model.parameters()",
    )


def _forget_after_fork() -> None:
    for handle in handles():
        handle.foreign = True


os.register_at_fork(after_in_child=_forget_after_fork)
