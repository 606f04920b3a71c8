"""Rule: a result must not depend on cells of tensor memory that nothing has written.

A load may reach lanes or columns that nothing has written without harm, if nobody uses what it gets
there. The sum of an MMA with M = 64 lies in lanes 0 to 15 of each quarter, and the usual load takes
32. So the checker remembers loads of which a part was written, and carries the launch out again
with other bytes in fresh tensor memory (unwritten.py). If a result differs, the loads are errors.

Loads of a few columns too many are common, at the edge of a tensor. For them alone the launch is
carried out again only if it has written a NaN, as fresh tensor memory holds and arithmetic leaves,
or if what the loads get may be integers.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from b200.checker import words
from b200.checker.accesses import Record

if TYPE_CHECKING:
    from b200.checker.observer import Observer

# NaNs of f16, bf16 and f32 (its upper half), of a pair of e4m3, and fresh cells themselves
NANS = (0x7FFF, 0x7F7F, 0xFFFF)


class Partly(NamedTuple):
    """A load of tensor memory of which a part was written. writer: of some of that. row: the first
    lane that the load reads. empty: bool [lanes, columns], what nothing has written.
    """

    load: Record
    writer: Record
    row: int
    columns: slice
    empty: np.ndarray

    @property
    def of_integers(self) -> bool:
        """Whether the part that is written may be integers, which leave no NaN."""
        return self.writer.kind == "store" or self.writer.ins.has("kind::i8")

    def empty_columns(self) -> slice | None:
        """From the first to the last column that is empty in all lanes of the load."""
        found = np.flatnonzero(self.empty.all(axis=0))
        if not found.size:
            return None
        first, last = (self.columns.start + int(found[i]) for i in (0, -1))
        return slice(first, last + 1)

    def empty_lanes(self) -> list[int]:
        """The lanes that are empty in all columns of the load."""
        return [self.row + int(i) for i in np.flatnonzero(self.empty.all(axis=1))]


def suspicious(observer: Observer) -> bool:
    """Whether to find out if a result depends on what the loads got."""
    loads = observer.coverage.partly
    if any(partly.empty_lanes() or partly.of_integers for partly in loads):
        return True
    return bool(loads) and observer.unwritten.wrote_any(NANS)


def tell(observer: Observer, reached: str) -> None:
    """Report the loads. reached: a result that depends on at least one of them, in words."""
    loads: dict[int, list[Partly]] = {}
    for partly in observer.coverage.partly:
        loads.setdefault(id(partly.load.ins), []).append(partly)
    if len(loads) > 1:
        reached += f" (or on what the other {len(loads) - 1} such loads of the launch get)"
    for same in loads.values():
        load, writer, _, columns, _ = same[0]
        observer.found(
            "uninitialised",
            f"{words.thing(load)} reads {_place(same)} of tensor memory that nothing has written",
            f"this access: {words.act(load)}",
            f"the rest of columns [{columns.start}, {columns.stop}) was written by: "
            f"{words.act(writer)}",
            reached,
            "missing: a load, or a use of what it loads, of written lanes and columns only (a "
            "sum with M = 64 lies in lanes 0-15 of each 32); or M and N of the instruction "
            "descriptor as large as the tile",
            at=load.ins,
            other=writer.ins,
        )


def _place(loads: list[Partly]) -> str:
    """The lanes and the columns that are empty in all of a load, in words."""
    lanes = {lane for partly in loads for lane in partly.empty_lanes()}
    found = [columns for partly in loads if (columns := partly.empty_columns()) is not None]
    places = [f"lanes {_ranges(lanes)}"] if lanes else []
    if found:
        places.append(f"columns [{min(c.start for c in found)}, {max(c.stop for c in found)})")
    return " and ".join(places) or "parts"


def _ranges(lanes: Iterable[int]) -> str:
    """Lanes as ranges: "16-31, 48-63"."""
    order = sorted(lanes)
    starts = [order[0], *(b for a, b in pairwise(order) if b != a + 1)]
    ends = [*(a for a, b in pairwise(order) if b != a + 1), order[-1]]
    spans = zip(starts, ends, strict=True)
    return ", ".join(f"{first}-{last}" if first != last else f"{first}" for first, last in spans)
