"""The GPUs that the clock models: the SMs of their GPCs, and the constants that differ from a B200.

The H200 is a witness: the same clock with constants that were measured on an H200
(constants_h200.toml). Its predictions can be compared with that GPU (`python -m lab h200_model`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from b200.chip.placement import Placement
from b200.clock.constants import Constant, Constants, read_table
from b200.clock.sm import SM
from b200.hardware import GPC_SMS, STRAY_TPCS


@dataclass(frozen=True)
class Device:
    """A GPU. gpcs: number of SMs of each GPC; the GPCs alternate between die (or L2 partition) 0
    and 1. strays: number of TPCs of the first GPC whose two SMs share clusters with no other SM.
    table: constants that replace the B200's.
    """

    name: str
    clock_ghz: float
    gpcs: tuple[int, ...]
    strays: int
    table: tuple[Constant, ...] = ()

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

H200 = Device(
    "H200",
    1.98,
    (16, 16, 16, 16, 16, 16, 18, 18),  # rig clusters: the order of CTAs
    4,
    read_table(Path(__file__).with_name("constants_h200.toml")),
)

DEVICES = {device.name: device for device in (B200, H200)}
