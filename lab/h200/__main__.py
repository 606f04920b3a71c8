"""python -m lab h200 NAME [--out FILE]: a rig of this folder, on an H200.

The names: chain, clusters, dependent, depth, ingest, launch, memory, mixed, replays, sharing,
stores, written; code_cost, fence_cost, issue_cost, load_cost.

A rig is a module. `results` measures and gives a row after the other; its docstring says what they
are.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from b200.command_line import USAGE, Parser
from hopper.errors import HopperError
from hopper.run import require_gpu
from hopper.this_gpu import describe, write

RIGS = (
    *("chain", "clusters", "dependent", "depth", "ingest", "launch", "memory", "mixed", "replays"),
    *("sharing", "stores", "written"),
    *("code_cost", "fence_cost", "issue_cost", "load_cost"),
)


def told(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows, each printed as it comes, below their names."""
    kept: list[dict[str, Any]] = []
    for row in rows:
        if not kept:
            print(*row, sep=" | ")
        print(*map(_cell, row.values()), sep=" | ", flush=True)
        kept.append(row)
    return kept


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.2f}"
    if isinstance(value, dict):
        return ", ".join(f"{key} {_cell(each)}" for key, each in value.items())
    return ", ".join(map(_cell, value)) if isinstance(value, (list, tuple)) else str(value)


def main(argv: Sequence[str]) -> int:
    """Measure, print the results as they come, write them with --out. Returns the exit status."""
    parser = Parser("python -m lab h200", __doc__)
    parser.add_argument("rig", nargs="?", metavar="NAME", help="what to measure")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the results here")
    options = parser.parse_args(argv)
    if options.rig is None:
        parser.print_help()
        return 0
    if options.rig not in RIGS:
        parser.error(f"no rig is called {options.rig}: there are {', '.join(RIGS)}")
    try:
        print(f"measured on {require_gpu()}")
        results = told(importlib.import_module(f"lab.h200.{options.rig}").results())
    except HopperError as error:
        print(error, file=sys.stderr)
        return USAGE
    if options.out:
        write(options.out, describe(), results=results)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
