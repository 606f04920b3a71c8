"""Instructions on tensormap objects (PTX ISA 9.7.9.28, 9.7.13.4 and .16)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from b200.chip.copies import tensormap as tm
from b200.chip.copies.bulk import global_view, shared_view
from b200.chip.memory.addressing import SHARED_CTA, generic_to_shared
from b200.chip.memory.loads_stores import memory_scope, order_of, space_of
from b200.chip.operations import TensormapPrefetch
from b200.effects import EditsTensormap, FencesTensormap, PrefetchesTensormap, PublishesTensormap
from b200.errors import Fault, Unsupported
from b200.program.module import Instr
from b200.registry import LaneValues, Run, active, lane, lanes, no_effect, warp

if TYPE_CHECKING:
    from b200.chip.fragment import Fragment

# `elemtype` operand of tensormap.replace -> (format code, whether f32 is rounded to tf32)
REPLACE_TYPES = (*((code, 0) for code in range(11)), (7, 1), (8, 1), (11, 0), (12, 0), (13, 0))
# Fields of one value a dimension: places, lowest and highest legal value; stored less one.
COUNTS = {
    "box_dim": (tm.BOX, 1, 256),
    "global_dim": (tm.DIMS, 1, 0xFFFFFFFF),
    "element_stride": (tm.STEPS, 1, 8),
}
# Fields of one value: place, lowest and highest legal value; stored as it is.
VALUES = {
    "rank": (tm.RANK, 0, 4),
    "interleave_layout": (tm.INTERLEAVE, 0, 2),
    "swizzle_mode": (tm.SWIZZLE, 0, 3),
    "swizzle_atomicity": (tm.ATOMICITY, 0, 3),
    "fill_mode": (tm.FILL, 0, 1),
}
FIELDS = (*COUNTS, *VALUES, "global_stride", "global_address", "elemtype")


def object_view(ins: Instr) -> Callable[[Any, int], np.ndarray]:
    """view(warp, address) -> uint8 view [128] of the object, in the state space of `ins`."""

    def generic(warp: Fragment, address: int):
        try:
            return global_view(warp, address, tm.BYTES, tm.ALIGN)
        except Fault:
            return shared_view(warp, generic_to_shared(address), tm.BYTES, tm.ALIGN)

    if ins.has(*SHARED_CTA) or ins.has("global"):
        view = global_view if ins.has("global") else shared_view
        return lambda warp, address: view(warp, address, tm.BYTES, tm.ALIGN)
    return generic


def replaced(field: str, bits: int, *operands: int) -> int:
    """The tensormap object, as one number, after tensormap.replace of `field`. operands: as in the
    PTX text.
    """

    def within(value: int, low: int, high: int) -> int:
        if not low <= value <= high:
            raise Fault(f"tensormap.replace of {field} with {value}: must be {low}..{high}")
        return value

    def dimension(n: int) -> int:
        return within(operands[0], 0, n - 1)

    if field in COUNTS:
        places, low, high = COUNTS[field]
        return tm.put_field(bits, places[dimension(5)], within(operands[1], low, high) - 1)
    if field == "global_stride":
        if operands[1] % 16 or operands[1] >> 40:
            raise Fault(
                f"tensormap.replace of global_stride (dim{operands[0] + 1}) with {operands[1]} "
                "bytes: must be a multiple of 16 below 2^40"
            )
        return tm.put_stride(bits, dimension(4), operands[1])
    if field == "global_address":
        return tm.put_field(bits, tm.ADDRESS, operands[0])
    if field == "elemtype":
        code, tf32 = REPLACE_TYPES[within(operands[0], 0, len(REPLACE_TYPES) - 1)]
        return tm.put_field(tm.put_field(bits, tm.FORMAT, code), tm.TF32, tf32)
    place, low, high = VALUES[field]
    return tm.put_field(bits, place, within(operands[0], low, high))


@lane("tensormap.replace", states=lambda ins: EditsTensormap(space=space_of(ins)))
def tensormap_replace(ins: Instr) -> Run:
    """tensormap.replace.tile.FIELD{.global|.shared::cta}.b1024.TYPE [addr]{, ord}, new_value"""
    field = ins.mods[3]
    view = object_view(ins)

    def run(warp: Fragment, lane: int, address: int, *operands: Any) -> None:
        if field == "swizzle_mode" and operands[0] == 4:
            raise Unsupported("tensormap.replace of swizzle_mode: 4 (96B) needs sm_103a")
        data = view(warp, address)
        bits = replaced(field, int.from_bytes(data.tobytes(), "little"), *operands)
        data[:] = memoryview(bits.to_bytes(tm.BYTES, "little"))

    return run


def first(x: LaneValues, mask: int) -> int:
    """A warp-uniform operand as an int."""
    return x if isinstance(x, int) else int(lanes(x, x.dtype)[active(mask)[0]])


def check_size(ins: Instr, size: int) -> None:
    if size != tm.BYTES:
        raise Fault(f"{ins.mods[0]}.{ins.mods[1]} of {size} bytes: the size must be {tm.BYTES}")


def _publishes(ins: Instr) -> PublishesTensormap:
    return PublishesTensormap(order=order_of(ins, "release"), scope=memory_scope(ins))


@warp("tensormap.cp_fenceproxy", states=_publishes)
def tensormap_cp_fenceproxy(ins: Instr) -> Run:
    """tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.SCOPE.sync.aligned
    [dst], [src], 128: the warp copies an edited object from shared to global memory.
    """

    def run(warp: Fragment, mask: int, dst: LaneValues, src: LaneValues, size: LaneValues) -> None:
        check_size(ins, first(size, mask))
        edited = shared_view(warp, first(src, mask), tm.BYTES, tm.ALIGN)
        global_view(warp, first(dst, mask), tm.BYTES, tm.ALIGN)[:] = edited

    return run


def _fences(ins: Instr) -> FencesTensormap:
    return FencesTensormap(order=order_of(ins, "acq_rel"), scope=memory_scope(ins))


@lane("fence.proxy.tensormap::generic", states=_fences)
def fence_proxy_tensormap(ins: Instr) -> Run:
    """fence.proxy.tensormap::generic.{release.SCOPE | acquire.SCOPE [addr], 128}: memory is
    sequentially consistent here, so only the operands are checked.
    """

    def run(warp: Fragment, lane: int, address: int | None = None, size: int = tm.BYTES) -> None:
        check_size(ins, size)
        if address is not None:
            warp.machine.load_generic(warp, address, tm.BYTES)

    return run


PREFETCHES = tuple(f"prefetch{space}.tensormap" for space in ("", ".param", ".const"))


@lane(*PREFETCHES, states=PrefetchesTensormap(pipe="hint"))
def prefetch_tensormap(ins: Instr) -> Run:
    """prefetch{.param|.const}.tensormap [addr]: no architectural effect; later use is sooner."""
    if ins.mods[1] != "tensormap":  # it is no generic address
        return no_effect

    def run(warp: Fragment, lane: int, address: int) -> None:
        t = tm.tensormap_at(warp, address)
        warp.machine.issue(TensormapPrefetch(t), warp, lambda: None)

    return run
