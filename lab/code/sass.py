"""Instructions that a warp issues for a k-tile, from SASS: `python -m lab sass [SHAPE ...]`.

A second opinion on the timing model, which counts PTX. For each benchmark shape the kernel is
compiled for sm_100a and disassembled. Counted is the text of the loop that does a role's work;
where ptxas unrolled it, the loads or MMAs in it say how many k-tiles that are. Exit status 1 where
a role's loop is not found, or an instruction that is asked for is in none.

`python -m lab sass --candidates [SHAPE ...]`: the MMA loop of each configuration that a survey
tries, a line a plan. R2UR are moves of what ptxas cannot prove uniform; the last
number is of instructions in the text before the first load.
"""

from __future__ import annotations

import argparse
import atexit
import os
import shutil
import sys
import tempfile
from collections import Counter

os.environ |= {"CUTE_DSL_KEEP": "ptx,cubin", "CUTE_DSL_KEEP_CUBIN": "1"}
os.environ["CUTE_DSL_DUMP_DIR"] = tempfile.mkdtemp()

import submission
from b200.command_line import Parser
from lab.code.disassembly import count, disassemble, find_tool, mma_loop, role_loop
from lab.survey import plans
from lab.survey.table import name as told
from lab.tuning.shapes import benchmarks

# TMA loads; tcgen05.mma and commit.
ROLES = {"load": ("UTMALDG",), "MMA": ("UTCOMMA", "UTCBAR")}
SHOWN = ("UTMALDG", "UTCOMMA", "UTCCP", "UTCBAR")


def sass_of(problem: submission.Problem, config: submission.Config, tool: str) -> list[str]:
    cubin = submission.kernel_for(problem, config)[0].__cubin__
    return disassemble(cubin if isinstance(cubin, bytes) else cubin.encode("latin-1"), tool)


def candidates(names: list[str], tool: str) -> int:
    """A line for each plan among the candidates of these shapes."""
    seen = set()
    for name in names:
        problem = benchmarks()[name]
        for config in plans.candidates(problem):
            plan = submission.check(config, problem)
            if plan in seen:
                continue
            seen.add(plan)
            loop = mma_loop(sass_of(problem, config, tool))
            print(
                f"{name}: {told(config):65} {loop.instructions:3} instructions, {loop.mmas} MMA, "
                f"{loop.copies} copies, {loop.to_uniform} R2UR; {loop.before_load} before a load, "
                f"{loop.behind_wait} behind the wait",
                flush=True,
            )
    print(f"{len(seen)} plans")
    return 0 if seen else 1


def arguments() -> argparse.Namespace:
    parser = Parser(
        prog="python -m lab sass",
        description="Instructions that a warp issues for a k-tile, from SASS.",
    )
    parser.add_argument("shapes", nargs="*", metavar="SHAPE", help='as "gemv 1"; all by default')
    parser.add_argument(
        "--candidates", action="store_true", help="every plan that a survey tries, a line each"
    )
    return parser.parse_args()


def main() -> int:
    atexit.register(shutil.rmtree, os.environ["CUTE_DSL_DUMP_DIR"], ignore_errors=True)
    options = arguments()
    tool = find_tool()
    if not tool:
        print("nvdisasm: neither on the PATH nor in nvidia-cuda-nvdisasm", file=sys.stderr)
        return 2
    shapes, missing = benchmarks(), False
    if unknown := set(options.shapes) - set(shapes):
        print(f"unknown shapes {sorted(unknown)}; there are {sorted(shapes)}", file=sys.stderr)
        return 2
    asked = options.shapes or list(shapes)
    if options.candidates:
        return candidates(asked, tool)
    found: Counter[str] = Counter()
    for name in asked:
        config = submission.pick(shapes[name])
        lines = sass_of(shapes[name], config, tool)
        print(f"{name}: {told(config)}")
        for role, instructions in ROLES.items():
            inside = role_loop(lines, instructions)
            if not inside:
                print(f"  {role:5} no loop has {' and '.join(instructions)}", file=sys.stderr)
                missing = True
                continue
            counts = {kind: count(inside, kind) for kind in SHOWN}
            found.update(counts)
            shown = ", ".join(f"{n} {kind}" for kind, n in counts.items() if n)
            print(f"  {role:5} {len(inside):4} instructions: {shown}")
    if absent := [kind for kind in SHOWN if not found[kind]]:
        print(f"no loop has {', '.join(absent)}", file=sys.stderr)
    return 1 if missing or absent else 0


if __name__ == "__main__":
    sys.exit(main())
