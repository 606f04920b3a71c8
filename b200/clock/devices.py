"""The GPUs that the clock models: the SMs of their GPCs, and the constants that differ from a B200.

Others may be added to DEVICES, as hopper/h200.py does: the same clock with other constants.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import islice
from typing import TypeVar

from b200.chip.placement import Placement
from b200.clock.constants import TABLE, Constant, Constants
from b200.clock.sm import SM
from b200.hardware import GPC_SMS, STRAY_TPCS

T = TypeVar("T")
SHARED = {  # what the SMs of a chip share in proportion to their number
    *("dram_bandwidth", "l2_capacity", "l2_bandwidth", "port_bandwidth", "outside_bandwidth"),
    *("store_bandwidth", "fabric_bandwidth"),
}


@dataclass(frozen=True)
class Device:
    """A GPU. gpcs: number of SMs of each GPC; the GPCs alternate between die (or L2 partition) 0
    and 1. strays: number of TPCs of the first GPC whose two SMs share clusters with no other SM.
    table: constants that replace the B200's. share: of a launch's CTAs that it carries out.
    """

    name: str
    clock_ghz: float
    gpcs: tuple[int, ...]
    strays: int
    table: tuple[Constant, ...] = ()
    share: float = 1.0

    def clusters(self, every: Iterable[T], count: int) -> Iterable[T]:
        """Those of a grid's `count` clusters that it carries out: the first ones."""
        return every if self.share == 1 else islice(every, max(1, round(count * self.share)))

    def placement(self) -> Placement:
        """The SMs of the device, all free."""
        return Placement(self.gpcs, self.strays, SM)

    def constants(self, end: str, overrides: dict[str, float]) -> Constants:
        """The device's constants, at an end of their ranges: "nominal", "low" or "high". Raises
        KeyError for an override that is no constant.
        """
        here = {constant.name: constant.at(end) for constant in self.table}
        return Constants.make(end, **{**here, **overrides})


B200 = Device("B200", 1.965, GPC_SMS, STRAY_TPCS)


def part(device: Device, name: str, gpcs: tuple[int, ...]) -> Device:
    """A chip of fewer GPCs, with its share of the memory system and of each launch's CTAs. It takes
    as long as the whole chip, but for less of the CPU, where CTAs do alike work and read little
    that others read. What it computes is not complete.
    """
    share = sum(gpcs) / sum(device.gpcs)
    whole = {c.name: c for c in (*TABLE, *device.table)}

    def scaled(name: str, factor: float) -> Constant:
        c = whole[name]
        low, high = (None if end is None else end * factor for end in (c.low, c.high))
        return replace(c, value=c.value * factor, low=low, high=high)

    channels = whole["dram_channels"]
    table = (
        *(scaled(name, share) for name in sorted(SHARED)),
        scaled("cta_dispatch_ns", 1 / share),
        replace(channels, value=float(2 * round(channels.value * share / 2))),
    )
    here = {c.name: c for c in (*device.table, *table)}
    return Device(name, device.clock_ghz, gpcs, 0, tuple(here.values()), share)


QUARTER = part(B200, "B200 quarter", (18, 18))

DEVICES = {device.name: device for device in (B200, QUARTER)}
