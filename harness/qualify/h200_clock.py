"""The load pipeline of a packed kernel by the clock of an H200.

The program is the one that hopper/pipeline.py measures: rewritten for Hopper, with tcgen05
left out. One whose loads signal the other CTA of a pair is left out: Hopper cannot do that, and
what stands for it says nothing of a B200.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hopper.pack import Pack, PackedLaunch
    from hopper.rewrite import Retargeted


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
    from b200.clock import Options, timed_machine
    from b200.clock.call_time import reported
    from b200.errors import EmulatorError
    from hopper import side_by_side
    from hopper.errors import HopperError
    from hopper.h200 import H200
    from hopper.pack import load
    from hopper.run import carried_over, places_of

    pack = load(path)
    sizes = (*pack.sizes, *(buffer.size for buffer in pack.buffers))
    tensors = [torch.zeros(n, dtype=torch.uint8) for n in sizes]
    addresses = [t.data_ptr() for t in tensors]
    for tensor, data in zip(tensors[len(pack.sizes) :], pack.buffer_contents(addresses)):
        if data is not None:
            tensor.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
    gpu = Gpu()
    gpu.machine = timed_machine(gpu.memory, Options(device=H200.name, constants=constants))
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
    from hopper.byte_tensormaps import four_bit_maps
    from hopper.rewrite import without_tensor_core

    text = pack.programs[launch.program]
    four_bit = four_bit_maps(launch.params, text, launch.kernel)
    return without_tensor_core(text, ".version 8.8\n", four_bit, math.prod(launch.cluster))
