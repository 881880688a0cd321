"""wrap: the entry point for any module."""

from __future__ import annotations

import os
from typing import Any, Optional, Sequence, TypeVar, Union

from torch import nn

from . import _handle, _options
from ._placed import Weights
from ._load import checkpoint
from ._options import DTypeLike

Module = TypeVar("Module", bound=nn.Module)


def wrap(
    model: Module,
    *,
    job: str = "",
    dtype: DTypeLike = None,
    rcache: Union[str, int] = "auto",
    plan: str = "",
    chunk_size: Union[str, int] = "auto",
    device: str = "cpu",
    resume: str = "auto",
    or_new: bool = False,
    server: Optional[str] = None,
    standalone: Optional[bool] = None,
    pool: Union[str, int] = "",
    gradient_accumulation_steps: int = 1,
    seed: int = 1,
    server_timeout: str = "120s",
    queue_timeout: str = "0s",
    rejoin_timeout: str = "10min",
    multi_use: Sequence[str] = (),
    example: Any = None,
    keep_fp32: Sequence[str] = (),
    weights: Union[None, str, "os.PathLike[str]", Weights] = None,
) -> Module:
    """Registers a model for training through memserver, and returns it; its parameters and its code stay unchanged.

    The job begins when a :mod:`tidepool.optim` optimizer is made from ``model.parameters()``: the weights then move to the server, and are
    fetched only for operators. Parameters with ``requires_grad=False`` at that moment are frozen: the server holds them once for all of
    this user's jobs with the same ones, quantised ones included. Each rank starts with its own copy of the weights, so give all ranks the
    same ones (the same seed, the same files).

    Args:
        model: a module with dense parameters on one device, fp32 or bf16 if they are trained, and without another wrapper.
        job: name of the job at a shared server, up to 63 letters, digits, ``.``, ``_`` and ``-``; "": from the launcher, or generated;
            a generated name cannot be resumed.
        dtype: of weights and gradients: "fp32" or "bf16" converts all parameters of 16 bits or more; None: each keeps its own. For bf16
            weights the server has fp32 master weights, which keep the precision of the given parameters.
        rcache: memory on this rank's device for weights used by operators: a share of the parameters that are not resident, such as
            "25%", or a size, such as "2GiB" (an int is bytes); "auto": with an ``example``, the least without noticeable loss (on a GPU
            what fits beside activations); otherwise, and with several ranks, a quarter; at least 64 MiB and four chunks.
        plan: how ranks hold the weights: "ddp" (each fetches whole chunks, gradients are all-reduced), "zero2" (all stay on the device,
            gradients are reduce-scattered), "zero3" (as few as the order of use allows; needs an ``example``), "auto" (what saves
            transfers); ``rcache`` is a limit then. "": rcache says it all. Weights have the same bits under every plan.
        chunk_size: size of the unit of transfer: "auto", or a size.
        device: "cpu", "cuda" (the local rank's) or "cuda:N".
        resume: "auto" continues a job of that name at the server; "never" refuses to touch it.
        or_new: with resume: start over if the server has lost that job's states.
        server: socket directory of a running memserver; None: see standalone.
        standalone: True: a private server, which ends with this process; False: a shared one; None: the shared one in the default
            directory if it accepts connections, else a private one.
        pool: pool size of a private server; "": as small as the job allows.
        gradient_accumulation_steps: maximum of backward calls per step. Gradients are summed, as in torch: divide the loss.
        seed: for stochastic rounding (states "split-bf16", "split-8bit") and the first step's evictions in the rCache.
        server_timeout: how long to wait for a server that has ended and is restarted, such as "120s".
        queue_timeout: how long to wait for room in the server's queue.
        rejoin_timeout: with resume: how long to wait for ranks that have died.
        multi_use: names of parameters that forward uses more than once. Those with several names are found automatically, and with an
            ``example`` all others too; needed for modules that run twice under reentrant checkpointing.
        example: arguments of the model in training, as a mapping of keyword arguments, a tuple, or one tensor; only sizes matter. When
            the job begins, a copy of the model without memory runs once on it, forward and backward: parameters are packed in order of
            first use, and the first step already prefetches. None: models of transformers run on their ``dummy_inputs``, whose sizes
            are ignored; others are packed in order of registration.
        keep_fp32: names of parameters that stay fp32, or parts of names, with * for any text. With dtype="bf16" they include those in
            ``_keep_in_fp32_modules_strict`` of a model of transformers.
        weights: values of parameters on the meta device (see :func:`tidepool.init`): a directory or file of safetensors, or a function
            from a parameter's name to a tensor of its shape in host memory, called once per parameter.
    Errors: UsageError, naming the wrong parameter or option; FileError.
    """
    options = _options.Options(
        job=job,
        dtype=dtype,
        rcache=rcache,
        plan=plan,
        chunk_size=chunk_size,
        device=device,
        resume=resume,
        or_new=or_new,
        server=server,
        standalone=standalone,
        pool=pool,
        gradient_accumulation_steps=gradient_accumulation_steps,
        seed=seed,
        server_timeout=server_timeout,
        queue_timeout=queue_timeout,
        rejoin_timeout=rejoin_timeout,
        multi_use=multi_use if isinstance(multi_use, str) else tuple(multi_use),
        example=example,
        keep_fp32=keep_fp32 if isinstance(keep_fp32, str) else tuple(keep_fp32),
    )
    source = checkpoint(os.fspath(weights), model) if isinstance(weights, (str, os.PathLike)) else weights
    _handle.wrap(model, options, source)
    return model
