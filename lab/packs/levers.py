"""One configuration for each lever of the kernel, as packs: `python -m lab packs levers`.

What the emulator gives is packed, too. Its bits decide, and the tensors are in the pack: not every
version of torch draws the same numbers for every shape. Only of a dual, whose silu hardware
approximates, does the reference decide.
"""

from __future__ import annotations

from b200.command_line import Parser
from harness.qualify.packing import Packer
from hopper.pack import record
from lab.kernel_cases import LEVER_CASES, case_of, configured
from lab.packs.official import out_option
from reference import generate_input


def make(argv: list[str]) -> int:
    """Pack a case a lever."""
    parser = Parser("python -m lab packs levers", __doc__)
    out_option(parser)
    arguments = parser.parse_args(argv)
    packer = Packer(emulate=True)
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name, (config, problem) in LEVER_CASES.items():
        case = case_of(problem)
        path = arguments.out / f"lever-{name.replace(' ', '_')}.npz"
        decided_by = case if problem.num_products == 2 else None
        record(packer.recorder, configured(config), generate_input(**case), decided_by).save(path)
        print(f"{path}: {case}", flush=True)
    return 0
