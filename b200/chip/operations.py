"""The asynchronous operations that a warp issues (`Machine.issue`): one class for each kind.

The classes are the contract between the instruction set and the observers of a run, the checker and
the clock. An instruction decodes and checks its operands and describes its effect by one of these
classes. The checker and the clock each have a rule for every class
(checker/operations/asynchronous.py, clock/units.py), found by the class itself, and refuse a class
without a rule. So a new operation needs a class here and a rule in each of the two.

Counts are in bytes. A shared address is a 32-bit shared::cluster address, a global address has 64
bits; an offset counts from the start of a CTA's shared memory (b200/chip/state.py). `members` is
the issuing CTA; under cta_group::2 it is the CTA pair, the even CTA first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from b200.chip.copies.tensormap import TensorMap
    from b200.chip.copies.tma import TensorBoxes
    from b200.chip.state import CTA
    from b200.chip.tensor.descriptors import MatrixDescriptor, Tile
    from b200.chip.tensor.mma import DecodedMma
    from b200.chip.tensor.tmem_copy import CopyShape


Action = Callable[[], None]  # of an operation: to be called once, when it happens


class StorePlace(NamedTuple):
    """A destination (CTA and offset), and its mbarrier (CTA `signal` and offset)."""

    cta: CTA
    offset: int
    signal: CTA
    mbarrier: int


@dataclass(frozen=True, slots=True)
class Operation:
    """An asynchronous effect. Only subclasses are issued."""


# --- TMA ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TmaLoad(Operation):
    """cp.async.bulk.tensor to shared memory: a box, at each of `places`."""

    access: TensorBoxes
    places: tuple[StorePlace, ...]


@dataclass(frozen=True, slots=True)
class TmaStore(Operation):
    """cp.async.bulk.tensor to global memory: a box from `offset` of the issuing CTA."""

    access: TensorBoxes
    offset: int


@dataclass(frozen=True, slots=True)
class TmaReduce(Operation):
    """cp.reduce.async.bulk.tensor: a box from `offset` of the issuing CTA, combined."""

    access: TensorBoxes
    offset: int


@dataclass(frozen=True, slots=True)
class TmaPrefetch(Operation):
    """cp.async.bulk.prefetch.tensor: a box to the L2."""

    access: TensorBoxes


@dataclass(frozen=True, slots=True)
class TensormapPrefetch(Operation):
    """prefetch.tensormap."""

    tensormap: TensorMap


# --- bulk copies: contiguous bytes ----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BulkLoad(Operation):
    """cp.async.bulk from global address `source` to shared memory at each of `places`."""

    nbytes: int
    source: int
    places: tuple[StorePlace, ...]


@dataclass(frozen=True, slots=True)
class BulkToPeer(Operation):
    """cp.async.bulk from shared address `source` of the issuing CTA to shared memory at `place`."""

    nbytes: int
    source: int
    place: StorePlace


@dataclass(frozen=True, slots=True)
class BulkReduceToPeer(BulkToPeer):
    """cp.reduce.async.bulk from shared address `source` to shared memory at `place`."""


@dataclass(frozen=True, slots=True)
class BulkStore(Operation):
    """cp.async.bulk from shared address `source` to global address `destination`. mask: of each
    16 bytes those that are written, a bit each.
    """

    nbytes: int
    source: int
    destination: int
    mask: int = 0xFFFF


@dataclass(frozen=True, slots=True)
class BulkReduce(Operation):
    """cp.reduce.async.bulk from shared address `source` to global address `destination`."""

    nbytes: int
    source: int
    destination: int


@dataclass(frozen=True, slots=True)
class BulkPrefetch(Operation):
    """cp.async.bulk.prefetch: bytes at global address `source` to the L2."""

    nbytes: int
    source: int


# --- copies and stores of single threads ----------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class CpAsync(Operation):
    """cp.async of threads of a warp: each reads `nbytes` at its global address in `sources` and
    writes `size` bytes at its shared address in `destinations` (int64, one a thread); those after
    the first `nbytes` are zeros. lanes: of the threads, uint8. cached: whether it goes through the
    L1 (.ca). In an order that is `by_thread`, each thread issues its own.
    """

    nbytes: int
    size: int
    sources: np.ndarray
    destinations: np.ndarray
    lanes: np.ndarray
    cached: bool


@dataclass(frozen=True, slots=True)
class CpAsyncArrive(Operation):
    """cp.async.mbarrier.arrive of one thread: it arrives on the mbarrier at `offset` of `cta` when
    the thread's earlier copies are complete.
    """

    cta: CTA
    offset: int


# --- stores of a warp -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class StAsync(Operation):
    """st.async of those lanes that write to one CTA and signal one mbarrier: `each` bytes a lane,
    `nbytes` together, at `offsets` (int64, one a lane). `place` has the lowest of the offsets.
    """

    nbytes: int
    each: int
    place: StorePlace
    offsets: np.ndarray


@dataclass(frozen=True, slots=True, eq=False)
class RedAsync(StAsync):
    """red.async"""


# --- cluster launch control -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TryCancel(Operation):
    """clusterlaunchcontrol.try_cancel: a response of `nbytes` at each of `places`."""

    nbytes: int
    places: tuple[StorePlace, ...]


# --- tensor core ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TensorCoreOperation(Operation):
    """An operation in the queue of the tensor core: the operations of a thread keep their order."""

    members: tuple[CTA, ...]


@dataclass(frozen=True, slots=True)
class Mma(TensorCoreOperation):
    """tcgen05.mma, tcgen05.mma.ws."""

    mma: DecodedMma


@dataclass(frozen=True, slots=True)
class TmemCopy(TensorCoreOperation):
    """tcgen05.cp: `tile` of the shared-memory matrix `matrix` to `lanes` of tensor memory, from
    `column` on.
    """

    shape: CopyShape
    matrix: MatrixDescriptor
    tile: Tile
    lanes: range
    column: int


@dataclass(frozen=True, slots=True)
class TmemShift(TensorCoreOperation):
    """tcgen05.shift of 8 columns from `column` on, in the rows from `row` on."""

    row: int
    column: int


@dataclass(frozen=True, slots=True)
class Commit(TensorCoreOperation):
    """tcgen05.commit: an arrival on the mbarrier at `offset` of each of `targets`."""

    targets: tuple[CTA, ...]
    offset: int
