"""Calls that overlap, on inputs that change, on a Hopper GPU: `python -m lab packs calls`.

A pack of `submission.py` is launched with the programmatic attribute, tcgen05 in software. First
each call has one of four sets of tensors; then all have one set, into which the next inputs are
copied between the calls. So a call that does not wait for what stands before it reads old inputs,
or stores over a result that is still to be copied.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from b200.command_line import Parser
from hopper import toolchain
from hopper.errors import HopperError
from hopper.pack import Pack, PackedLaunch, load, storages
from hopper.rewrite import retarget
from hopper.run import HopperKernel, require_gpu
from hopper.run_pack import buffers_of
from lab.packs.official import OfficialCases
from utils import outputs_of

if TYPE_CHECKING:
    import torch

SETS = 4  # of inputs
SEED = 1000  # of the first set
# All launches of a module share tensor memory in software, and up to eight are resident at a time.
COPIES = 12  # of the module, which take turns


@dataclass(frozen=True)
class Inputs:
    """A set of tensors of a case: as `custom_kernel` gets them, their storages in the order of the
    pack, and the parameters of a launch on them.
    """

    data: Any
    tensors: list[torch.Tensor]
    params: bytes


def launch_of(pack: Pack) -> PackedLaunch:
    """The only launch of a pack. Raises HopperError if it has several, or names no case."""
    if pack.case is None or len(pack.launches) != 1:
        what = "no case" if pack.case is None else f"{len(pack.launches)} launches"
        raise HopperError("unsupported", f"a pack of one launch and a case is expected, not {what}")
    return pack.launches[0]


def calls_of(pack: Pack, launch: PackedLaunch) -> Callable[[bytes], None]:
    """What enqueues a call with these parameters; it may start before the one before has ended."""
    shape = replace(launch.shape, dependent=True)
    text = pack.programs[launch.program]
    program = retarget(text, toolchain.device_functions())
    copies = [HopperKernel(text, launch.kernel, program).prepared(shape) for _ in range(COPIES)]
    turns = cycle(copies)
    return lambda params: next(turns)(params)


def inputs_of(pack: Pack, launch: PackedLaunch) -> list[Inputs]:
    found, buffers = [], None
    for seed in range(SEED, SEED + SETS):
        data = OfficialCases().make({**(pack.case or {}), "seed": seed})
        tensors = storages(data)
        buffers = buffers_of(pack, tensors) if buffers is None else buffers
        params = launch.relocated([t.data_ptr() for t in (*tensors, *buffers)])
        found.append(Inputs(data, tensors, params))
    return found


def with_own_tensors(call: Callable[[bytes], None], sets: list[Inputs], calls: int) -> list[str]:
    """What is wrong after so many calls, each of which has the tensors of one set."""
    for _, inputs in zip(range(calls), cycle(sets)):
        call(inputs.params)
    return [said for inputs in sets if (said := OfficialCases().check(inputs.data))]


def with_copied_inputs(call: Callable[[bytes], None], sets: list[Inputs], calls: int) -> list[str]:
    """What is wrong where all calls have one set of tensors, into which inputs are copied."""
    import torch

    right = [[c.clone() for c in outputs_of(inputs.data)] for inputs in sets]
    sources = [[t.clone() for t in inputs.tensors] for inputs in sets]
    shared, stored = sets[0], []
    for _, source in zip(range(calls), cycle(sources)):
        for tensor, of in zip(shared.tensors, source, strict=True):
            tensor.copy_(of)
        for c in outputs_of(shared.data):
            c.fill_(float("nan"))
        call(shared.params)
        stored.append([c.clone() for c in outputs_of(shared.data)])
    off = [
        i
        for i, (found, wanted) in enumerate(zip(stored, cycle(right)))
        if not all(map(torch.equal, found, wanted))
    ]
    return [f"copied inputs: calls {off} differ"] if off else []


def run(path: Path, calls: int) -> str:
    """What is wrong with the calls of a pack; empty if nothing is. Raises HopperError."""
    import torch

    pack = load(path)
    launch = launch_of(pack)
    sets, call = inputs_of(pack, launch), calls_of(pack, launch)
    begin = time.perf_counter()
    wrong = with_own_tensors(call, sets, calls) or with_copied_inputs(call, sets, calls)
    torch.cuda.synchronize()
    seconds = time.perf_counter() - begin
    print(f"{'FAIL' if wrong else 'pass'}  {path.stem}: 2 x {calls} calls, {seconds:.1f} s")
    return "; ".join(wrong)


def main(argv: list[str]) -> int:
    """Launch packs many times in a row, with launches that overlap: is each result right?"""
    parser = Parser("python -m lab packs calls", main.__doc__)
    parser.add_argument("packs", nargs="+", type=Path, help="files of python -m lab packs make")
    parser.add_argument(
        "--calls", type=int, default=200, metavar="N", help="in a row (default 200)"
    )
    options = parser.parse_args(argv)
    try:
        require_gpu()
        wrong = {path: run(path, options.calls) for path in options.packs}
    except HopperError as error:
        print(error, file=sys.stderr)
        return 2
    for path, said in wrong.items():
        if said:
            print(f"{path.stem}: {said}", file=sys.stderr)
    print(f"{sum(not said for said in wrong.values())} of {len(wrong)} right")
    return int(any(wrong.values()))
