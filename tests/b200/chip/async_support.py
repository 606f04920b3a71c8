"""A minimal machine for tests of asynchronous units: a cluster, global memory, one warp a CTA.

No program and no scheduler: a test makes an instruction from its text and calls its run function.
"""

from __future__ import annotations

import numpy as np

from b200.chip import instruction_set as _instruction_set  # noqa: F401  registers every unit
from b200.chip.budget import Budget
from b200.chip.global_memory import GlobalMemory
from b200.chip.operations import Operation
from b200.chip.order import InOrder
from b200.chip.state import CTA, Cluster
from b200.chip.time_limits import TimeLimits
from b200.hardware import SMEM_BASE
from b200.program.module import Instr
from b200.registry import find

PARAM = 3 << 56


class FakeMachine:
    """`delayed`: issued effects wait in `queue` for `flush`; else they happen at once."""

    def __init__(self):
        self.memory = GlobalMemory()
        self.budget = Budget()
        self.cancelled: Cluster | None = None  # what a request of cluster launch control gets
        self.params: dict[int, bytes] = {}
        self.queue: list = []
        self.issued: list[Operation] = []
        self.delayed = False
        self.order = InOrder()
        self.limits = TimeLimits()
        self._keep: list[np.ndarray] = []

    def wait_for_grids(self):
        """All earlier launches have ended."""

    def cancel_next(self):
        return self.cancelled

    def wait_passed(self, fragment):
        """Others need not be let run."""

    def undefined(self, what, missing, ins=None, wrong=False):
        self.undefined_uses = [*getattr(self, "undefined_uses", []), what]

    def watched(self, operation, warp, apply):
        return apply

    def issue(self, operation, warp, apply):
        self.issued.append(operation)
        if self.delayed:
            self.queue.append(apply)
        else:
            apply()

    def flush(self, count: int | None = None):
        """Let the oldest `count` (default all) delayed effects happen."""
        todo, self.queue = self.queue[:count], self.queue[len(self.queue[:count]) :]
        for apply in todo:
            apply()

    def load_generic(self, warp, address, nbytes):
        if address >= PARAM:
            return self.params[address][:nbytes]
        region = self.memory.region(address, nbytes)
        return region.u8[address - region.base :][:nbytes].tobytes()

    def tensor(self, array: np.ndarray, name: str = "tensor") -> int:
        """Make an array global memory; its address."""
        self._keep.append(array)
        self.memory.register(array.ctypes.data, array.nbytes, name)
        return array.ctypes.data

    def param(self, data: bytes) -> int:
        """A kernel parameter; its generic address."""
        address = PARAM + 64 * 2 * len(self.params)
        self.params[address] = data
        return address


class FakeWarp:
    def __init__(self, machine, cta, index=0):
        self.machine, self.cta, self.index, self.spin = machine, cta, index, None
        self.state = object()


class Woken:
    """Stands for a fragment of a warp that waits."""

    def __init__(self, waitable):
        self.times = 0
        waitable.waiters.append(self)

    def wake(self):
        self.times += 1


def cluster(ctas: int = 1, smem_bytes: int = 64 << 10):
    """(machine, warps): one warp on each CTA of a cluster."""
    machine = FakeMachine()
    group = Cluster(None, (0, 0, 0), (ctas, 1, 1))
    for rank in range(ctas):
        group.ctas.append(CTA(group, rank, (rank, 0, 0), smem_bytes))
    return machine, [FakeWarp(machine, cta) for cta in group.ctas]


def address(warp, offset: int) -> int:
    """Shared address of an offset after the reserved bytes in the warp's CTA."""
    return warp.cta.rank << 24 | SMEM_BASE + offset


def run(text: str, *operands):
    """The run function of an instruction."""
    entry = find(text)
    assert entry is not None, f"{text} is not registered"
    return entry.factory(Instr(text, operands))


def aligned(nbytes: int, align: int = 4096) -> np.ndarray:
    """uint8 zeros whose address is a multiple of `align`."""
    raw = np.zeros(nbytes + align, np.uint8)
    start = -raw.ctypes.data % align
    return raw[start : start + nbytes]
