"""python -m lab h200 NAME [ARGUMENTS]: a rig of this folder, on an H200.

The names: clusters, dependent, depth, ingest, launch, memory, mixed, sharing, stores, written;
code_cost, fence_cost, issue_cost, load_cost.
"""

from __future__ import annotations

import runpy
import sys

RIGS = (
    *("clusters", "dependent", "depth", "ingest", "launch", "memory", "mixed", "sharing"),
    *("stores", "written"),
    *("code_cost", "fence_cost", "issue_cost", "load_cost"),
)


def main() -> int:
    name = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if name in RIGS:
        del sys.argv[1]
        runpy.run_module(f"lab.h200.{name}", run_name="__main__", alter_sys=True)
        return 0
    asked = name in ("-h", "--help")
    if not asked:
        known = ", ".join(RIGS)
        print(f"python -m lab h200: no rig is called {name}: there are {known}", file=sys.stderr)
        return 2
    print(__doc__ or "")
    return 0


if __name__ == "__main__":
    sys.exit(main())
