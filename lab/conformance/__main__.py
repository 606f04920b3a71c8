"""The instruction table beside ptxas: `python -m lab conformance`.

    python -m lab conformance --ptxas ptxas --ptxas PATH/ptxas --out docs/results/conformance.json

Statements of every form of the table (b200/isa/forms), their neighbours, and statements with an
invented modifier: whether each ptxas takes them, and whether the emulator translates them. A newer
ptxas is in the wheel nvidia-cuda-nvcc. Ends with 1 where something illegal translates.
"""

from __future__ import annotations

import argparse
import dataclasses
import shutil
import sys
from pathlib import Path

from b200 import records
from b200.command_line import Parser
from harness import digest
from lab.conformance.assembler import Ptxas
from lab.conformance.study import study


def assembler(path: str) -> Ptxas:
    """Raises ArgumentTypeError."""
    if shutil.which(path) is None:
        raise argparse.ArgumentTypeError(f"there is no ptxas {path}")
    return Ptxas(path)


def main() -> int:
    parser = Parser(prog="python -m lab conformance", description=__doc__)
    parser.add_argument(
        "--ptxas", action="append", type=assembler, help="an assembler; may be given again"
    )
    parser.add_argument("--most", type=int, default=8, help="statements of a form, about (8)")
    parser.add_argument("--seed", type=int, default=1, help="of the choice of statements (1)")
    parser.add_argument("--out", type=Path, help="write the counts as JSON")
    options = parser.parse_args()
    assemblers = options.ptxas or [Ptxas("ptxas")]
    chapters, beside = study(assemblers, options.most, options.seed)
    record = {
        "made_by": digest.made_by(parts=("program", "chip")),
        "seed": options.seed,
        "most": options.most,
        "chapters": [dataclasses.asdict(chapter) for chapter in chapters],
        "beside": sorted(statement.split()[0] for statement in beside),
    }
    if options.out:
        options.out.write_text(records.text(record))
    for chapter in record["chapters"]:
        print(*(f"{key} {value}" for key, value in chapter.items()), sep=", ")
    wrong = sum(c.illegal_translated + c.bogus_translated for c in chapters)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
