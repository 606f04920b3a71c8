"""The places where an asynchronous copy lands in shared memory, and the mbarriers that count it.

Source: PTX ISA 9.7.9.25 and .27. Without .cta_group::2 the mbarrier lies in the destination's CTA;
with it, in either CTA of the destination's pair. A multicast lands at the same offset of each CTA
in the mask, and signals the mbarrier at the same offset there. Under .cta_group::2 that mbarrier is
in the CTA of the pair whose rank has the same parity as the rank in the mbarrier operand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from b200.chip.memory.addressing import issuer, resolver
from b200.chip.operations import StorePlace
from b200.chip.sync.mbarrier import mbarrier_at
from b200.errors import Fault
from b200.program.module import Instr
from b200.registry import active

if TYPE_CHECKING:
    from b200.chip.fragment import Fragment
    from b200.chip.state import CTA


class Landing:
    """Finds the places of a copy at issue.

    space: the state space of destination and mbarrier; align: of the destination.
    """

    def __init__(self, ins: Instr, align: int, space: str):
        self.align = align
        self.pair, self.multicast = ins.has("cta_group::2"), ins.has("multicast::cluster")
        self.dst = resolver(space)
        self.mbar = resolver("shared::cluster" if self.pair else space)

    def __call__(
        self, warp: Fragment, dst: int, nbytes: int, mbar: int, cta_mask: int | None = None
    ) -> tuple[StorePlace, ...]:
        """The places of a copy of `nbytes` to `dst`. Raises Fault if operands conflict."""
        cta, at = self.dst(warp, dst, nbytes, self.align)
        signal, barrier = self.mbar(warp, mbar, 8, 8)
        if self.multicast:
            return self._multicast(warp, at, nbytes, signal, barrier, cta_mask)
        if cta is not signal and not (self.pair and cta.rank ^ signal.rank == 1):
            raise Fault(
                f"the destination lies in CTA rank {cta.rank}, the mbarrier in rank {signal.rank}: "
                f"they must be in the same {'CTA pair' if self.pair else 'CTA'}"
            )
        mbarrier_at(signal, barrier)
        return (StorePlace(cta, at, signal, barrier),)

    def _multicast(
        self, warp: Fragment, at: int, nbytes: int, signal: CTA, barrier: int, cta_mask: int | None
    ) -> tuple[StorePlace, ...]:
        ctas = warp.cta.cluster.ctas
        if not cta_mask or cta_mask >> len(ctas):
            raise Fault(
                f"multicast to CTA mask {cta_mask or 0:#x} in a cluster of {len(ctas)} CTA(s)"
            )
        places: list[StorePlace] = []
        for rank in active(cta_mask):
            cta = ctas[rank]
            signalled = cta.pair[signal.rank & 1] if self.pair else cta
            mbarrier_at(signalled, barrier)
            places.append(StorePlace(cta, cta.check(at, nbytes, self.align), signalled, barrier))
        return tuple(places)


def complete(place: StorePlace, nbytes: int, warp: Fragment, ins: Instr) -> None:
    """Count a copy's bytes, which have landed at `place`, on its mbarrier."""
    who = issuer(warp, ins, "async copy")
    mbarrier_at(place.signal, place.mbarrier).complete_tx(nbytes, who)
