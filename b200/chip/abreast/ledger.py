"""The global memory that CTAs abreast read and write, so that a run of theirs can be taken back."""

from __future__ import annotations

import numpy as np

from b200 import sparse
from b200.chip.abreast.dropped import NotAbreast
from b200.chip.state import Region

MOST = 1 << 28  # bytes of old values that are kept of one run


class Ledger:
    """What n CTAs do to global memory. owners: item size -> for each lane its CTA, 1 to n, in each
    byte of an item.

    read: bases of the allocations that are read. written: base -> the CTA that has written each
    byte, 0 for none. A CTA may write what no other does. No allocation may be both, as in
    following: what a CTA reads is then the same in any order.
    """

    def __init__(self, n: int):
        own = np.repeat(np.arange(1, n + 1, dtype=np.uint64), 32)
        dtypes = (np.uint8, np.uint16, np.uint32, np.uint64)
        ones = (0x01, 0x0101, 0x01010101, 0x0101010101010101)
        self.owners = {
            np.dtype(d).itemsize: (own * np.uint64(one)).astype(d) for d, one in zip(dtypes, ones)
        }
        self.read: set[int] = set()
        self.written: dict[int, Region] = {}
        self._before: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        self._bytes = 0

    def reads(self, region: Region) -> None:
        """Lanes are about to read from an allocation."""
        base = region.base
        if base not in self.read:
            if base in self.written:
                raise NotAbreast("an allocation is read and written")
            self.read.add(base)

    def writes(self, region: Region, items: np.ndarray, index: np.ndarray, chosen) -> None:
        """Lanes are about to write to `items`, an allocation as an array. index: of the items,
        [items of a lane, lanes]. chosen: the lanes, None for all.
        """
        base, size = region.base, items.itemsize
        if base in self.read:
            raise NotAbreast("an allocation is read and written")
        owned = self.written.get(base)
        if owned is None:
            owned = self.written[base] = Region(base, sparse.zeros(region.size, np.uint8), "owners")
        typed = typed_items(owned, size)
        own = self.owners[size] if chosen is None else self.owners[size][chosen]
        before = typed[index]
        if before.any() and ((before != 0) & (before != own)).any():
            raise NotAbreast("two CTAs write one place")
        typed[index] = own
        if (typed[index] != own).any():
            raise NotAbreast("two CTAs write one place")
        old = items[index]
        self._bytes += old.nbytes + index.nbytes
        if self._bytes > MOST:
            raise NotAbreast("it writes too much to be taken back")
        self._before.append((items, index, old))

    def take_back(self) -> None:
        """Undo what was written."""
        for items, index, old in reversed(self._before):
            items[index] = old


def typed_items(region: Region, size: int) -> np.ndarray:
    """An allocation as an array of items of 1, 2, 4 or 8 bytes."""
    return (region.u8, region.u16, region.u32, region.u64)[size.bit_length() - 1]
