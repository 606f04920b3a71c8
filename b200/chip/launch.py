"""One launch: its report, the limits of a B200, and the special registers of its threads."""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from b200 import hardware
from b200.chip.budget import Budget
from b200.chip.state import CTA, Cluster
from b200.errors import EmulatorError
from b200.program.names import readable
from b200.registry import FULL, LaneValues

Dim3 = tuple[int, int, int]


@dataclass(frozen=True)
class Shape:
    """The shape of a launch. grid, cluster: in CTAs; block: in threads; smem: dynamic shared memory
    in bytes. dependent: it may start before the one before it has ended. workspace: the address of
    what grid.sync() counts in, of a cooperative launch; 0 of another. Raises ValueError for sizes
    that are not three whole numbers.
    """

    grid: Dim3
    block: Dim3
    cluster: Dim3
    smem: int
    dependent: bool = False
    workspace: int = 0

    def __post_init__(self) -> None:
        for name in ("grid", "block", "cluster"):
            given = getattr(self, name)
            try:
                x, y, z = map(operator.index, given)
            except (TypeError, ValueError):
                raise ValueError(f"{name}: expected three whole numbers, got {given!r}") from None
            object.__setattr__(self, name, (x, y, z))

    @property
    def ctas(self) -> int:
        return self.grid[0] * self.grid[1] * self.grid[2]

    @property
    def sizes(self) -> tuple[Dim3, Dim3, Dim3, int]:
        """Grid, block, cluster and shared memory, as `Gpu.launch` takes them."""
        return self.grid, self.block, self.cluster, self.smem


Arguments = tuple[Shape, bytes]  # of Machine.launch, but for the code: shape and parameters


@dataclass
class Launch:
    """The report of one launch.

    smem_bytes: dynamic + static shared memory of a CTA. seconds: wall clock of the emulation.
    counters: how many instructions the warps executed, by opcode without modifiers' values
    ("tcgen05.mma", "cp.async.bulk.tensor"). findings: the checker's, None without a checker.
    stores: who stored what (checker/memory/last_writers.py), None if nobody asked for it. time: the
    clock's record (clock/timeline.py), None without a clock. orders: the verdict over all orders
    (explore/verdict.py), None if the orders were not explored. incomplete: a line for each part of
    a checked launch that the checker did not see or understand, and that the findings do not cover.
    followed: clusters of a checked launch that ran unchecked, because they did the same as others
    (checker/following.py). of_compiler: findings about code that only its compiler can change
    (host/triton/remarks.py), which are not among `findings`. ptx: the text of its module.
    footprint: what it has accessed, for the queues of its program (checker/launches), which take it
    away.
    """

    kernel: str
    grid: Dim3
    block: Dim3
    cluster: Dim3
    smem_bytes: int
    seconds: float = 0.0
    counters: dict[str, int] = field(default_factory=dict[str, int])
    budget: Budget = field(default_factory=Budget)
    findings: list[Any] | None = None
    stores: Any = None
    time: Any = None
    orders: Any = None
    incomplete: list[str] = field(default_factory=list[str])
    followed: int = 0
    of_compiler: list[Any] = field(default_factory=list[Any])
    ptx: str = field(default="", repr=False)
    footprint: Any = field(default=None, repr=False)


def check_limits(launch: Launch, param_bytes: int) -> None:
    """Refuse a launch that a B200 refuses: raises EmulatorError that names every limit exceeded."""
    threads = launch.block[0] * launch.block[1] * launch.block[2]
    ctas = launch.cluster[0] * launch.cluster[1] * launch.cluster[2]
    problems: list[str] = []
    if not 1 <= threads <= hardware.MAX_THREADS:
        problems.append(f"{threads} threads a CTA, at most {hardware.MAX_THREADS} are possible")
    if launch.smem_bytes > hardware.SMEM_OPT_IN:
        problems.append(
            f"{launch.smem_bytes} bytes of shared memory a CTA,"
            f" at most {hardware.SMEM_OPT_IN} are possible"
        )
    if ctas > hardware.MAX_CLUSTER:
        problems.append(f"{ctas} CTAs a cluster, at most {hardware.MAX_CLUSTER} are possible")
    if any(g < 1 for g in launch.grid):
        problems.append(f"grid {launch.grid} has an empty dimension")
    if any(g % c for g, c in zip(launch.grid, launch.cluster, strict=True)):
        problems.append(f"grid {launch.grid} is not a multiple of the cluster {launch.cluster}")
    if param_bytes > hardware.PARAM_BYTES:
        problems.append(
            f"{param_bytes} bytes of kernel parameters, at most {hardware.PARAM_BYTES} are possible"
        )
    if problems:
        name = readable(launch.kernel)
        raise EmulatorError("limit", f"launch of {name} refused: {'; '.join(problems)}")


