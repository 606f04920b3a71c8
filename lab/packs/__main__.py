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

import sys
from collections.abc import Sequence


def main(argv: Sequence[str]) -> int:
    """The command. Returns the exit status."""
    name, rest = (argv[0], list(argv[1:])) if argv else ("", [])
    if name in ("-h", "--help"):
        print(__doc__)
        return 0
    if name == "make":
        from lab.packs import official

        return official.make(rest)
    if name == "families":
        from lab.packs import families

        return families.make(rest)
    if name == "levers":
        from lab.packs import levers

        return levers.make(rest)
    if name == "run":
        from hopper import run_pack
        from lab.packs.official import OfficialCases

        return run_pack.main(rest, OfficialCases())
    if name == "calls":
        from lab.packs import calls

        return calls.main(rest)
    if name == "pipeline":
        from hopper import pipeline

        return pipeline.main(rest)
    what = f"no command is called {name}" if name else "a command is missing"
    known = "make, families, levers, run, calls, pipeline"
    print(f"python -m lab packs: {what}: the commands are {known}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
