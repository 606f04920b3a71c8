"""A litmus program: a few threads, each with a few operations on memory.

Threads are lanes of warps of CTAs. A location, a barrier or an mbarrier has a number. Each thread
uses a barrier at most once, so a barrier has one phase. Locations start as 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

WEAK, STRONG_ORDERS = "weak", ("relaxed", "acquire", "release", "acq_rel", "volatile")


@dataclass(frozen=True)
class Op:
    """An operation.

    kind: "W" stores `value`; "R" loads; "P" loads until it finds `value`; "U" adds 1 atomically;
    "F" is a fence; "B" bar.sync, "BA" bar.arrive; "CA", "CW" arrive at and wait for the cluster's
    barrier; "MA", "MW" arrive at and wait for an mbarrier of CTA 0; "S" is bar.warp.sync; "V" a
    shuffle, which orders no memory; "A" reads through the async proxy; "FP" is fence.proxy.async.
    at: number of the location, or of the barrier.
    """

    kind: str
    at: int = 0
    value: int = 0
    order: str = WEAK
    scope: str = "gpu"

    def __str__(self) -> str:
        how = "" if self.order == WEAK and self.kind in "WR" else f".{self.order}.{self.scope}"
        where = {"F": "", "S": "", "V": "", "FP": ""}.get(self.kind, f" {self.at}")
        return f"{self.kind}{how}{where}" + (f"={self.value}" if self.kind in "WP" else "")


@dataclass(frozen=True)
class Thread:
    """Where a thread runs. cta: its number in the grid. lane: of its warp."""

    cta: int
    warp: int
    ops: tuple[Op, ...]
    lane: int = 0


@dataclass(frozen=True)
class Program:
    """threads: of a grid with clusters of `cluster` CTAs. space: of the locations, "global", or
    "shared" for the shared memory of CTA 0. converged: where the threads are lanes of one warp, its
    instructions in order, each with the operations of some lanes.
    """

    threads: tuple[Thread, ...]
    cluster: int = 1
    space: str = "global"
    converged: tuple[tuple[tuple[int, Op], ...], ...] = ()
    name: str = field(default="", compare=False)

    @classmethod
    def of_lanes(cls, steps: Sequence[Sequence[tuple[int, Op]]], space: str, name: str) -> Program:
        """A program of the lanes of one warp."""
        lanes = sorted({lane for step in steps for lane, _ in step})
        threads = tuple(
            Thread(0, 0, tuple(op for step in steps for which, op in step if which == lane), lane)
            for lane in lanes
        )
        return cls(threads, 1, space, tuple(map(tuple, steps)), name)

    @cached_property
    def ctas(self) -> int:
        wanted = 1 + max(t.cta for t in self.threads)
        return -(-wanted // self.cluster) * self.cluster

    def arrivals(self, barrier: int) -> int:
        ops = (op for t in self.threads for op in t.ops)
        return sum(op.kind == "MA" and op.at == barrier for op in ops)

    def numbers(self, *kinds: str) -> Sequence[int]:
        """The locations or barriers that operations of these kinds have."""
        return sorted({op.at for t in self.threads for op in t.ops if op.kind in kinds})

    def __str__(self) -> str:
        threads = (
            f"({t.cta}, {t.warp}, {t.lane}): " + "; ".join(map(str, t.ops)) for t in self.threads
        )
        return f"{self.name} {self.space}, clusters of {self.cluster}: " + " || ".join(threads)
