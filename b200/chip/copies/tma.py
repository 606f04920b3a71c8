"""TMA tensor copies, reductions and prefetches: cp.async.bulk.tensor (PTX ISA 9.7.9.27).

The tensormap, the destinations and the mbarriers that count the bytes are checked at issue. The
data is read and written, and the mbarriers count it, when the machine lets the copy happen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from b200.chip.copies import tma_box
from b200.chip.copies.async_groups import issue_in_group
from b200.chip.copies.bulk import bulk_copy
from b200.chip.copies.landing import Landing, complete
from b200.chip.copies.tensormap import TensorMap, tensormap_at
from b200.chip.memory.addressing import shared_address, signed
from b200.chip.memory.reductions import GLOBAL, Combine, combiner
from b200.chip.operations import TmaLoad, TmaPrefetch, TmaReduce, TmaStore
from b200.errors import Fault, Unsupported
from b200.program.module import Instr
from b200.registry import LaneValues, Run, active, lane, warp

if TYPE_CHECKING:
    from b200.chip.fragment import Fragment

SMEM_ALIGN = 128
GATHER_ROWS = 4
# Element format of the tensormap -> type of a bitwise reduction.
BITWISE_TYPES = {"u32": "b32", "s32": "b32", "u64": "b64", "s64": "b64"}


class TensorBoxes:
    """The tensormap and coordinates of one operation, checked.

    boxes: start coordinates; with gather4 and scatter4, one set for each row. whole: whether the
    tensor holds each box. rows: rows of shared memory. smem_bytes: what they take there. tx_bytes:
    what an mbarrier counts, which are the bytes in global memory: padding of sub-byte types and
    holes of a swizzle do not count.
    """

    __slots__ = tuple("address tensormap region boxes whole rows smem_bytes tx_bytes".split())

    def __init__(
        self,
        warp: Fragment,
        form: TensorCopyForm,
        address: int,
        coords: Sequence[int],
        stores: bool = False,
    ):
        self.address = address
        t = self.tensormap = tensormap_at(warp, address)
        if t.interleave:
            raise Unsupported(f"interleaved layouts of TMA are not modelled: {t}")
        self.boxes = form.boxes(t, [signed(c) for c in coords])
        self.region = t.allocation(warp.machine.memory, self.boxes if stores else ())
        for box in self.boxes:
            tma_box.check_coords(t, box)
        self.whole = [t.holds(box) for box in self.boxes]
        if not self.region.base <= t.address <= self.region.base + self.region.size - t.extent:
            self.spans()  # a box outside is a fault now, not when it has its effect
        self.rows = t.box_rows * len(self.boxes)
        self.smem_bytes = (self.rows - 1) * t.pitch + t.smem_row_bytes
        self.tx_bytes = self.rows * t.row_bytes

    def spans(self) -> list[tuple[np.ndarray, int]]:
        """Global memory that each box touches: (addresses of its rows, int64; bytes of a row)."""
        found: list[tuple[np.ndarray, int]] = []
        for box in self.boxes:
            view = tma_box.Window(self.tensormap, self.region, box).view
            if view is not None:
                at: Any = np.int64(view.__array_interface__["data"][0])
                for count, stride in zip(view.shape[:-1], view.strides[:-1]):
                    steps = np.arange(count, dtype=np.int64) * stride
                    at = np.add.outer(at, steps)
                found.append((np.ravel(at), view.shape[-1]))
        return found

    def load(self) -> np.ndarray:
        """All rows: uint8 [rows, bytes of a row in shared memory]."""
        boxes = zip(self.boxes, self.whole)
        parts = [tma_box.load(self.tensormap, self.region, *box) for box in boxes]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def store(self, data: np.ndarray, combine: Combine | None = None) -> None:
        parts = np.split(data, len(self.boxes)) if len(self.boxes) > 1 else (data,)
        for box, part in zip(self.boxes, parts):
            tma_box.store(self.tensormap, self.region, box, part, combine)


class TensorCopyForm:
    """The modifiers of a tensor copy."""

    def __init__(self, ins: Instr):
        self.rank = next(int(m[0]) for m in ins.mods if m[0].isdigit() and m[1:] == "d")
        self.four_rows = ins.has("tile::gather4", "tile::scatter4")
        self.op = ins.one(*GLOBAL)

    def boxes(self, t: TensorMap, coords: list[int]) -> list[list[int]]:
        """The start coordinates of each box. Raises Fault if they or the tensormap do not fit."""
        if t.rank != self.rank:
            raise Fault(f"a .{self.rank}d instruction with a tensormap of rank {t.rank}: {t}")
        need = GATHER_ROWS + 1 if self.four_rows else self.rank
        if len(coords) != need:
            raise Fault(f"{len(coords)} coordinates, must be {need}")
        if not self.four_rows:
            return [coords]
        if t.rank != 2 or t.box[1] != 1:
            raise Fault(f"gather4 and scatter4 need rank 2 and box_dim 1 of dim1: {t}")
        return [[coords[0], row] for row in coords[1:]]


def _to(space: str) -> tuple[str, ...]:
    """The names of a copy of a tensor to a state space."""
    return tuple(f"cp.async.bulk.tensor.{rank}d.{space}" for rank in range(1, 6))


@lane(*_to("shared::cta"), *_to("shared::cluster"), states=bulk_copy)
def tensor_load(ins: Instr) -> Run:
    """cp.async.bulk.tensor.DIM.{shared::cta|shared::cluster}.global{.tile|.tile::gather4}
    .mbarrier::complete_tx::bytes{.multicast::cluster}{.cta_group::G}{.L2::cache_hint}
    [dst], [tensormap, {c0, ...}], [mbar]{, cta_mask}{, cache_policy}
    """
    form = TensorCopyForm(ins)
    find = Landing(ins, SMEM_ALIGN, ins.mods[5])

    def run(
        warp: Fragment,
        lane: int,
        dst: int,
        address: int,
        coords: tuple[int, ...],
        mbar: int,
        *rest: Any,
    ) -> None:
        access = TensorBoxes(warp, form, address, coords)
        places = find(warp, dst, access.smem_bytes, mbar, rest[0] if find.multicast else None)

        def apply() -> None:
            data = access.load()
            for place in places:
                tma_box.put_shared(access.tensormap, place.cta.smem, place.offset, data)
                complete(place, access.tx_bytes, warp, ins)

        warp.machine.issue(TmaLoad(access, places), warp, apply)

    return run


def _elements(operand: LaneValues | tuple[LaneValues, ...]) -> tuple[LaneValues, ...]:
    return operand if isinstance(operand, tuple) else (operand,)


def each_issue(mask: int, *operands: Any) -> Iterator[tuple[int, tuple[Any, ...]]]:
    """(lanes, operands as ints) of each different execution; once for all lanes if they agree."""
    flat = [x for o in operands for x in _elements(o)]
    if not any(isinstance(x, np.ndarray) for x in flat):
        yield mask, operands
        return

    def pick(x: Any, i: int) -> Any:
        if isinstance(x, tuple):
            return tuple(pick(y, i) for y in cast("tuple[Any, ...]", x))
        return int(x[i]) if isinstance(x, np.ndarray) else x

    for i in active(mask):
        yield 1 << i, tuple(pick(x, i) for x in operands)


@warp(*_to("global"), "cp.reduce.async.bulk.tensor", states=bulk_copy)
def tensor_store(ins: Instr) -> Run:
    """cp.async.bulk.tensor.DIM.global.shared::cta{.tile|.tile::scatter4}.bulk_group
    {.L2::cache_hint} [tensormap, {c0, ...}], [src]{, cache_policy}
    cp.reduce.async.bulk.tensor.DIM.global.shared::cta.OP{.tile}.bulk_group{.L2::cache_hint} of the
    same operands

    A store is idempotent: lanes that issue the same one are served by one copy. Each active lane
    reduces.
    """
    form = TensorCopyForm(ins)

    def run(
        warp: Fragment, mask: int, address: int, coords: tuple[int, ...], src: int, *rest: Any
    ) -> None:
        for lanes, (one, where, at) in each_issue(mask, address, coords, src):
            for some in (1 << i for i in active(lanes)) if form.op else (lanes,):
                _issue_store(warp, some, ins, form, one, where, at)

    return run


def _issue_store(
    warp: Fragment,
    lanes: int,
    ins: Instr,
    form: TensorCopyForm,
    address: int,
    coords: tuple[int, ...],
    src: int,
) -> None:
    access = TensorBoxes(warp, form, address, coords, stores=True)
    t = access.tensormap
    if t.element.name == "b4x16_p64" or form.op and t.element.bits < 8:
        raise Fault(
            f"elements of type {t.element.name} cannot be {'reduced' if form.op else 'stored'}"
        )
    for box in access.boxes:
        tma_box.check_store(box)
    combine = reduction(form.op, t) if form.op else None
    at = warp.cta.smem_offset(shared_address(warp, src), access.smem_bytes, SMEM_ALIGN)
    smem = warp.cta.smem

    def move() -> None:
        access.store(tma_box.get_shared(t, smem, at, access.rows), combine)

    operation = TmaReduce(access, at) if form.op else TmaStore(access, at)
    issue_in_group(warp, "bulk", lanes, ins, operation, move)


def reduction(op: str, t: TensorMap) -> Callable[..., Any]:
    """The combining function of a tensor reduction: its type is the tensormap's element type."""
    name = t.element.name
    kind = BITWISE_TYPES.get(name) if op in ("and", "or", "xor") else name.removesuffix(".ftz")
    if kind is None or kind not in GLOBAL[op] or t.tf32:
        raise Fault(f"reduction .{op} does not exist for elements of type {name}")
    return combiner(op, kind, GLOBAL, flush=name == "f32.ftz")


@lane("cp.async.bulk.prefetch.tensor", states=bulk_copy)
def tensor_prefetch(ins: Instr) -> Run:
    """cp.async.bulk.prefetch.tensor.DIM.L2.global{.tile|.tile::gather4}{.L2::cache_hint}
    [tensormap, {c0, ...}]{, cache_policy}: only its operands are checked.
    """
    form = TensorCopyForm(ins)

    def run(warp: Fragment, lane: int, address: int, coords: tuple[int, ...], *rest: Any) -> None:
        access = TensorBoxes(warp, form, address, coords)
        warp.machine.issue(TmaPrefetch(access), warp, lambda: None)

    return run
