"""Reads and checks the numbers of the clock's units (constants.toml).

The file gives the value, unit, grade, range and source of each constant, and says what these mean.
`Constants` has the values as fields. Each constant is a table in the file and a field of the class.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pyright: ignore[reportMissingImports]  # installed on 3.10 only

GRADES = ("measured", "published", "fitted", "derived", "unknown")
UNITS = ("", "clk", "ns", "us", "Hz", "B", "B/s", "B/clk", "sectors", "lines")
KEYS = {"value", "unit", "grade", "source"}  # of every constant
OPTIONAL_KEYS = {"range"}


@dataclass(frozen=True)
class Constant:
    """One number. low: the end of its range that makes kernels faster; high: the end that makes
    them slower. Both are None for a number without a range.
    """

    name: str
    value: float
    unit: str
    grade: str
    source: str
    low: float | None = None
    high: float | None = None

    def at(self, end: str) -> float:
        """The value at an end of the range: "nominal", "low" or "high"."""
        ranged = {"low": self.low, "high": self.high}.get(end)
        return self.value if ranged is None else ranged


@dataclass(frozen=True)
class Constants:
    """The values that a launch is timed with."""

    # DRAM
    dram_bandwidth: float
    dram_turn: float
    dram_mixed: float
    dram_mixed_from: float
    dram_extra_ns: float
    dram_extra_clk: float
    dram_jitter: float
    dram_open: float
    dram_rows: float
    dram_channels: float
    dram_grain: float
    dirty_share: float
    l2_capacity: float
    page_walk: float
    page_bytes: float
    # L2 and crossbar
    l2_bandwidth: float
    l2_fill: float
    port_bandwidth: float
    outside_bandwidth: float
    store_bandwidth: float
    store_part: float
    store_alone: float
    store_add: float
    store_sector: float
    store_queue: float
    gpc_fill: float
    lrc_bytes: float
    lrc_tpc_bytes: float
    lrc_row: float
    port_row: float
    cpc_bytes: float
    lrc_beside_multicast: float
    port_multicast: float
    l2_far: float
    fabric_bandwidth: float
    tma_l2: float
    ldg_l2: float
    l2_clock: float
    l1_hit: float
    l2_sector: float
    # TMA
    tma_issue: float
    tma_chunk: float
    bulk_issue: float
    tma_store_issue: float
    row_clk: float
    row128_clk: float
    descriptor_fetch: float
    descriptor_prefetch: float
    multicast_extra: float
    bulk_read_smem: float
    bulk_read_bytes: float
    dsmem: float
    dsmem_way: float
    dsmem_bytes: float
    # tensor core
    mma_issue: float
    mma_floor: float
    mma_a_ss: float
    mma_pair_extra: float
    mma_pair256_extra: float
    lat_ts: float
    lat_ss64: float
    lat_ss128: float
    lat_ts_pair128: float
    lat_ts_pair256: float
    lat_ss_pair128: float
    lat_ss_pair256: float
    lat_loop: float
    cp_issue: float
    cp_32x128b: float
    cp_bytes: float
    cp_latency: float
    # tensor memory
    tmem_ld: float
    tmem_ld_column: float
    tmem_st: float
    tmem_st_column: float
    tmem_alloc: float
    tmem_dealloc: float
    # barriers and fences
    mbarrier_arrive: float
    mbarrier_init: float
    mbarrier_try: float
    mbarrier_wake: float
    mbarrier_asleep: float
    mbarrier_asleep_parted: float
    arrive_parted: float
    bar_base: float
    bar_warp: float
    cluster_sync: float
    fence_async: float
    fence_gpu: float
    fence_asked: float
    fence_line: float
    fence_lines: float
    fence_cta: float
    setmaxnreg: float
    # LSU, shared memory, arithmetic
    smem_load: float
    lsu_queue: float
    l1_bytes: float
    shared_atomic: float
    # launch
    event_floor_us: float
    launch_gap_us: float
    dependent_wait_us: float
    dependent_trigger_us: float
    dependent_exit_us: float
    cta_start_us: float
    cupti_us: float
    cta_dispatch_ns: float
    cta_relaunch: float
    cluster_relaunch: float
    store_drain: float

    @classmethod
    def make(cls, end: str = "nominal", **overrides: float) -> Constants:
        """The constants of a B200. end: "nominal", "low" (every range at its fast end) or "high"
        (at its slow end). Raises KeyError for an override that is no constant.
        """
        values = {constant.name: constant.at(end) for constant in TABLE}
        for name, value in overrides.items():
            values[BY_NAME[name].name] = value
        return cls(**values)


def read_table(path: Path) -> tuple[Constant, ...]:
    """The constants of a file, in its order. Raises ValueError that names the file, the constant
    and what is wrong with it.
    """
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:  # of which TOMLDecodeError is one
        raise ValueError(f"{path} is not a file of constants: {error}") from None
    known = {field.name for field in fields(Constants)}
    found = []
    for name, table in tables.items():
        wrong = f"{name!r} is no field of Constants" if name not in known else _wrong(table)
        if wrong:
            raise ValueError(f"{path.name}: constant {name}: {wrong}")
        low, high = table.get("range", (None, None))
        found.append(
            Constant(
                name, table["value"], table["unit"], table["grade"], table["source"], low, high
            )
        )
    return tuple(found)


def read_whole_table(path: Path) -> tuple[Constant, ...]:
    """As read_table, for a file that must have every constant, and a range for each constant whose
    value nobody knows. Raises ValueError.
    """
    found = read_table(path)
    missing = {field.name for field in fields(Constants)} - {constant.name for constant in found}
    if missing:
        raise ValueError(f"{path.name}: missing constants: {', '.join(sorted(missing))}")
    for constant in found:
        if constant.grade == "unknown" and constant.low is None:
            raise ValueError(
                f"{path.name}: constant {constant.name}: the grade unknown takes a range"
            )
    return found


def _wrong(table: Any) -> str:
    """Why a table of the file is no constant, or ""."""
    if not isinstance(table, dict):
        return f"expected a table of {', '.join(sorted(KEYS))}, found {table!r}"
    if missing := KEYS - set(table):
        return f"missing {', '.join(sorted(missing))}"
    if unknown := set(table) - KEYS - OPTIONAL_KEYS:
        return f"unknown key {', '.join(sorted(unknown))}"
    value, source = table["value"], table["source"]
    if not _is_number(value):
        return f"value: expected a finite number, 0 or more, found {value!r}"
    if table["unit"] not in UNITS:
        return f"unit: expected one of {', '.join(map(repr, UNITS))}, found {table['unit']!r}"
    if table["grade"] not in GRADES:
        return f"grade: expected one of {', '.join(GRADES)}, found {table['grade']!r}"
    if not isinstance(source, str) or not source.strip():
        return f"source: expected where the number is from, found {source!r}"
    return _wrong_range(value, table["range"]) if "range" in table else ""


def _wrong_range(value: float, ends: Any) -> str:
    """Why a range is none for a value, or ""."""
    if not isinstance(ends, list) or len(ends) != 2 or not all(map(_is_number, ends)):
        return f"range: expected [fast end, slow end], found {ends!r}"
    if not min(ends) <= value <= max(ends):
        return f"value: expected one in the range {ends[0]:g} to {ends[1]:g}, found {value:g}"
    return ""


def _is_number(value: Any) -> bool:
    """Whether it is one that a constant may have: finite, 0 or more."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number and math.isfinite(value) and value >= 0


TABLE = read_whole_table(Path(__file__).with_name("constants.toml"))
BY_NAME = {constant.name: constant for constant in TABLE}
