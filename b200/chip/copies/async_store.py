"""st.async and red.async: stores into a CTA of the cluster, counted by an mbarrier there.

st.async (PTX ISA 9.7.9.12) and red.async (9.7.13.7): each thread writes at most 16 bytes; the
mbarrier lies in the CTA of the destination.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from b200.chip.copies.landing import Landing, complete
from b200.chip.global_memory import Region
from b200.chip.memory.reductions import SHARED, combiner
from b200.chip.operations import RedAsync, StAsync
from b200.effects import Copies
from b200.hardware import OFFSET_MASK, RANK_SHIFT
from b200.program.module import Instr
from b200.registry import DTYPES, LaneValues, Run, active, lanes, warp

if TYPE_CHECKING:
    from b200.chip.fragment import Fragment
    from b200.chip.operations import StorePlace

SCALARS = {f"{k}{n}": n // 8 for k in "busf" for n in (32, 64)}
VECTORS = {"v2": 2, "v4": 4}


class StorePlaces:
    """The places where the lanes of an instruction write `nbytes` each, by CTA and mbarrier."""

    def __init__(self, ins: Instr, nbytes: int):
        self.nbytes = nbytes
        self.find = Landing(ins, nbytes, "shared::cluster")

    def __call__(self, warp: Fragment, mask: int, address: LaneValues, mbar: LaneValues):
        """Yield (place of the lowest address, offsets of the lanes, the lanes)."""
        chosen = active(mask)
        at, signal = lanes(address, np.uint32)[chosen], lanes(mbar, np.uint32)[chosen]
        ranks = at >> RANK_SHIFT
        for rank, where in sorted(set(zip(ranks.tolist(), signal.tolist()))):
            mine = (ranks == rank) & (signal == where)
            here = at[mine]
            wrong = here[here % self.nbytes != 0]  # which `find` refuses
            for some in (here.max(), *wrong[:1]):
                self.find(warp, int(some), self.nbytes, where)
            (place,) = self.find(warp, int(here.min()), self.nbytes, where)
            yield place, (here & OFFSET_MASK).astype(np.int64), np.array(chosen)[mine]


def _columns(value: LaneValues | tuple[LaneValues, ...], size: int) -> np.ndarray:
    """A scalar or vector operand as [32 lanes, elements] of `size` bytes."""
    items = value if isinstance(value, tuple) else (value,)
    return np.stack([lanes(x, DTYPES[8 * size]) for x in items], 1)


def _to_places(
    ins: Instr, size: int, each: int, operation: type[StAsync], put: Callable[..., None]
) -> Run:
    """A run function that issues an operation for each place. size: of an element. each: bytes of a
    lane. put(shared memory, offsets, data [lanes, elements]): its effect, but for the mbarrier's.
    """
    groups = StorePlaces(ins, each)

    def run(
        warp: Fragment,
        mask: int,
        address: LaneValues,
        value: LaneValues | tuple[LaneValues, ...],
        mbar: LaneValues,
    ) -> None:
        for place, offsets, chosen in groups(warp, mask, address, mbar):
            data = _columns(value, size)[chosen]

            def apply(
                place: StorePlace = place, offsets: np.ndarray = offsets, data: np.ndarray = data
            ) -> None:
                put(place.cta.smem, offsets, data)
                complete(place, each * offsets.size, warp, ins)

            warp.machine.issue(operation(each * offsets.size, each, place, offsets), warp, apply)

    return run


_STORES = Copies(source="", target="shared::cluster", signals="mbarrier")


@warp("st.async", states=_STORES)
def st_async(ins: Instr) -> Run:
    """st.async{.weak}{.shared::cluster}.COMPLETION{.v2|.v4}.TYPE [addr], value, [mbar]"""
    size = SCALARS[ins.mods[-1]]
    count = VECTORS.get(ins.mods[-2], 1)

    def put(smem: Region, offsets: np.ndarray, data: np.ndarray) -> None:
        items = smem.u64 if size == 8 else smem.u32
        items[(offsets // size)[:, None] + np.arange(count)] = data

    return _to_places(ins, size, size * count, StAsync, put)


def _reduces(ins: Instr) -> Copies:
    return replace(_STORES, operation=ins.mods[-2], floats="f" in ins.mods[-1])


@warp("red.async", states=_reduces)
def red_async(ins: Instr) -> Run:
    """red.async.relaxed.cluster{.shared::cluster}.COMPLETION.OP.TYPE [addr], value, [mbar]"""
    op, kind = ins.mods[-2:]
    combine, size = combiner(op, kind, SHARED), SCALARS[kind]

    def put(smem: Region, offsets: np.ndarray, data: np.ndarray) -> None:
        for at, value in zip(offsets.tolist(), data.view(np.uint8)):  # lanes may share an address
            to = smem.u8[at : at + size]
            to[:] = combine(to, value)

    return _to_places(ins, size, size, RedAsync, put)
