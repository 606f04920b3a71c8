"""Coverage: parts of a tensor that a launch never loads, and accumulators that it never reads.

Neither is wrong by itself: tiles may reach over an edge, and a kernel may leave out what it does
not need. So each is reported only with its counterpart: boxes that lie wholly outside a tensor
while parts of it are never loaded; rows that are loaded more than once and not whole; boxes that
stand further apart than they are large; gaps between the ranges that bulk copies read; columns of
an accumulator that nobody reads while parts of the output are never written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from b200.checker import words
from b200.checker.finding import NOTE
from b200.checker.tensor.partly_written import Partly
from b200.chip.tensors import LiveTensors

if TYPE_CHECKING:
    from b200.checker.accesses import Record
    from b200.checker.agent import Agent
    from b200.checker.observer import Observer
    from b200.chip.copies.tensormap import TensorMap
    from b200.chip.copies.tma import TensorBoxes
    from b200.chip.global_memory import Region
    from b200.program.module import Instr

LIMIT = 1 << 26  # elements of a tensor whose coverage is looked at


class Apart(NamedTuple):
    """Indices [first, last) of dimension `dimension` that no box touches. step: at which they are
    left out again, 0 where boxes stand at one index alone.
    """

    dimension: int
    first: int
    last: int
    step: int


class MapLoads:
    """The TMA loads through one tensormap: start coordinates of their boxes, and how often each box
    was loaded.

    first: (agent, instruction) of the first load. outside: (agent, instruction, coordinates) of the
    first box that is wholly outside the tensor. alike: the same of the first box that two CTAs of a
    cluster load.
    """

    def __init__(self, tensormap: TensorMap, first: tuple):
        self.tensormap, self.first = tensormap, first
        self.boxes: Counter[tuple[int, ...]] = Counter()
        self.outside: tuple | None = None
        self.alike: tuple | None = None
        self.loaders: dict[tuple[int, ...], tuple] = {}  # box -> (cluster, rank) of its latest load

    def add(self, agent: Agent, ins: Instr, box: tuple[int, ...]) -> None:
        t, cta = self.tensormap, agent.cta
        cluster, rank = self.loaders.get(box, (None, 0))
        if cluster == cta.cluster.index and rank != cta.rank and self.alike is None:
            self.alike = agent, ins, box
        self.loaders[box] = cta.cluster.index, cta.rank
        self.boxes[box] += 1
        if self.boxes[box] == 1 and self.outside is None:
            ends = zip(box, t.box, t.dims, strict=True)
            if any(at >= n or at + size <= 0 for at, size, n in ends):
                self.outside = agent, ins, box

    @property
    def too_large(self) -> bool:
        return int(np.prod(self.tensormap.dims)) > LIMIT

    def missed(self) -> int:
        """The number of elements of the tensor that no box has touched."""
        t = self.tensormap
        if any(step != 1 for step in t.steps) or self.too_large:
            return 0
        left = np.ones(t.dims, bool)
        for box in self.boxes:
            left[tuple(slice(max(0, a), max(0, a + n)) for a, n in zip(box, t.box))] = False
        return int(np.count_nonzero(left))

    def apart(self) -> Apart | None:
        """What boxes that stand too far apart leave out of an outer dimension: their starts are the
        multiples of a step up to the dimension's end, and the step is more than the box. Or the
        same boxes are loaded as often as other ones would be needed.
        """
        t = self.tensormap
        if any(step != 1 for step in t.steps):
            return None
        for d in range(1, t.rank):
            size, end = t.box[d], t.dims[d]
            starts = sorted({box[d] for box in self.boxes})
            step = starts[1] if len(starts) > 1 else end
            regular = starts == list(range(0, end, step)) and step > size
            again = len(starts) > 1 or set(self.boxes.values()) == {-(-end // size)}
            if size > 1 and regular and again:
                return Apart(d, size, min(step, end), step if len(starts) > 1 else 0)
        return None

    def skipped(self) -> tuple[int, int] | None:
        """The first range [from, to) of the innermost dimension, in elements, that no box has
        touched in a row that was loaded from more than once.
        """
        t, end = self.tensormap, self.tensormap.dims[0]
        rows: dict[tuple[int, ...], list[tuple[int, int]]] = {}
        loads: Counter[tuple[int, ...]] = Counter()
        for (at, *others), count in self.boxes.items():
            row = tuple(others)
            if all(0 <= at < n for at, n in zip(row, t.dims[1:])):
                rows.setdefault(row, []).append((at, at + t.box[0]))
                loads[row] += count
        twice = (spans for row, spans in rows.items() if loads[row] > 1)
        return next((gap for spans in twice for gap in gaps(spans, 0, end)), None)


def gaps(spans: list | dict, low: int, high: int) -> Iterator[tuple[int, int]]:
    """The parts of [low, high) that none of the spans (from, to) covers."""
    for start, end in sorted(spans):
        if start > low:
            yield low, min(start, high)
        low = max(low, end)
        if low >= high:
            return
    if low < high:
        yield low, high


def crosses(step: int, count: int, pitches: tuple[int, ...]) -> bool:
    """Whether a tensormap's dimension does not fit a tensor's strides. The dimension has `count`
    steps of `step` bytes; the tensor's strides, in bytes, are `pitches`. It does not fit if it
    reaches beyond a stride of which `step` is neither a multiple nor a divisor.
    """
    reach = step * (count - 1)
    return any(pitch <= reach and step % pitch and pitch % step for pitch in pitches)


class Coverage:
    """The rules of one launch."""

    def __init__(self, observer: Observer):
        self.observer = observer
        self.loads: dict[tuple, MapLoads] = {}
        # Base of an allocation -> what bulk copies read of it: (from, to) -> (agent, instruction).
        self.copies: dict[int, dict[tuple[int, int], tuple]] = {}
        # (record of the MMA, of a load, first and last column unread)
        self.unread: list[tuple] = []
        self.partly: list[Partly] = []

    def loaded(self, agent: Agent, access: TensorBoxes, ins: Instr) -> None:
        t = access.tensormap
        if len(access.boxes) > 1:  # gather4: rows in any order, those not wanted outside
            return
        key = t.address, t.dims, t.box
        found = self.loads.get(key)
        if found is None:
            found = self.loads[key] = MapLoads(t, (agent, ins))
            self._overlap(agent, t, ins)
            self._pitch(agent, access, ins)
            self._extent(agent, access, ins)
        found.add(agent, ins, tuple(access.boxes[0]))

    def copied(self, agent: Agent, address: int, nbytes: int, region: Region, ins: Instr) -> None:
        """Note a bulk copy out of an allocation."""
        spans = self.copies.setdefault(region.base, {})
        spans.setdefault((address, address + nbytes), (agent, ins))

    def _note(self, ins: Instr, diagnosis: str, *details: str) -> None:
        self.observer.found("coverage", diagnosis, *details, at=ins, severity=NOTE)

    def _pitch(self, agent: Agent, access: TensorBoxes, ins: Instr) -> None:
        """Report a tensormap whose strides fit none of the tensors that the program has there."""
        t, region = access.tensormap, access.region
        if (t.address, t.extent) == (region.base, region.size):
            return  # it ends where its memory ends; and looking for the tensors is not for nothing:
            # CPython before 3.13 keeps what a frame's f_locals has shown for as long as it runs
        steps = [(step, n) for step, n in zip(t.strides, t.dims[1:]) if n > 1]
        tensors = LiveTensors.pitches(region.base, region.size)
        wrong = [{step for step, n in steps if crosses(step, n, each)} for each in tensors]
        if not wrong or not all(wrong):
            return
        self._note(
            ins,
            "a tensormap steps across its tensor's rows: its strides are not the tensor's",
            f"this access: {words.line(ins)}, by {words.name(agent)}",
            f"{t}: a stride of {min(wrong[0])} bytes in {self.observer.operand(region.base)}, "
            f"whose strides are {', '.join(map(str, tensors[0]))} bytes",
            "missing: the strides of the tensor",
        )

    def _overlap(self, agent: Agent, t: TensorMap, ins: Instr) -> None:
        """Report a tensormap whose rows overlap in memory: its stride is in elements where bytes
        are meant, or half of what it should be.
        """
        row = t.dims[0] * t.element.bits // 8
        if t.rank < 2 or t.dims[1] == 1 or t.strides[0] >= row:
            return
        self._note(
            ins,
            "the rows of a tensormap overlap: its stride is smaller than a row",
            f"this access: {words.line(ins)}, by {words.name(agent)}",
            f"{t}: a row is {row} bytes, the next begins {t.strides[0]} bytes after it",
            "missing: the stride of the tensor, in bytes",
        )

    def _extent(self, agent: Agent, access: TensorBoxes, ins: Instr) -> None:
        """Report a tensormap that reaches beyond the end of its tensor's memory: boxes there read
        memory where they should be filled with zeros.
        """
        t, region = access.tensormap, access.region
        if t.address + t.extent <= region.base + region.size:
            return
        self.observer.found(
            "tensormap",
            "a tensormap describes more than its tensor has",
            f"this access: {words.line(ins)}, by {words.name(agent)}",
            t.too_large(region),
            "missing: the dimensions of the tensor, so that what lies outside reads as zero",
            at=ins,
            severity=NOTE,
        )

    def finish(self) -> None:
        for loads in self.loads.values():
            if loads.outside is not None and (missed := loads.missed()):
                self._coordinates(loads, missed, *loads.outside)
            elif all(step == 1 for step in loads.tensormap.steps) and (gap := loads.skipped()):
                self._skipped(loads, gap)
            elif loads.alike is not None and (missed := loads.missed()):
                self._alike(loads, missed, *loads.alike)
            elif (apart := loads.apart()) is not None:
                self._apart(loads, apart)
        for base, spans in self.copies.items():
            self._gaps(base, spans)
        if self.observer.products.unread:
            for partly in self.partly:
                if (empty := partly.empty_columns()) is not None:
                    self._columns_empty(partly.load, partly.writer, partly.columns, empty)
        holes = self.observer.globals.shadow.holes() if self.unread else None
        if holes is not None:
            for mma, load, first, last in self.unread:
                self._columns(mma, load, first, last, holes)

    def left_out(self) -> list[str]:
        """Tensors of which it is not known whether boxes leave anything out, a line each."""
        return [
            f"whether the boxes of {self.observer.operand(loads.tensormap.address)} leave a part "
            f"out was not looked at: it has more than {LIMIT:,} elements"
            for loads in self.loads.values()
            if loads.too_large and (loads.outside is not None or loads.alike is not None)
        ]

    def _skipped(self, loads: MapLoads, gap: tuple[int, int]) -> None:
        agent, ins = loads.first
        t = loads.tensormap
        self._note(
            ins,
            f"a part of the rows of {self.observer.operand(t.address)} is never loaded, and others "
            "of the same rows are",
            f"the first load: {words.line(ins)}, by {words.name(agent)}: {t}",
            f"elements [{gap[0]}, {gap[1]}) of the innermost dimension, of {t.dims[0]}",
            "missing: loads with these coordinates (a k-tile is left out, or the same one is "
            "loaded again)",
        )

    def _apart(self, loads: MapLoads, apart: Apart) -> None:
        agent, ins = loads.first
        t, d = loads.tensormap, apart.dimension
        rows = "rows" if d == 1 else f"indices of dimension {d},"
        more, again = "", "the same boxes are loaded again"
        if apart.step:
            more = f", and so on every {apart.step}" if 2 * apart.step < t.dims[d] else ""
            again = f"boxes stand {apart.step} apart"
        self._note(
            ins,
            f"{rows} {apart.first}-{apart.last - 1} of {self.observer.operand(t.address)} are never"
            f" loaded{more}: {again}",
            f"the first load: {words.line(ins)}, by {words.name(agent)}: {t}",
            f"a box has {t.box[d]} of {t.dims[d]} {rows.partition(' ')[0]}",
            "missing: a box as large as the tile, or loads with the coordinates between",
        )

    def _alike(
        self, loads: MapLoads, missed: int, agent: Agent, ins: Instr, box: Sequence[int]
    ) -> None:
        t = loads.tensormap
        self._note(
            ins,
            f"CTAs of one cluster load the same box of {self.observer.operand(t.address)}, parts "
            "of which are never loaded",
            f"this access: {words.line(ins)}, by {words.name(agent)}: a box of "
            f"{'x'.join(map(str, t.box))} at {box}, which another CTA has loaded for itself",
            f"{missed} of {int(np.prod(t.dims))} elements are never loaded",
            "missing: coordinates that depend on the CTA's rank in its cluster",
        )

    def _gaps(self, base: int, spans: dict) -> None:
        low, high = min(start for start, _ in spans), max(end for _, end in spans)
        found = list(gaps(spans, low, high))
        if not found:
            return
        agent, ins = next(iter(spans.values()))
        empty = sum(end - start for start, end in found)
        self._note(
            ins,
            f"bulk copies leave out parts of {self.observer.operand(base)} between those that they "
            "read",
            f"the first copy: {words.line(ins)}, by {words.name(agent)}",
            f"{empty} of {high - low} bytes, the first of them at {found[0][0] - base:#x}",
            "missing: copies of these bytes (an address that is not advanced, or a k-tile "
            "left out)",
        )

    def _columns_empty(self, load: Record, writer: Record, columns: slice, empty: slice) -> None:
        self.observer.found(
            "uninitialised",
            f"{words.thing(load)} reads tensor-memory columns that nothing has written",
            f"this access: {words.act(load)}",
            f"columns [{empty.start}, {empty.stop}) of [{columns.start}, {columns.stop}); the "
            f"others were written by: {words.act(writer)}",
            "missing: N of the instruction descriptor as wide as the tile, or fewer columns to "
            "load",
            at=load.ins,
            other=writer.ins,
            severity=NOTE,
        )

    def _coordinates(
        self, loads: MapLoads, missed: int, agent: Agent, ins: Instr, box: Sequence[int]
    ) -> None:
        t = loads.tensormap
        dims = "x".join(map(str, t.dims))
        self._note(
            ins,
            "a TMA load lies wholly outside of its tensor, parts of which are never loaded",
            f"this access: {words.line(ins)}, by {words.name(agent)}: a box of "
            f"{'x'.join(map(str, t.box))} at {box} of a tensor of {dims} (innermost dimension "
            "first)",
            f"{missed} of {int(np.prod(t.dims))} elements are never loaded",
            "missing: other coordinates; two may be swapped (the innermost comes first), or an "
            "element may be taken for a tile",
        )

    def _columns(self, mma: Record, load: Record, first: int, last: int, holes: tuple) -> None:
        name, empty, share = holes
        self.observer.found(
            "coverage",
            "a part of the accumulator is never read, and a part of the output never written",
            f"read: {words.act(load)}",
            f"computed: {words.act(mma)}",
            f"tensor-memory columns [{first}, {last + 1}) are freed without having been read; "
            f"{empty} bytes of {name} lie between written ones ({share} % of them) and are "
            "never written",
            "missing: loads of the other columns (a wider tcgen05.ld, or more of them)",
            at=load.ins,
            other=mma.ins,
            severity=NOTE,
        )
