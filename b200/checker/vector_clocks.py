"""Vector clocks: which events each warp or unit is ordered after.

A clock is an int32 array [rows, components]. A component counts the steps of something that happens
in order: the instructions of a warp, its tensor-core operations, its loads and stores of tensor
memory, its bulk copies, or the phases of an mbarrier. `clock[row, component] >= n` says that step n
of the component happened before. The rows differ in the accesses that this order is valid for:

    HB      memory of the generic proxy: barriers, arrives and waits (PTX ISA 8, 9.7.13)
    ASYNC   generic writes that a proxy fence made visible to the async proxy
            (9.7.13.4 fence.proxy.async)
    INIT    initialisations of mbarriers published by fence.mbarrier_init
    TENSOR  tensor memory: also ordered by tcgen05 fences, or handed over through an mbarrier
            (9.7.16.6)
    ORDER   order of execution only, relaxed arrives included: who has not exited yet
    GLOBAL  ASYNC for global memory
    FENCED  three rows, one for each distance (scopes, below): what a fence of that reach has put
            before every later operation, so that a relaxed one hands it over (8.9.4)
    PENDING what TENSOR gets at the next tcgen05.fence::after_thread_sync
            (PENDING, BEFORE and AFTER are rows of warps only)
    BEFORE  HB at the latest tcgen05.fence::before_thread_sync
    AFTER   HB at the latest tcgen05.fence::after_thread_sync

PTX wants the tcgen05 fences around every hand-over of tensor memory, and after_thread_sync before
the tensor core reads what a wait made visible. Compiled public kernels have none at all and rely on
mbarriers alone. So in a kernel without fences an mbarrier hands over everything; a kernel with
fences must keep the rule (`strict`).

A release and an acquire order memory if the scope of each includes the other's thread (PTX ISA 8.3
to 8.9). So each scope must be at least as wide as the distance of the two CTAs.
"""

from __future__ import annotations

import numpy as np

from b200.chip import state
from b200.effects import Ordered
from b200.program.module import Instr

CTA, CLUSTER, GPU = range(3)
DISTANCES = (CTA, CLUSTER, GPU)
_SCOPES = {"cta": CTA, "cluster": CLUSTER, "gpu": GPU, "sys": GPU}


def scope_of(ins: Instr, default: int) -> int:
    """The scope of an instruction: its `.scope`, or `default` if it has none."""
    effect = ins.effect
    return _SCOPES.get(effect.scope, default) if isinstance(effect, Ordered) else default


def distance(cta: state.CTA, other: state.CTA) -> int:
    """The smallest scope that includes threads of both CTAs."""
    if cta is other:
        return CTA
    return CLUSTER if cta.cluster is other.cluster else GPU


HB, ASYNC, INIT, ORDER, GLOBAL, FENCED, _, _, TENSOR, PENDING, BEFORE, AFTER = range(12)
ROWS = 12
SHARED_ROWS = 9  # rows that travel
FENCES = tuple(FENCED + distance for distance in DISTANCES)


def join(clock: np.ndarray, other: np.ndarray) -> np.ndarray:
    """The elementwise maximum of two clocks: in `clock` if that is wide enough, or a new one."""
    n = other.shape[1]
    if clock.shape[1] < n:
        wide = np.zeros((clock.shape[0], n + 32), np.int32)
        wide[:, : clock.shape[1]] = clock
        clock = wide
    part = clock[: other.shape[0], :n]
    np.maximum(part, other, out=part)
    return clock


def lanes_among(mask: int, lanes: np.ndarray) -> np.ndarray:
    """Which of some lanes are in a mask; a marker in place of one (shadow.py) is not."""
    return (lanes < 32) & (mask >> np.minimum(lanes, 31).astype(np.int64) & 1).astype(bool)


def weakened(clock: np.ndarray, distance: int) -> np.ndarray:
    """The part of a clock that a relaxed operation hands over: of memory, only what a fence has put
    before it. distance: of the reader.
    """
    clock = at_distance(clock, distance).copy()
    clock[HB] = clock[FENCED + distance]
    for row in (ASYNC, GLOBAL):
        np.minimum(clock[row], clock[HB], out=clock[row])
    return clock


def at_distance(clock: np.ndarray, distance: int) -> np.ndarray:
    """A clock as a reader at this distance takes it over: a fence that reaches less far counts for
    none of those to whom that reader hands on.
    """
    if distance == CTA:
        return clock
    clock = clock.copy()
    clock[FENCED : FENCED + distance] = clock[FENCED + distance]
    return clock


def order_of(clock: np.ndarray) -> np.ndarray:
    """The part of a clock that says something about the order of execution, without memory."""
    clock = clock.copy()
    clock[(HB, ASYNC, GLOBAL, *FENCES), :] = 0
    return clock


class Components:
    """Hands out the component numbers of a cluster."""

    def __init__(self):
        self.count = 0

    def new(self) -> int:
        self.count += 1
        return self.count - 1
