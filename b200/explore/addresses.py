"""Which bytes an access of lanes, or an asynchronous operation, reads and writes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from b200.chip import operations as ops
from b200.chip.fragment import Fragment
from b200.chip.memory.addressing import ranges
from b200.chip.state import CTA
from b200.effects import Access, MatrixLoads, MatrixStores, Stores
from b200.hardware import OFFSET_MASK, RANK_SHIFT
from b200.registry import LaneValues, active, lanes
from b200.spaces import SHARED_WINDOW, WINDOW_MASK

# (addresses, bytes at each, the CTA of shared memory or None for global memory)
Span = tuple[np.ndarray, int, CTA | None]
Bytes = tuple[CTA | None, np.ndarray]  # of one memory: each byte once, in order
ROW = 16  # bytes of a matrix row
FROM_SHARED = (ops.BulkToPeer, ops.BulkReduceToPeer, ops.BulkStore, ops.BulkReduce)


def accessed(warp: Fragment, mask: int, address: LaneValues, effect: Access) -> Iterator[Span]:
    """The memory that lanes of a warp access; nothing of what is their own."""
    matrix = isinstance(effect, (MatrixLoads, MatrixStores))
    chosen = active(mask & (1 << effect.addresses) - 1) if matrix else active(mask)
    if effect.private or not chosen:
        return
    if isinstance(address, np.ndarray):
        at = lanes(address, np.uint64)[chosen]
    else:
        at = np.array([address], np.uint64)  # of all lanes
    nbytes = ROW if matrix else effect.nbytes
    near = np.full(at.shape, effect.space.startswith("shared"))
    if effect.space == "generic":
        window = at & np.uint64(WINDOW_MASK ^ (1 << 64) - 1)
        near = window == np.uint64(SHARED_WINDOW)
        at = at[near | (window == 0)] & np.uint64(WINDOW_MASK)
        near = near[near | (window == 0)]
    at = at.astype(np.int64)
    if near.any():
        yield from _of_cluster(warp, at[near], nbytes, effect.space)
    if not near.all():
        yield at[~near], nbytes, None


def _of_cluster(warp: Fragment, at: np.ndarray, nbytes: int, space: str) -> Iterator[Span]:
    ranks = (at & (1 << 32) - 1) >> RANK_SHIFT
    for rank in np.unique(ranks):
        own = rank == 0 and space not in ("shared::cluster", "generic")
        ctas = [warp.cta] if own else warp.cta.cluster.ctas
        if rank < len(ctas):  # the instruction itself refuses others
            yield at[ranks == rank] & OFFSET_MASK, nbytes, ctas[int(rank)]


def filled(
    space: str, mask: int, address: LaneValues, size: LaneValues
) -> Iterator[tuple[int, int, Stores]]:
    """Weak stores of as many bytes as an operand says: lanes, address, and the store."""
    for some, at, nbytes in ranges(mask, address, size):
        yield some, at, Stores(order="weak", space=space, nbytes=nbytes, bits=64)


def bytes_of(spans: Iterable[Span]) -> list[Bytes]:
    """The bytes of spans; nothing of empty ones."""
    found = ((cta, _each(at.astype(np.int64), nbytes)) for at, nbytes, cta in spans)
    return [(cta, at) for cta, at in found if at.size]


def _each(at: np.ndarray, nbytes: int) -> np.ndarray:
    if at.size == 1:  # most accesses of a walk; np.unique costs more than the rest
        return np.arange(int(at[0]), int(at[0]) + nbytes)
    return np.unique(at[:, None] + np.arange(nbytes))


def sources(operation: ops.Operation, own: CTA) -> Iterator[Span]:
    """The memory that an operation reads."""
    if isinstance(operation, ops.TmaLoad):
        yield from ((at, nbytes, None) for at, nbytes in operation.access.spans())
    elif isinstance(operation, ops.BulkLoad) and operation.nbytes:
        yield np.array([operation.source]), operation.nbytes, None
    elif isinstance(operation, ops.CpAsync) and operation.nbytes:
        yield operation.sources, operation.nbytes, None
    elif isinstance(operation, FROM_SHARED):
        yield np.array([operation.source & OFFSET_MASK]), operation.nbytes, own
    elif isinstance(operation, (ops.TmaStore, ops.TmaReduce)):
        yield np.array([operation.offset]), operation.access.smem_bytes, own


def targets(operation: ops.Operation, own: CTA) -> Iterator[Span]:
    """Likewise, what it writes."""
    if isinstance(operation, (ops.StAsync, ops.RedAsync)):
        yield operation.offsets, operation.each, operation.place.cta
    elif isinstance(operation, (ops.TmaStore, ops.TmaReduce)):
        yield from ((at, nbytes, None) for at, nbytes in operation.access.spans())
    elif isinstance(operation, (ops.BulkStore, ops.BulkReduce)):
        yield np.array([operation.destination]), operation.nbytes, None
    elif isinstance(operation, (ops.BulkToPeer, ops.BulkReduceToPeer)):
        yield np.array([operation.place.offset]), operation.nbytes, operation.place.cta
    elif isinstance(operation, ops.CpAsync):
        yield operation.destinations & OFFSET_MASK, operation.size, own
    elif isinstance(operation, (ops.TmaLoad, ops.BulkLoad)):
        tma = isinstance(operation, ops.TmaLoad)
        nbytes = operation.access.smem_bytes if tma else operation.nbytes
        for place in operation.places:
            yield np.array([place.offset]), nbytes, place.cta
