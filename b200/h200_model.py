"""Load pipelines of packed kernels by the clock of an H200.

    python -m b200 h200-model packs/*.npz [--measured FILE] [--json FILE] [--jobs N]
                                [--set NAME=VALUE]
    python -m b200 h200-model packs/*.npz --epilogues

The programs are those that `python -m b200.hopper.pipeline` measures: rewritten for Hopper, with
tcgen05 left out. Modelled microseconds a call, back to back on cold inputs; with the results of
that command beside them, and the errors. Programs whose loads signal the other CTA of a pair are
left out: Hopper cannot do that, and what stands for it says nothing of a B200. With --epilogues
the programs are those that `python -m b200 pipeline` holds against each other, pairs, too.
"""

from __future__ import annotations

import functools
import json
import math
import statistics
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from b200 import records
from b200.command_line import Parser, writable

if TYPE_CHECKING:
    from b200.hopper.pack import Pack, PackedLaunch
    from b200.hopper.rewrite import Retargeted


@dataclass(frozen=True)
class Modelled:
    """us: a call, from launch to launch. l2_gb, dram_gb: moved by the L2 and by DRAM. l2, dram: how
    busy, 0 to 1. message: why there is no time.
    """

    pack: str
    us: float | None
    kernel_us: float = 0.0
    dram_mb: float = 0.0
    l2_mb: float = 0.0
    coalesced_mb: float = 0.0
    message: str = ""


def model(path: Path, constants: dict[str, float], epilogues: bool = False) -> Modelled:
    """The time of a pack's first launch, or with epilogues of its call."""
    import torch

    from b200.chip.gpu import Gpu
    from b200.clock import Options, TimedMachine
    from b200.clock.call_time import reported
    from b200.errors import EmulatorError
    from b200.hopper import side_by_side
    from b200.hopper.errors import HopperError
    from b200.hopper.pack import load
    from b200.hopper.run import carried_over, places_of

    pack = load(path)
    sizes = (*pack.sizes, *(buffer.size for buffer in pack.buffers))
    tensors = [torch.zeros(n, dtype=torch.uint8) for n in sizes]
    addresses = [t.data_ptr() for t in tensors]
    for tensor, data in zip(tensors[len(pack.sizes) :], pack.buffer_contents(addresses)):
        if data is not None:
            tensor.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
    gpu = Gpu()
    gpu.machine = TimedMachine(gpu.memory, Options(device="H200", constants=constants))
    try:
        for number, launch in enumerate(pack.launches if epilogues else pack.launches[:1]):
            program = side_by_side.rewritten(pack, number) if epilogues else _loads(pack, launch)
            if program.private_bytes and not epilogues:
                message = "loads that signal the other CTA of a pair"
                return Modelled(path.stem, None, message=message)
            params = launch.relocated(addresses)
            params = carried_over(params, places_of(program.text, launch.kernel), program)
            shape = (launch.grid, launch.block, launch.cluster, program.smem(launch.smem))
            gpu.launch(program.text, launch.kernel, *shape, params)
    except (EmulatorError, HopperError) as error:
        return Modelled(path.stem, None, message=str(error).splitlines()[0])
    chips = [done.time.chip for done in gpu.launches]
    return Modelled(
        path.stem,
        reported(gpu.launches, 40).time_us,
        sum(done.time.time_us for done in gpu.launches),
        sum(chip.dram_bytes for chip in chips) / 1e6,
        sum(chip.l2_bytes for chip in chips) / 1e6,
        sum(chip.coalesced_bytes for chip in chips) / 1e6,
    )


def _loads(pack: Pack, launch: PackedLaunch) -> Retargeted:
    """What is measured of a launch's load pipeline alone."""
    from b200.hopper.byte_tensormaps import four_bit_maps
    from b200.hopper.rewrite import without_tensor_core

    text = pack.programs[launch.program]
    four_bit = four_bit_maps(launch.params, text, launch.kernel)
    return without_tensor_core(text, ".version 8.8\n", four_bit, math.prod(launch.cluster))


def table(results: list[Modelled], measured: dict[str, float]) -> str:
    lines = ["| kernel | modelled us | measured us | error |", "|---|---|---|---|"]
    errors = []
    for r in results:
        real = measured.get(r.pack)
        if r.us is None:
            lines.append(f"| {r.pack} | - | {real or '-'} | {r.message} |")
            continue
        text = ""
        if real:
            errors.append(r.us / real - 1)
            text = f"{errors[-1]:+.1%}"
        lines.append(f"| {r.pack} | {r.us:.2f} | {f'{real:.2f}' if real else '-'} | {text} |")
    if errors:
        off = [abs(e) for e in errors]
        lines.append(
            f"\n{len(off)} kernels: mean error {statistics.mean(off):.1%}, worst {max(off):.1%}, "
            f"mean of modelled over measured {1 + statistics.mean(errors):.2f}"
        )
    return "\n".join(lines)


def main(argv: list[str]) -> int:
    parser = Parser("b200 h200-model", (__doc__ or "").splitlines()[0])
    parser.add_argument("packs", nargs="+", type=Path, metavar="PACK.npz", help="packs to model")
    parser.add_argument(
        "--measured",
        type=Path,
        metavar="FILE",
        help="compare with what `b200 pipeline --json` wrote on an H200",
    )
    parser.add_argument("--json", type=writable, metavar="FILE", help="write the times as JSON")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="packs at a time")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="another value of a constant of the clock; repeatable",
    )
    parser.add_argument(
        "--epilogues", action="store_true", help="model loads and epilogue, as `b200 pipeline` does"
    )
    options = parser.parse_args(argv)
    constants = {n: float(v) for n, v in (pair.split("=") for pair in options.set)}
    measured = {}
    if options.measured:
        found = json.loads(options.measured.read_text())["measured"]
        measured = {m["pack"]: m["us"] for m in found}
    with ProcessPoolExecutor(options.jobs) as pool:
        modelled = functools.partial(model, constants=constants, epilogues=options.epilogues)
        results = list(pool.map(modelled, options.packs))
    print(f"modelled on an H200\n{table(results, measured)}")
    if options.json:
        written = {"constants": constants, "modelled": [asdict(r) for r in results]}
        records.write(options.json, written)
    return 0