# Where the memory lies that the system keeps in front of a CTA's own (PTX ISA 10, "special
# registers"). CUDA's cooperative groups exchange values there.
RESERVED_SMEM = {
    "reserved_smem_offset_begin": 0,
    "reserved_smem_offset_end": hardware.SMEM_LENT,
    "reserved_smem_offset_cap": hardware.SMEM_RESERVED,
    "reserved_smem_offset_0": 0,
    "reserved_smem_offset_1": 0,
}
_ENVIRONMENT = {f"envreg{i}": 0 for i in range(32)}


def special_registers(launch: Launch, cluster: Cluster, cta: CTA, workspace: int) -> dict[str, int]:
    """Special registers that all warps of a CTA share, but for clocks. workspace: address of a
    cooperative launch's workspace, 0 for another launch. CUDA's cooperative_groups read its upper
    half from %envreg1 and its lower one from %envreg2 (details/driver_abi.h). The driver keeps the
    others for itself.
    """
    out = {
        **_ENVIRONMENT,
        "envreg1": workspace >> 32,
        "envreg2": workspace & FULL,
        "smid": cta.sm.index,
        "nsmid": hardware.SM_COUNT,
        "gridid": 1,
        "nwarpid": 64,
        "dynamic_smem_size": launch.smem_bytes,
        "total_smem_size": launch.smem_bytes + 1024,
        "aggr_smem_size": launch.smem_bytes + 1024,
        "cluster_ctarank": cta.rank,
        "cluster_nctarank": len(cluster.ctas),
        "current_graph_exec": 0,
        **RESERVED_SMEM,
        "is_explicit_cluster": FULL if len(cluster.ctas) > 1 else 0,
    }
    for i, axis in enumerate("xyz"):
        out[f"ctaid.{axis}"], out[f"nctaid.{axis}"], out[f"ntid.{axis}"] = (
            cta.index[i],
            launch.grid[i],
            launch.block[i],
        )
        out[f"clusterid.{axis}"] = cluster.index[i]
        out[f"nclusterid.{axis}"] = launch.grid[i] // cluster.shape[i]
        out[f"cluster_nctaid.{axis}"] = cluster.shape[i]
        out[f"cluster_ctaid.{axis}"] = cta.index[i] % cluster.shape[i]
    return out


_THREADS: dict[tuple[int, ...], dict[str, LaneValues]] = {}


def thread_registers(block: tuple[int, ...], warp: int) -> dict[str, LaneValues]:
    """Special registers of a warp's threads: tid varies between lanes."""
    key = (*block, warp)
    if key not in _THREADS:
        lane = np.arange(32, dtype=np.uint32)
        linear = lane + np.uint32(32 * warp)
        bit: np.ndarray = np.uint32(1) << lane
        below: np.ndarray = bit - np.uint32(1)
        _THREADS[key] = {
            "tid.x": linear % np.uint32(block[0]),
            "tid.y": linear // np.uint32(block[0]) % np.uint32(block[1]),
            "tid.z": linear // np.uint32(block[0] * block[1]),
            "laneid": lane,
            "warpid": warp,
            "lanemask_eq": bit,
            "lanemask_lt": below,
            "lanemask_le": below | bit,
            "lanemask_gt": ~(below | bit),
            "lanemask_ge": ~below,
        }
    return _THREADS[key]
