"""wrap: the entry for any module."""

from __future__ import annotations

import os
from typing import Any, Optional, Sequence, TypeVar, Union

from torch import nn

from . import _handle, _options
from ._handle import Weights
from ._load import checkpoint
from ._options import DTypeLike

Module = TypeVar("Module", bound=nn.Module)


def wrap(
    model: Module,
    *,
    job: str = "",
    dtype: DTypeLike = None,
    rcache: Union[str, int] = "auto",
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
    """Registers a model for training through memserver, and returns it; its parameters and its code stay as they are.

    The job begins when a :mod:`tidepool.optim` optimizer is made of ``model.parameters()``: the weights then move to the server, and
    are brought for operators alone. Parameters with ``requires_grad=False`` at that moment are frozen: the server holds them once for
    all jobs of this user that have the same ones, quantised ones too.
    Ranks begin with the weights that each of them has: give all the same ones (the same seed, the same files).

    Args:
        model: a module with dense parameters on one device, fp32 or bf16 where they are trained, wrapped by nothing else.
        job: name of the job at a shared server, up to 63 letters, digits, ``.``, ``_`` and ``-``; "": from the launcher, or made up,
            and then no later process can go on with it.
        dtype: of weights and gradients: "fp32" or "bf16" converts all parameters of 16 bits or more; None: each keeps its own. The
            server has fp32 master weights beside bf16 ones, which keep the precision of the parameters that you hand over.
        rcache: memory on this rank's device for weights that operators use: a share of the parameters that are not resident,
            such as "25%", or a size, such as "2GiB" (bytes for an int); "auto": with an ``example``, as little as costs nothing that is
            noticed (on a GPU what fits beside activations), else and with several ranks a quarter; at least 64 MiB and four chunks.
        chunk_size: what moves at once: "auto", or a size.
        device: "cpu", "cuda" (the local rank's) or "cuda:N".
        resume: "auto" goes on with a job of that name which the server holds; "never" refuses to touch it.
        or_new: with resume: begin anew where the server has lost the states of that job.
        server: socket directory of a memserver that runs; None: see standalone.
        standalone: True: a private server, which ends with this process; False: a shared one; None: the shared one at the default
            place if somebody accepts connections there, else a private one.
        pool: size of a private server's pool; "": as small as the job allows.
        gradient_accumulation_steps: calls of backward in one step, at most. Gradients add up, as in torch: divide the loss.
        seed: of stochastic rounding (states "split-bf16", "split-8bit") and of what the rCache does in the first step.
        server_timeout: how long to wait for a server that has ended and is started again, such as "120s".
        queue_timeout: how long to wait in the server's queue for room.
        rejoin_timeout: with resume: how long to wait for ranks that have died.
        multi_use: names of parameters that the forward uses at several places. Those with several names are found by themselves, and
            with an ``example`` all others too; this is for modules that run twice under reentrant checkpointing.
        example: what the model is called with in training, as a mapping of keyword arguments, a tuple, or one tensor; values do not
            matter, sizes do. When the job begins, a copy of the model without memory runs once on it, forward and backward: parameters
            are packed in the order of their first use, and the first step already fetches ahead. None: models of transformers are
            run on their ``dummy_inputs``, whose sizes are not looked at; others are packed in the order of registration.
        keep_fp32: names of parameters that are fp32 in any case, or parts of names, with * for any text. With dtype="bf16" those that
            a model of transformers names in ``_keep_in_fp32_modules_strict`` are too.
        weights: values of parameters that are on the meta device (see :func:`tidepool.init`): a directory or file of safetensors,
            or a function from a parameter's name to a tensor of its shape in host memory, called once for each.
    Errors: UsageError, which names the parameter or the option that is wrong; FileError.
    """
    options = _options.Options(
        job=job,
        dtype=dtype,
        rcache=rcache,
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
