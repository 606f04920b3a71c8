"""The global memory that CTAs abreast read and write, so that a run of theirs can be taken back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from b200 import sparse
from b200.chip.abreast.dropped import NotAbreast, ReadAndWritten
from b200.chip.global_memory import Region
from b200.registry import DTYPES

MOST = 1 << 28  # bytes of old values that are kept of one run
# item size -> the mark of several CTAs
MANY: dict[int, np.unsignedinteger[Any]] = {bits // 8: ~dtype() for bits, dtype in DTYPES.items()}


class Ledger:
    """What n CTAs do to global memory. owners: item size -> for each lane its CTA, 1 to n, in each
    byte of an item.

    read: bases of the allocations that are read. written: base -> the CTA that has written each
    byte, 0 for none, MANY for several. A CTA may write what no other does; where several write one
    value, they may, too, unless `one_writer`. No allocation may be both, but for those in
    `in_place`, of which it is kept who reads: a CTA may read there what no other writes.
    updated: base -> the way in which atomics have updated each byte (updates.py), 0 for none. All
    CTAs may update a place, in one way, if nothing else is done to the allocation.
    """

    def __init__(
        self, n: int, in_place: frozenset[int] = frozenset(), one_writer: bool = True
    ) -> None:
        self.in_place, self.one_writer = in_place, one_writer
        self.readers: dict[int, Region] = {}  # base -> as written; MANY for several
        own = np.repeat(np.arange(1, n + 1, dtype=np.uint64), 32)
        ones = np.uint64(0x0101010101010101)
        self.owners = {bits // 8: (own * ones).astype(d) for bits, d in DTYPES.items()}
        self.read: set[int] = set()
        self.written: dict[int, Region] = {}
        self.updated: dict[int, Region] = {}
        self._ways: dict[tuple[str, str], int] = {}  # way -> its number
        self._before: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        self._bytes = 0

    def reads(
        self,
        region: Region,
        size: int = 0,
        index: np.ndarray | None = None,
        chosen: np.ndarray | None = None,
    ) -> None:
        """Lanes are about to read from an allocation. size, index, chosen: as `writes` has them; no
        index where all CTAs read the same, or copy.
        """
        base = region.base
        if base in self.in_place:
            if index is None:
                raise NotAbreast("CTAs read in common what they may write")
            self._reads_in_place(region, size, index, chosen)
        elif base not in self.read:
            if base in self.written:
                raise ReadAndWritten(base)
            self._not_updated(base)
            self.read.add(base)

    def _reads_in_place(
        self, region: Region, size: int, index: np.ndarray, chosen: np.ndarray | None
    ) -> None:
        own = self._own(size, chosen)
        before = typed_items(self._map(self.written, region), size)[index]
        if ((before != 0) & (before != own)).any():
            raise NotAbreast("a CTA reads what another has written")
        typed = typed_items(self._map(self.readers, region), size)
        before = typed[index]
        many = MANY[size]
        typed[index] = np.where((before == 0) | (before == own), own, many)
        several = typed[index] != own
        if several.any():
            typed[index[several]] = many

    def _own(self, size: int, chosen: np.ndarray | None) -> np.ndarray:
        return self.owners[size] if chosen is None else self.owners[size][chosen]

    @staticmethod
    def _map(maps: dict[int, Region], region: Region) -> Region:
        """Who has accessed each byte of an allocation."""
        found = maps.get(region.base)
        if found is None:
            data = sparse.zeros(region.size, np.uint8)
            found = maps[region.base] = Region(region.base, data, "CTAs")
        return found

    def writes(
        self,
        region: Region,
        items: np.ndarray,
        index: np.ndarray,
        chosen: np.ndarray | None,
        values: Sequence[np.ndarray],
    ) -> None:
        """Lanes are about to write to `items`, an allocation as an array. index: of the items,
        [items of a lane, lanes]. chosen: the lanes, None for all. values: for each item of a lane,
        one for each lane or for all.
        """
        base, size = region.base, items.itemsize
        if base in self.read:
            raise ReadAndWritten(base)
        self._not_updated(base)
        own = self._own(size, chosen)
        if base in self.in_place:
            readers = typed_items(self._map(self.readers, region), size)[index]
            if ((readers != 0) & (readers != own)).any():
                raise NotAbreast("a CTA writes what another has read")
        typed = typed_items(self._map(self.written, region), size)
        before = typed[index]
        others = (before != 0) & (before != own) if before.any() else None
        typed[index] = own
        self._keep(items, index)
        shared = typed[index] != own
        if others is not None:
            shared |= others
        if shared.any():
            self._equal(items, index, values, others, shared)
            typed[index[shared]] = MANY[size]

    def _equal(
        self,
        items: np.ndarray,
        index: np.ndarray,
        values: Sequence[np.ndarray],
        others: np.ndarray | None,
        shared: np.ndarray,
    ) -> None:
        """Several CTAs write one place: whoever comes last leaves the same value, if all that they
        write from now on is equal. others: where another has written before. shared: there, and
        where another writes by this instruction.
        """
        new = np.stack([np.broadcast_to(row, index.shape[1]) for row in values])
        same = others is None or (items[index[others]] == new[others]).all()
        for row, x in zip(index, new, strict=True):
            items[row] = x
        if self.one_writer or not same or (items[index[shared]] != new[shared]).any():
            raise NotAbreast("two CTAs write one place")

    def updates(
        self, region: Region, items: np.ndarray, index: np.ndarray, way: tuple[str, str]
    ) -> None:
        """Lanes are about to update items in a way of updates.py."""
        base = region.base
        if base in self.read or base in self.written or base in self.in_place:
            raise NotAbreast("an allocation is updated by atomics, and otherwise accessed")
        number = self._ways.setdefault(way, len(self._ways) + 1)
        if (index == index[:, :1]).all():
            index = index[:, :1]
        typed = typed_items(self._map(self.updated, region), items.itemsize)
        number *= int.from_bytes(b"\x01" * items.itemsize, "little")
        before = typed[index]
        if ((before != 0) & (before != number)).any():
            raise NotAbreast("atomics update one place in several ways")
        typed[index] = number
        self._keep(items, index)

    def _not_updated(self, base: int) -> None:
        if base in self.updated:
            raise NotAbreast("an allocation is updated by atomics, and otherwise accessed")

    def _keep(self, items: np.ndarray, index: np.ndarray) -> None:
        """Keep what is there, to take back what comes."""
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
