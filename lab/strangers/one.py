"""python -m lab.strangers.one KERNEL CONFIG IMPLEMENTATION [DEVICE]: the modelled time of one call,
in JSON. It runs under `b200 exec`, so that kernels whose host code is C++ run, too. DEVICE: the
part of the chip to run on, where it is not chosen by cost (parts.py).
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch

import b200
from b200.chip.gpu import Gpu
from b200.clock.call_time import reported
from b200.clock.options import Options
from lab.strangers import harness, parts
from lab.strangers.fills import Fills, launched


@dataclass(frozen=True)
class Modelled:
    """A call. modelled_us: as CUPTI shows it, low_us and high_us the range of it, with the fills of
    torch in it. cpu_s: of the timed call. device: of the clock; on a part of a chip the numbers
    stand for the whole one.
    """

    modelled_us: float
    low_us: float
    high_us: float
    kernel_us: float
    launches: int
    fills_us: float
    kernel_kind: str
    bound_by: str
    device: str
    cpu_s: float


def modelled(gpu: Gpu, launch: harness.Launch, pilot: parts.Pilot, device: str | None) -> Modelled:
    """The time of a call. It comes second: the first compiles, and starts what the host code needs,
    under `pilot`, which ends with it. The L2 is full of written lines, as a memset leaves it. What
    tensor cores compute is left out, except where the kernel branches by it.
    """
    before, known = len(gpu.launches), len(pilot.cpu_s)
    launch()
    torch.cuda.synchronize()
    pilot.end()
    device = device or parts.device(gpu.launches[before:], pilot.cpu_s[known:]).name
    b200.install(check=False, timing=Options(device, dirty_l2=True, arithmetic=False))
    before, start = len(gpu.launches), time.process_time()
    with Fills() as fills:
        launch()
    torch.cuda.synchronize()
    call = gpu.launches[before:]
    found = reported(call, 1)
    fills_us = sum(reported([launched(gpu, count)], 1).cupti_us for count in fills.elements)
    modelled_us = found.cupti_us + fills_us
    return Modelled(
        modelled_us=modelled_us,
        low_us=modelled_us * found.low_us / found.time_us,
        high_us=modelled_us * found.high_us / found.time_us,
        kernel_us=found.kernel_us,
        launches=len(call),
        fills_us=fills_us,
        kernel_kind=found.kernel_kind,
        bound_by=found.bound_by,
        device=device,
        cpu_s=time.process_time() - start,
    )


def main(argv: Sequence[str]) -> int:
    """The command. Returns the exit status."""
    kernel, config, implementation, *device = argv
    gpu = b200.install(check=False)

    with parts.Pilot(gpu) as pilot:

        def measure(launch: harness.Launch) -> None:
            found = modelled(gpu, launch, pilot, *device or [None])
            print(json.dumps(asdict(found)), flush=True)

        harness.run(kernel, config, implementation, measure)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
