"""Stores of a cluster that has followed: told to the rules all at once, where they find nothing.

Most of them go where nobody else has been, and no two of them meet. One look at all of their places
shows both, and then nothing is to be found. If it does not, they are told one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from b200.checker.memory.global_conflicts import WEAK
from b200.checker.memory.global_shadow import UNIT
from b200.chip.fragment import Fragment
from b200.chip.global_memory import Region
from b200.program.module import Instr

if TYPE_CHECKING:
    from b200.checker.observer import Observer

# Bytes of an item of the shadow (global_shadow.py) -> the type of an array of such items
ITEMS = {2: np.uint32, 4: np.uint64, 8: np.complex128}


class FollowedStore(NamedTuple):
    """A plain store of global memory. at: its addresses, as lane_addresses has them. own: lanes
    that store each for itself. alone: tells the rules of it by itself.
    """

    warp: Fragment
    ins: Instr
    at: np.ndarray
    nbytes: int
    own: int
    alone: Callable[[], None]

    def __call__(self) -> None:
        self.alone()


def tell_all(observer: Observer, calls: Iterable[Callable[[], None]]) -> None:
    """Make calls to the rules for all clusters, as if in their order."""
    for _, group in groupby(calls, type):
        some = list(group)
        stores = [call for call in some if isinstance(call, FollowedStore)]
        if not stores or not _told(observer, stores):
            for call in some:
                call()


def _told(observer: Observer, stores: list[FollowedStore]) -> bool:
    """Tell of stores all at once. False, and nothing is told, if there may be something to find."""
    rules = observer.globals
    if len(stores) == 1 or rules.maps.uses or observer.stores is not None:
        return False
    if any(store.nbytes < UNIT for store in stores):
        return False
    taken: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    for (region, nbytes), mine in _by_place(observer, stores).items():
        if region.base not in observer.given.whole:
            break
        at = np.concatenate([store.at for store in mine]) - region.base
        if int(at.min()) < 0 or int(at.max()) + nbytes > region.size:
            break
        if rules.reads.has(region) and rules.reads.of(region, at[:, None], nbytes):
            break
        items, index = wide_items(rules.shadow.of(region), at, nbytes)
        if not _take(items, index):
            break
        numbers = [_number(observer, store) for store in mine]
        values = np.repeat(np.array(numbers, np.uint32), [store.at.size for store in mine])
        taken.append((items, index, values))
    else:
        for items, index, values in taken:
            items[index] = as_items(values, items)
        return True
    for items, index, _ in taken:
        items[index] = 0
    return False


def _by_place(
    observer: Observer, stores: list[FollowedStore]
) -> dict[tuple[Region, int], list[FollowedStore]]:
    """Stores by the allocation that each begins in, and by their bytes."""
    found: dict[tuple[Region, int], list[FollowedStore]] = {}
    region, memory = None, observer.machine.memory
    for store in stores:
        first = int(store.at[0])
        if region is None or not region.base <= first < region.base + region.size:
            region = memory.region(first, store.nbytes)
        found.setdefault((region, store.nbytes), []).append(store)
    return found


def _take(items: np.ndarray, index: np.ndarray) -> bool:
    """Whether nothing is at some places and they all differ; if so, something is there now."""
    if items[index].view(np.uint32).any():
        return False
    names = np.arange(1, index.size + 1).astype(items.dtype).reshape(index.shape)
    items[index] = names
    if (items[index] == names).all():
        return True
    items[index] = 0
    return False


def _number(observer: Observer, store: FollowedStore) -> int:
    agent = observer.agent(store.warp)
    agent.touched |= store.own
    return observer.globals.shadow.number(agent, store.ins, WEAK, store.own)


def wide_items(
    shadow: np.ndarray, offsets: np.ndarray, nbytes: int
) -> tuple[np.ndarray, np.ndarray]:
    """(the shadow of an allocation in items as wide as accesses of `nbytes` at these offsets allow,
    index of the items of each access).
    """
    ways = int(np.bitwise_or.reduce(offsets, None)) | nbytes
    unit = next((u for u in (8, 4) if not ways % u), UNIT)
    items = shadow[: shadow.size // (unit // UNIT) * (unit // UNIT)].view(ITEMS[unit])
    return items, (offsets // unit)[..., None] + np.arange(nbytes // unit)


def as_items(numbers: np.ndarray, items: np.ndarray) -> np.ndarray:
    """The number of a write for each access, uint32 [n], as an item of the shadow, [n, 1]."""
    return np.repeat(numbers[:, None], items.itemsize // 4, 1).view(items.dtype)
