"""Rule: a launch keeps to the tensors whose pointers it was given.

Several tensors may lie in one allocation: the layers of a pool, the parts of a workspace. An index
that is negative or too large then reaches another one, and nothing faults. What is given of an
allocation begins at the lowest pointer into it among the parameters. Where each of these pointers
is of a view that a variable of the program holds, and not of the allocation's beginning, what is
given ends where these views end; else with the allocation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from b200.checker import words
from b200.checker.agent import Agent
from b200.checker.finding import NOTE
from b200.chip.describe import mnemonic
from b200.chip.global_memory import Region
from b200.chip.tensors import LiveTensors
from b200.program.module import Instr

if TYPE_CHECKING:
    from b200.checker.observer import Observer


class Given:
    """The rule for one launch. whole: bases of the allocations that are given as a whole. parts:
    base -> first and last + 1 byte of what is given of another.
    """

    def __init__(self, observer: Observer):
        self.observer = observer
        self.whole: set[int] = set()
        self.parts: dict[int, tuple[int, int]] = {}
        self._pointers: np.ndarray | None = None

    def span(self, region: Region) -> tuple[int, int]:
        """First and last + 1 address of what the launch was given of an allocation."""
        whole = region.base, region.base + region.size
        if region.base in self.whole:
            return whole
        if region.base not in self.parts:
            self.parts[region.base] = self._span(region)
            if self.parts[region.base] == whole:
                self.whole.add(region.base)
        return self.parts[region.base]

    def _span(self, region: Region) -> tuple[int, int]:
        low, high = region.base, region.base + region.size
        given = self._parameters()
        inside = sorted(set(given[(given >= low) & (given < high)].tolist()))
        if not inside or inside[0] == low:
            return low, high
        ends = [_end(pointer, high) for pointer in inside]
        return inside[0], max(ends)

    def _parameters(self) -> np.ndarray:
        """The parameters' words of 8 bytes, pointers among them."""
        if self._pointers is None:
            params = self.observer.machine.params
            self._pointers = np.frombuffer(params[: len(params) // 8 * 8], np.uint64)
        return self._pointers

    def look(
        self, agent: Agent, region: Region, at: np.ndarray, nbytes: int, ins: Instr, does: str
    ) -> None:
        """Check accesses of `nbytes` each at offsets of an allocation. does: reads or writes."""
        if region.behind or region.base in self.whole:
            return
        low, high = self.span(region)
        first, last = region.base + int(at.min()), region.base + int(at.max()) + nbytes
        if first < low:
            self._tell(agent, region, ins, does, "in front of", f"{low - first} bytes before it")
        elif last > high:
            self._tell(agent, region, ins, does, "behind", f"{last - high} bytes after its end")

    def _tell(
        self, agent: Agent, region: Region, ins: Instr, does: str, where: str, far: str
    ) -> None:
        self.observer.found(
            "global",
            f"{mnemonic(ins)} {does} {where} the tensor that it was given, inside its allocation",
            f"this access: {words.line(ins)}, by {words.name(agent)}",
            f"in {self.observer.operand(region.base)}, {region.name}: {far}",
            "missing: a guard for indices that are negative or too large (what lies there is "
            "another tensor's)",
            at=ins,
            severity=NOTE,
        )


def _end(pointer: int, high: int) -> int:
    """Where the largest tensor that begins at a pointer ends; `high` if the program has none."""
    ends = [
        pointer + t.element_size() * (1 + sum((n - 1) * s for n, s in zip(t.shape, t.stride())))
        for _, t in LiveTensors.held(pointer, 1)
        if t.data_ptr() == pointer and t.numel()
    ]
    return min(high, max(ends, default=high))
