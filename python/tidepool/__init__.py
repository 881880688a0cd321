"""Tidepool: trains torch modules whose states are held by memserver, a memory server.

    import tidepool

    model = tidepool.wrap(model)
    optimizer = tidepool.optim.AdamW(model.parameters(), lr=1e-3, max_grad_norm=1.0)
    for batch in loader:
        model(**batch).loss.backward()
        optimizer.step()
    tidepool.save_pretrained(model, "out")

docs/python.md says what works, and what is refused and why.
"""

from . import errors, optim
from ._checkpoint import Loaded, load, save, saved
from ._dcp import export_dcp
from ._estimate import Estimate, estimate
from ._gradients import gradient, keep_gradients
from ._held import held
from ._load import from_pretrained
from ._look import Memory, close, gathered, leave, memory, report_step, sealed_steps
from ._meta import init
from ._save import save_pretrained
from ._wrap import wrap
from .errors import FileError, JobExists, JobLost, MemoryTooSmall, NotFinite, RankLost, ServerError, TidepoolError, UsageError
from .experts import cut_experts

__all__ = [
    "Estimate",
    "FileError",
    "JobExists",
    "JobLost",
    "Loaded",
    "Memory",
    "MemoryTooSmall",
    "NotFinite",
    "RankLost",
    "ServerError",
    "TidepoolError",
    "UsageError",
    "close",
    "cut_experts",
    "errors",
    "estimate",
    "export_dcp",
    "from_pretrained",
    "gathered",
    "gradient",
    "held",
    "init",
    "keep_gradients",
    "leave",
    "load",
    "memory",
    "optim",
    "report_step",
    "save",
    "save_pretrained",
    "saved",
    "sealed_steps",
    "wrap",
]
