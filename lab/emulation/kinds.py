"""How fast the emulator is by kind of program, beside Triton's interpreter: docs/lab/speed.md.

python -m lab kinds [NAME ...]
    a row for each kernel of kind_kernels.py: warp instructions of its first launch, CPU
    microseconds of each with the checker on, the same where no CTAs run abreast, CPU seconds of
    the launch, and those of the same kernel by TRITON_INTERPRET=1, which checks nothing

A kernel runs in three processes, one after the other. What its compiler takes is left out. It takes
the extra `triton`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from b200.chip.abreast.order import SWITCH
from b200.command_line import Parser
from lab.tables.markdown import table

KERNELS = Path(__file__).with_name("kind_kernels.py")
KINDS = {  # name -> what it is in words
    "add": "sum of 2^18 elements, 256 CTAs",
    "softmax": "softmax of 256 rows of 1000, 256 CTAs",
    "scan": "running sums in place, 64 rows of 1024, 64 CTAs",
    "sort": "sorts in place, 32 rows of 256, 32 CTAs",
    "escape": "50 steps of 128 x 64 points, 64 CTAs",
    "matmul": "product of 256 x 256 in fp16, 16 CTAs",
}
HEAD = (
    "Triton kernel",
    "warp instructions",
    "us each, checked",
    "the same, CTAs one by one",
    "s, checked",
    "s, `TRITON_INTERPRET=1`",
)


def measured(name: str, switch: str = "", interpreted: bool = False) -> dict[str, Any]:
    """What a process says of a kernel: {"seconds", "instructions"}. switch: of CTAs abreast."""
    run = [] if interpreted else ["-m", "b200", "run"]
    environment = {"TRITON_INTERPRET": "1"} if interpreted else {}
    environment |= {SWITCH: switch} if switch else {}
    done = subprocess.run(
        [sys.executable, *run, str(KERNELS), name],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise SystemExit(f"{name}: {done.stderr or done.stdout}")
    return json.loads(next(x for x in done.stdout.splitlines() if x.startswith("{")))


def row(name: str) -> tuple[str, ...]:
    checked, alone, other = measured(name), measured(name, "0"), measured(name, interpreted=True)
    n = checked["instructions"]
    return (
        KINDS[name],
        f"{n:,}",
        f"{1e6 * checked['seconds'] / n:.2g}",
        f"{1e6 * alone['seconds'] / n:.2g}",
        f"{checked['seconds']:.2g}",
        f"{other['seconds']:.2g}",
    )


def main(argv: list[str]) -> int:
    parser = Parser(prog="python -m lab kinds", description=__doc__)
    parser.add_argument("name", nargs="*", help=f"of {', '.join(KINDS)}; all if none")
    names = parser.parse_args(argv).name or list(KINDS)
    if wrong := [name for name in names if name not in KINDS]:
        parser.error(f"unknown kernel {wrong[0]!r}: there are {', '.join(KINDS)}")
    print(table(HEAD, []))
    for name in names:
        print(f"| {' | '.join(row(name))} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
