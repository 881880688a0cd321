"""Starts a training script with several ranks on this machine: python -m tidepool.launch -n 2 train.py ...

A thin wrapper around torch.distributed.run (torchrun), which can be used instead.
"""

from __future__ import annotations

import argparse
import os
from typing import List, Optional, Sequence


def _parse(words: Optional[Sequence[str]]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tidepool.launch",
        description="Starts SCRIPT with several ranks on this machine. Each rank finds its number in the environment (RANK, WORLD_SIZE).",
        epilog="Several machines, or more control: torchrun and Slurm's srun start the same script.",
    )
    parser.add_argument("-n", "--ranks", type=int, default=1, metavar="N", help="processes to start (default: 1)")
    parser.add_argument(
        "--max-restarts",
        type=int,
        default=0,
        metavar="N",
        help="how often all ranks are started again when one fails (default: 0); a named job at a shared memserver goes on then",
    )
    parser.add_argument("-m", "--module", action="store_true", help="SCRIPT is a module, as with python -m")
    parser.add_argument("script", metavar="SCRIPT")
    parser.add_argument("arguments", metavar="...", nargs=argparse.REMAINDER, help="what the script is given")
    options = parser.parse_args(words)
    if options.ranks < 1:
        parser.error("-n is a number from 1")
    return options


def _words(options: argparse.Namespace) -> List[str]:
    """The command line of torch.distributed.run."""
    words = ["--standalone", f"--nproc-per-node={options.ranks}", f"--max-restarts={options.max_restarts}"]
    return words + (["--module"] if options.module else []) + [options.script, *options.arguments]


def main(words: Optional[Sequence[str]] = None) -> None:
    options = _parse(words)
    # Otherwise each rank would use as many threads as there are processors, or torchrun would set one.
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) // options.ranks)))
    from torch.distributed.run import main as run

    run(_words(options))


if __name__ == "__main__":
    main()
