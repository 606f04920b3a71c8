"""The GPUs that the clock knows: how many SMs in which GPCs, and the constants that differ from the
B200's (constants.py).

The H200 is a witness: the same simulator with what was measured on one, so that predictions can be
held against silicon (`python -m b200 h200-model`).
"""

from __future__ import annotations

from dataclasses import dataclass

from b200.chip.placement import Placement
from b200.clock.constants import Constant, Constants
from b200.clock.sm import SM
from b200.hardware import GPC_SMS, STRAY_TPCS


@dataclass(frozen=True)
class Device:
    """gpcs: SMs of each GPC, by turns on die (or L2 partition) 0 and 1. strays: TPCs of the first
    GPC whose two SMs share clusters with no other SM. table: constants in place of the B200's.
    """

    name: str
    clock_ghz: float
    gpcs: tuple[int, ...]
    strays: int
    table: tuple[Constant, ...] = ()

    def placement(self) -> Placement:
        """Its SMs, all free."""
        return Placement(self.gpcs, self.strays, SM)

    def constants(self, end: str, overrides: dict[str, float]) -> Constants:
        """Raises KeyError for an override that is not in the table."""
        here = {c.name: c.value if (v := getattr(c, end, None)) is None else v for c in self.table}
        return Constants.make(end, **{**here, **overrides})


B200 = Device("B200", 1.965, GPC_SMS, STRAY_TPCS)

H200 = Device(
    "H200",
    1.98,
    (16, 16, 16, 16, 16, 16, 18, 18),  # rig clusters: the order of CTAs
    4,
    (
        Constant("dram_bandwidth", 4.7e12, "B/s", "measured", "rig memory, shared: no_sharing"),
        Constant(
            "dram_extra_clk",
            150.0,
            "clk",
            "fitted",
            "rig ingest, rows 8 KB apart from DRAM, 4 stages, one SM: 337 to 343 clk for 16 KB",
        ),
        Constant(
            "dram_grain", 1024, "B", "unknown", "a page of an HBM pseudo-channel, as JEDEC has it"
        ),
        Constant("dram_channels", 96, "", "unknown", "six stacks of 16, as JEDEC has them"),
        Constant(
            "dram_open",
            300.0,
            "clk",
            "fitted",
            "rig depth, 24 to 72 CTAs, 4 to 8 stages: with 80 up to 21 % too fast, with 600 at "
            "most 6 %; rig sharing, 3 stages: with 300 12 % too slow, with 400 17 %",
        ),
        Constant(
            "cpc_bytes",
            500e3,
            "B",
            "fitted",
            "rig depth, 56 CTAs: 13 stages take 5 % longer than 10, since two CPCs have five",
        ),
        Constant("tma_l2", 281.0, "clk", "measured", "rig memory, l2 (1, 1): 339 cycles a load"),
        Constant("row_clk", 1.0, "clk", "measured", "rig ingest: rows of 64 and of 32 B, one SM"),
        Constant(
            "row128_clk",
            1.1,
            "clk",
            "measured",
            "rig ingest: one SM takes in 116 B a clk",
        ),
        Constant(
            "dirty_share",
            0.5,
            "",
            "measured",
            "rig written, all SMs: 1.2, 1.9, 3.7, 6.4, 9.1 us longer for 9 to 132 MB",
        ),
        Constant("l2_capacity", 62.9e6, "B", "published", "the device's properties"),
        Constant("l2_clock", 1.98e9, "Hz", "measured", "SM clock"),
        Constant(
            "l2_bandwidth",
            11.5e12,
            "B/s",
            "fitted",
            "rig sharing, with l2_fill: 1, 2, 4, 8 SMs of different GPCs load the same",
        ),
        Constant(
            "port_bandwidth",
            10.6e12,
            "B/s",
            "measured",
            "rig ingest: 40.6 B a clk each for the 16 SMs of one GPC, as for all",
        ),
        Constant(
            "outside_bandwidth",
            6.7e12,
            "B/s",
            "measured",
            "h200-outside.json: 128 SMs load 201 MB of rows that are outside in 30 us",
        ),
        Constant("store_bandwidth", 4.54e12, "B/s", "measured", "rig stores: whole sectors"),
        Constant(
            "lrc_bytes",
            1e9,
            "B",
            "measured",
            "rig clusters: no loss up to 128 KB an SM",
        ),
        Constant("lrc_tpc_bytes", 1e9, "B", "measured", "the same"),
        Constant(
            "lrc_beside_multicast",
            0.4,
            "",
            "fitted",
            "rig ingest, all SMs, 128 rows by turns and 64 or 128 that all load, clusters of 2 "
            "and 4: within 7 % (0: up to 31 % too slow, 1: up to 30 % too fast)",
        ),
        Constant("lrc_row", 128, "B", "measured", "rig ingest: rows of 64 B, 1 to 16 SMs alike"),
        Constant("port_row", 64, "B", "measured", "rig ingest: rows of 32 B by all SMs"),
        Constant("mbarrier_asleep", 67.0, "clk", "measured", "rig clusters, hand over: 84 clk"),
        Constant(
            "mbarrier_asleep_parted",
            137.0,
            "clk",
            "measured",
            "rig clusters, hand over: 154 clk a turn of lanes behind a branch, 84 of warps",
        ),
        Constant("dsmem_way", 48.0, "clk", "measured", "rig clusters, arrive: 131..146 a hop"),
        Constant(
            "arrive_parted",
            56.0,
            "clk",
            "measured",
            "rig clusters, signal: at 2 and 4 CTAs 53 and 65 clk a round more than by predicate",
        ),
        Constant("event_floor_us", 2.82, "us", "measured", "empty kernel between two events"),
        Constant("launch_gap_us", 0.46, "us", "measured", "rig memory, empty: 0.76 in a graph"),
    ),
)

DEVICES = {device.name: device for device in (B200, H200)}
