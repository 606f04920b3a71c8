"""Global memory: conflicts between CTAs, and reductions whose result depends on their order.

A conflict is a write of one CTA where another writes or reads. The shadow of an allocation has a
number for each 2 bytes that were written: which CTA at which line. An access that follows a
synchronising access of its CTA (an atomic, an acquire) is taken to be ordered by it. Reads leave no
trace: one that came before the other CTA's write in this run is found under a schedule that has it
after.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from b200 import sparse
from b200.checker import naming as words
from b200.checker.clocks import HB
from b200.checker.finding import ERROR, NOTE, PORTABILITY
from b200.checker.tensormap_edits import TensorMaps
from b200.chip.copies.tma_box import Window

UNIT = 2  # bytes of an entry
ENTRIES = 65535
WIDE = 4 * UNIT  # bytes of four entries, which are written as one
FOUR_TIMES = 0x0001_0001_0001_0001


@cache
def _range(count: int) -> np.ndarray:
    return np.arange(count)


class GlobalRules:
    """The rules of one launch's global memory."""

    def __init__(self, observer):
        self.observer = observer
        self.shadows: dict[
            int, np.ndarray
        ] = {}  # base of an allocation -> number of the writer of each UNIT
        self.writers: list = [None]  # number -> (agent, instruction)
        self.numbers: dict = {}
        self.synchronised: set = (
            set()
        )  # CTAs that have executed an atomic or an acquire on global memory
        self.maps = TensorMaps(observer)
        self.reductions: dict = {}  # allocation -> CTA that added floats to it

    def finish(self):
        self.shadows.clear()

    def holes(self) -> tuple[str, int, int] | None:
        """(name of a tensor with bytes never written between written ones, how many, per cent)."""
        for base, shadow in self.shadows.items():
            written = np.flatnonzero(shadow)
            span = int(written[-1] - written[0]) + 1 if written.size else 0
            if written.size < span:
                empty = (span - written.size) * UNIT
                name = self.observer.machine.memory.region(base).name
                return name, empty, round(100 * empty / (span * UNIT))
        return None

    def _shadow(self, region) -> np.ndarray:
        found = self.shadows.get(region.base)
        if found is None or found.size < region.size // UNIT + 1:
            entries = -(-(region.size // UNIT + 1) // 4) * 4
            found = self.shadows[region.base] = sparse.zeros(entries, np.uint16)
        return found

    def writer(self, address: int, nbytes: int):
        """(agent, instruction) of a write of this launch to one of some bytes, None without one."""
        region = self.observer.machine.memory.region(address, nbytes)
        shadow = self.shadows.get(region.base)
        if shadow is None:
            return None
        at = address - region.base
        return self.writers[int(shadow[at // UNIT : (at + nbytes + 1) // UNIT].max())]

    def _number(self, agent, ins) -> int:
        key = (agent.cta, id(ins))
        found = self.numbers.get(key)
        if found is None:
            found = self.numbers[key] = (len(self.writers) - 1) % ENTRIES + 1
            if len(self.writers) <= ENTRIES:
                self.writers.append((agent, ins))
            else:
                self.writers[found] = (agent, ins)
        return found

    def _others(self, agent, cells: np.ndarray):
        """(agent, instruction) of each write of another CTA in some cells that nothing orders
        before what `agent` does now.
        """
        flat = cells.reshape(-1)
        if agent.cta in self.synchronised or (flat == 0).all():
            return
        for old in np.unique(flat).tolist():
            if self.writers[old] is not None:
                other, where = self.writers[old]
                if other.cta is not agent.cta and not self._ordered(agent, other):
                    yield other, where

    def forget(self, cluster):
        """What a cluster has written, which starts again."""
        for number, writer in enumerate(self.writers):
            if writer is not None and writer[0].cta.cluster is cluster:
                self.writers[number] = None

    # --- reads ----------------------------------------------------------------------------------
    def _read(self, agent, cells: np.ndarray, ins, region):
        for other, where in self._others(agent, cells):
            self.observer.found(
                "global",
                "global memory is read that another CTA writes in the same launch, with nothing "
                "to order the two",
                (
                    f"this access: {words.line(ins)}, by {words.name(agent)}",
                    f"written: {words.line(where)}, by {words.name(other)}",
                    f"in {self.observer.operand(region.base)}",
                    "missing: a second launch, or a flag between the two CTAs (st.release or red "
                    "behind the write, ld.acquire before the read)",
                ),
                ins,
                where,
            )

    def loaded_lanes(self, agent, addresses: np.ndarray, nbytes: int, ins):
        """`nbytes` read at each of the addresses, int64."""
        memory = self.observer.machine.memory
        while addresses.size:
            if memory.readable(int(addresses[0]), nbytes, rounded=True) != addresses[0]:
                addresses = addresses[1:]  # behind a tensor, where nobody writes
                continue
            region = memory.region(int(addresses[0]), nbytes)
            inside = (addresses >= region.base) & (addresses + nbytes <= region.base + region.size)
            shadow = self.shadows.get(region.base)
            if shadow is not None:
                first = (addresses[inside] - region.base) // UNIT
                cells = shadow[first[:, None] + np.arange(-(-nbytes // UNIT))]
                self._read(agent, cells, ins, region)
            addresses = addresses[~inside]

    def loaded(self, agent, address: int, nbytes: int, ins):
        """Contiguous bytes read by a bulk copy."""
        region = self.observer.machine.memory.region(address, nbytes)
        if region.behind:
            self._behind(agent, nbytes, ins, region)
        elif ins.has("bulk"):
            self.observer.coverage.copied(agent, address, nbytes, region, ins)
        if (shadow := self.shadows.get(region.base)) is not None:
            at = address - region.base
            self._read(agent, shadow[at // UNIT : (at + nbytes + 1) // UNIT], ins, region)

    def _behind(self, agent, nbytes: int, ins, region):
        where = "inside of what PyTorch rounds its allocation up to" if region.within else ""
        self.observer.found(
            "global",
            "a bulk copy reads behind a tensor's end" + (f", {where}" if where else ""),
            (
                f"this access: {words.line(ins)}: {nbytes} bytes, by {words.name(agent)}",
                f"behind the end of {region.behind}",
                "on the chip it reads what lies there"
                + ("" if where else ", and faults where nothing is mapped")
                + "; here all ones",
                "missing: a guard for the tiles that the tensor does not have",
            ),
            ins,
            severity=PORTABILITY if region.within else ERROR,
        )

    def loaded_box(self, agent, access, ins):
        """A TMA load."""
        if access.region.base in self.shadows:
            for cells in self._boxes(access):
                self._read(agent, cells, ins, access.region)

    # --- writes ---------------------------------------------------------------------------------
    def _written(self, agent, cells: np.ndarray, ins, region):
        """cells: shadow entries about to be overwritten."""
        for other, where in self._others(agent, cells):
            self.observer.found(
                "global",
                "two CTAs write the same address of global memory",
                (
                    f"this access: {words.line(ins)}, by {words.name(agent)}",
                    f"written before: {words.line(where)}, by {words.name(other)}",
                    f"in {self.observer.operand(region.base)}",
                    "missing: an output tile of its own for each CTA (coordinates, or the number "
                    "of CTAs), or a guard at the "
                    "tensor's edge",
                ),
                ins,
                where,
            )

    @staticmethod
    def _ordered(agent, other) -> bool:
        """A barrier of the cluster stands between the other warp's latest write and now."""
        return other.cta.cluster is agent.cta.cluster and agent.knows(
            HB, other.component, other.global_epoch
        )

    def stored(self, agent, address: int, nbytes: int, ins):
        """Contiguous bytes."""
        region = self.observer.machine.memory.region(address, nbytes)
        shadow, number = self._shadow(region), self._number(agent, ins)
        agent.global_epoch = agent.now()
        if self.maps.uses:
            self.maps.stored(agent, address, address + nbytes)
        at = address - region.base
        cells = shadow[at // UNIT : (at + nbytes + 1) // UNIT]
        self._written(agent, cells, ins, region)
        cells[:] = number

    def stored_lanes(self, agent, addresses: np.ndarray, nbytes: int, ins):
        """`nbytes` at each of the addresses, int64."""
        if nbytes < UNIT:
            return
        memory = self.observer.machine.memory
        number = self._number(agent, ins)
        agent.global_epoch = agent.now()
        if self.maps.uses:
            self.maps.stored(agent, int(addresses.min()), int(addresses.max()) + nbytes)
        while addresses.size:
            region = memory.region(int(addresses[0]), nbytes)
            end = region.base + region.size
            if region.base <= int(addresses.min()) and int(addresses.max()) + nbytes <= end:
                here, addresses = addresses, addresses[:0]
            else:
                inside = (addresses >= region.base) & (addresses + nbytes <= end)
                here, addresses = addresses[inside], addresses[~inside]
            self._store(agent, here - region.base, nbytes, number, ins, region)

    def _store(self, agent, at: np.ndarray, nbytes: int, number: int, ins, region):
        """`nbytes` at offsets of an allocation: four entries at a time where they are aligned."""
        shadow, unit = self._shadow(region), UNIT
        if nbytes % WIDE == 0 and not (int(np.bitwise_or.reduce(at)) & WIDE - 1):
            shadow, unit, number = shadow.view(np.uint64), WIDE, number * FOUR_TIMES
        index = at // unit
        if nbytes > unit:
            index = index[:, None] + _range(nbytes // unit)
        cells = shadow[index]
        if cells.any():
            self._written(agent, cells.view(np.uint16), ins, region)
        shadow[index] = number

    def stored_box(self, agent, access, ins):
        """A TMA store."""
        number = self._number(agent, ins)
        agent.global_epoch = agent.now()
        for cells in self._boxes(access):
            self._written(agent, cells, ins, access.region)
            cells[...] = number

    def _boxes(self, access):
        """The shadow of what a TMA operation touches, a view for each box."""
        region, t = access.region, access.tensormap
        shadow = self._shadow(region)
        for coords in access.boxes:
            view = Window(t, region, coords).view
            if view is None or view.shape[-1] % UNIT:
                continue
            start = view.__array_interface__["data"][0] - region.u8.__array_interface__["data"][0]
            shape = (*view.shape[:-1], view.shape[-1] // UNIT)
            yield np.ndarray(
                shape, np.uint16, shadow, start // UNIT * UNIT, (*view.strides[:-1], UNIT)
            )

    # --- reductions and synchronisation ---------------------------------------------------------
    def reduced(self, agent, address: int, nbytes: int, ins):
        """A reduction of floating-point numbers: sums depend on the order of the CTAs."""
        if not (
            ins.has("add") and any(m.startswith(("f16", "f32", "f64", "bf16")) for m in ins.mods)
        ):
            return
        region = self.observer.machine.memory.region(address, 1)
        first = self.reductions.setdefault(region.base, (agent, ins))
        if first[0].cta is not agent.cta:
            self.observer.found(
                "order",
                "floating-point sums of several CTAs meet in one tensor: the result depends on "
                "which comes first",
                (
                    f"this access: {words.line(ins)}, by {words.name(agent)}",
                    f"and: {words.line(first[1])}, by {words.name(first[0])}",
                    f"in {self.observer.operand(region.base)}",
                    "missing: an order of the partial sums (a buffer for each, added up by one "
                    "CTA)",
                ),
                ins,
                first[1],
                NOTE,
            )

    def synchronise(self, agent):
        self.synchronised.add(agent.cta)
