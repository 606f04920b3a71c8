"""Packs of the kernel's launches for a Hopper GPU (hopper/pack.py).

    python -m lab packs make gemm --mode test -o packs    the leaderboards' cases
    python -m lab packs families -o packs                 the benchmarks, in several configurations
    python -m lab packs levers -o packs                   a configuration for each lever
    python -m lab packs run packs/*.npz --repeat 10       torch, cuda-python and a Hopper GPU
    python -m lab packs calls packs/*.npz --calls 200     launches that overlap, inputs that change
    python -m lab packs pipeline packs/*.npz              the load pipeline alone, timed there

The first three take the DSL and need no GPU.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence

from b200.command_line import dispatch


def _of(module: str, function: str) -> Callable[[Sequence[str]], int]:
    """A command, whose module is imported when it is asked for."""
    return lambda argv: getattr(importlib.import_module(module), function)(list(argv))


def run(argv: Sequence[str]) -> int:
    """Run packs of official cases on this machine's Hopper GPU."""
    from hopper import run_pack
    from lab.packs.official import OfficialCases

    return run_pack.main(list(argv), OfficialCases())


COMMANDS = {
    "make": _of("lab.packs.official", "make"),
    "families": _of("lab.packs.families", "make"),
    "levers": _of("lab.packs.levers", "make"),
    "run": run,
    "calls": _of("lab.packs.calls", "main"),
    "pipeline": _of("hopper.pipeline", "main"),
}


def main(argv: Sequence[str]) -> int:
    """The command. Returns the exit status."""
    return dispatch("python -m lab packs", COMMANDS, argv, __doc__ or "")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
