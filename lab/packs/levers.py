"""One configuration for each lever of the kernel, as packs: `python -m lab packs levers`.

What the emulator gives is packed, too. Its bits decide, and the tensors are in the pack: not every
version of torch draws the same numbers for every shape. Only of a dual, whose silu hardware
approximates, does the reference decide.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from b200.command_line import Parser
from harness.qualify.packing import Packer
from hopper.pack import record
from lab.kernel_cases import LEVER_CASES
from reference import generate_input
from submission import Problem, launch, problem_of, unpack


def case_of(problem: Problem) -> dict[str, Any]:
    """The arguments of generate_input for a problem."""
    first, groups = problem.groups[0], problem.groups
    if len(groups) > 1:
        sizes = {"m": tuple(p.shared for p in groups), "n": tuple(p.own for p in groups)}
        sizes |= {"k": tuple(p.k for p in groups), "g": len(groups)}
        return {"problem": "nvfp4_group_gemm", **sizes, "seed": 1111}
    sizes = {"k": first.k, "l": first.l, "seed": 1111}
    if problem.is_gemv:
        return {"problem": "nvfp4_gemv", "m": first.own, **sizes}
    name = "nvfp4_dual_gemm" if problem.num_products == 2 else "nvfp4_gemm"
    return {"problem": name, "m": first.shared, "n": first.own, **sizes}


def make(argv: list[str]) -> int:
    """Pack a case a lever."""
    parser = Parser("python -m lab packs levers", __doc__)
    parser.add_argument(
        "-o", "--out", default="packs", type=Path, metavar="FOLDER", help="where packs are written"
    )
    arguments = parser.parse_args(argv)
    packer = Packer(emulate=True)
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name, (config, problem) in LEVER_CASES.items():

        def kernel(data, config=config):
            groups, _ = unpack(data)
            launch(problem_of(data, groups), groups, config)

        case = case_of(problem)
        path = arguments.out / f"lever-{name.replace(' ', '_')}.npz"
        decided_by = case if problem.num_products == 2 else None
        record(packer.recorder, kernel, generate_input(**case), decided_by).save(path)
        print(f"{path}: {case}", flush=True)
    return 0
