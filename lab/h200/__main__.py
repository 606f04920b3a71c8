"""python -m lab h200 NAME [--out FILE]: a rig of this folder, on an H200.

The names: chain, clusters, dependent, depth, ingest, launch, memory, mixed, sharing, stores,
written; code_cost, fence_cost, issue_cost, load_cost.

A rig is a module. `measure_all` gives its results, dataclasses; COLUMNS and `rows` make a table of
them; its docstring says what they are.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from b200 import records
from b200.command_line import USAGE, Parser
from hopper.errors import HopperError
from hopper.run import require_gpu
from hopper.this_gpu import describe, made_by
from lab.tables import markdown

RIGS = (
    *("chain", "clusters", "dependent", "depth", "ingest", "launch", "memory", "mixed", "sharing"),
    *("stores", "written"),
    *("code_cost", "fence_cost", "issue_cost", "load_cost"),
)


def run(rig: Any, argv: Sequence[str]) -> int:
    """Measure, print the results as a table, write them with --out. Exit status."""
    parser = Parser("python -m lab h200", (rig.__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the results here")
    options = parser.parse_args(argv)
    try:
        name = require_gpu()
        results = rig.measure_all()
    except HopperError as error:
        print(error, file=sys.stderr)
        return USAGE
    if not results:
        print("nothing was measured", file=sys.stderr)
        return 1
    print(f"measured on {name}, cycles\n{markdown.table(rig.COLUMNS, rig.rows(results))}")
    if options.out:
        machine = describe()
        found = {"made_by": made_by(machine), "machine": machine}
        records.write(options.out, found | {"results": [asdict(r) for r in results]})
    return 0


def main() -> int:
    name = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if name in RIGS:
        return run(importlib.import_module(f"lab.h200.{name}"), sys.argv[2:])
    if name in ("-h", "--help"):
        print(__doc__ or "")
        return 0
    known = ", ".join(RIGS)
    print(f"python -m lab h200: no rig is called {name}: there are {known}", file=sys.stderr)
    return USAGE


if __name__ == "__main__":
    sys.exit(main())
