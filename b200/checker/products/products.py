"""Products of the tensor core that are legal and ordered, but more often a mistake than intended.

No rule here fails a kernel whose numbers are right. If the numbers are wrong, look here first:
scale factors of another K-step, a K-step that counts twice or not at all, a sum that is thrown
away, bytes in another layout than the operand's descriptor says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from b200.checker import words
from b200.checker.accesses import Record
from b200.checker.finding import ERROR, NOTE, Finding
from b200.checker.memory.shadow import GRANULE, distinct
from b200.checker.tensor.tensor_shadow import ALL, Halves, place_of_sum
from b200.chip.copies.tensormap import SPANS
from b200.chip.tensor.descriptors import SWIZZLES
from b200.chip.tensor.mma_operands import SharedOperand

if TYPE_CHECKING:
    from b200.checker.memory.shared_memory import SharedRules
    from b200.checker.observer import Observer
    from b200.checker.tensor.tensor_memory import TensorRules
    from b200.chip.state import CTA
    from b200.chip.tensor.mma import DecodedMma
    from b200.chip.tensor.mma_operands import ScaleFactors

GROUP = 8  # rows that a stride byte offset steps over
NEW_SUM = " starts a new sum over one that nobody has read"  # ends a diagnosis
NEVER_READ = " brings is never read"  # ends the diagnosis of a load of which a part is not


class Products:
    """The rules for one launch.

    steps: (CTA, accumulator) -> the MMAs of its current sum: (operands, who has written their
    bytes, their scale factors) -> record. latest: (CTA, accumulator) -> the latest MMA. unread:
    whether some load was found of which a part is never read.
    """

    def __init__(self, observer: Observer):
        self.observer = observer
        self.steps: dict[tuple, dict] = {}
        self.latest: dict[tuple, tuple] = {}
        self.unread = False
        self.not_so: set[tuple[str, str]] = set()  # (line, other line) of a NEW_SUM taken back

    def take_back(self, first: Record, sum_: Record) -> None:
        """Somebody does read the sum over which MMA `first` has started a new one."""
        self.not_so.add((words.line(first.ins), words.line(sum_.ins)))

    def finish(self) -> None:
        """Drop what has been taken back."""
        findings = self.observer.findings
        if not self.not_so:
            return
        findings[:] = [
            found
            for found in findings
            if (found.loc, found.other) not in self.not_so or not found.diagnosis.endswith(NEW_SUM)
        ]

    def note(
        self, diagnosis: str, *details: str, of: tuple[Record, Record | None], severity: str = NOTE
    ) -> None:
        """Report what the first of two records does."""
        access = f"this access: {words.act(of[0])}"
        self.observer.report("product", diagnosis, access, *details, of=of, severity=severity)

    # --- tcgen05.mma ----------------------------------------------------------------------------
    def multiplied(self, record: Record, cta: CTA, op: DecodedMma) -> None:
        """Check an MMA. To be called before the shadow of `cta`, the issuing CTA, records it."""
        tensor, shared = self.observer.tensor(cta), self.observer.shared(cta)
        for operand in (op.a, op.b):
            if isinstance(operand, SharedOperand):
                self._layout(record, cta, shared, operand)
        scales = self._scales(record, tensor, op) if op.sfa is not None else ()
        if isinstance(op.a, SharedOperand):
            written = shared.shadow.written
            places = op.a.matrix.start, op.b.matrix.start
            bytes_ = tuple(int(written[at // GRANULE]) for at in places)
            record.parts = tuple(zip("AB", bytes_))
            stored = tuple(self._stored(shared, at) for at in places)
            self._step(record, cta, op, places, (*places, *bytes_, *stored, *scales), scales)
        self._discarded(record, tensor, op)

    @staticmethod
    def _stored(shared: SharedRules, at: int) -> bytes:
        """Which generic stores, cp.async included, have filled the first granule of an operand."""
        if not shared.shadow.stored_in.meet(at, at + GRANULE - 1):
            return b""
        return shared.shadow.words(shared.shadow.stored, at // GRANULE).tobytes()

    def _scales(
        self, record: Record, tensor: TensorRules, op: DecodedMma
    ) -> tuple[tuple[int, int, int], ...]:
        """(column, byte, number of the copy that brought it) of each operand's scale factors."""
        assert op.sfa is not None and op.sfb is not None
        found: list[tuple[int, int, int]] = []
        for name, sf in (("A", op.sfa), ("B", op.sfb)):
            cells = tensor.shadow.written[0, sf.column : sf.column + sf.columns]
            for number in distinct(cells):
                old = tensor.state.records[number] if number else None
                if old is not None and old.kind == "mma":
                    self._scales_of_an_mma(record, tensor, sf, name, old)
            found.append((sf.column, sf.first, int(cells[0])))
        (a, _, _), (b, _, _) = found
        if a < b + op.sfb.columns and b < a + op.sfa.columns:
            self.note(
                "the scale factors of A and of B are read from the same columns",
                f"A: {tensor.place(slice(a, a + op.sfa.columns))}; B: from column {b} on",
                "missing: columns of their own for the scale factors of each operand",
                of=(record, None),
            )
        return tuple(found)

    def _scales_of_an_mma(
        self, record: Record, tensor: TensorRules, sf: ScaleFactors, name: str, old: Record
    ) -> None:
        self.note(
            f"the scale factors of {name} lie where {words.thing(old)} has put its accumulator",
            f"written by: {words.act(old)}",
            f"in {tensor.place(slice(sf.column, sf.column + sf.columns))}",
            "missing: columns for the scale factors after the accumulator's, or a tcgen05.cp "
            "after it",
            of=(record, old),
            severity=ERROR,
        )

    def _step(
        self, record: Record, cta: CTA, op: DecodedMma, places: tuple, key: tuple, scales: tuple
    ) -> None:
        accumulator = cta, op.acc.taddr
        if not op.accumulate:
            self.steps[accumulator] = {}
        steps = self.steps.setdefault(accumulator, {})
        before = self.latest.get(accumulator)
        self.latest[accumulator] = places, scales, record
        old = steps.setdefault(key, record)
        if old is not record:
            self.note(
                "a K-step is counted twice: the same bytes of A and B, multiplied into one sum",
                f"multiplied before: {words.act(old)}",
                f"A at {places[0]:#x}, B at {places[1]:#x} of CTA {cta.index}'s shared memory",
                "missing: another k-block in the descriptors (its index is not advanced)",
                of=(record, old),
            )
            return
        if before is None or not op.accumulate or not scales:
            return
        (a, b), old_scales, old = before
        if a == places[0] or b == places[1]:
            return
        for name, mine, other in zip("AB", scales, old_scales):
            if mine == other:
                self.note(
                    f"the scale factors of {name} are those of the K-step before: they are not "
                    "advanced",
                    f"the K-step before: {words.act(old)}",
                    f"both read column {mine[0]}, byte {mine[1]}, which nothing has written in "
                    "between",
                    "missing: the next k-block in the scale factors' address, or a tcgen05.cp",
                    of=(record, old),
                )
            self._order(record, old, name, (a, b), places, mine[2], other[2])

    def _order(
        self,
        record: Record,
        old: Record,
        name: str,
        before: tuple[int, int],
        now: tuple[int, int],
        copy: int,
        copy_before: int,
    ) -> None:
        """Check consecutive K-steps of one sum: from one load to the next, operand and scale
        factors must move in the same way through what was loaded. copy, copy_before: numbers of the
        copies that brought the scale factors.
        """
        i, records = "AB".index(name), record.agent.state.records
        new, first = records[copy], records[copy_before]
        if new is None or first is None or new.kind != "cp" or first.kind != "cp":
            return
        together = record.parts[i] == old.parts[i] and new.parts == first.parts
        if not together or not record.parts[i][1] or not new.parts[0][1]:
            return
        if new.start != first.start and (new.start > first.start) != (now[i] > before[i]):
            self.observer.report(
                "product",
                f"the scale factors of {name} go the other way through their stage than its "
                "k-blocks",
                f"this access: {words.act(record)}, {name} at {now[i]:#x}, its scale factors "
                f"from {new.start:#x}",
                f"the K-step before: {name} at {before[i]:#x}, its scale factors from "
                f"{first.start:#x}",
                f"copied by: {words.act(new)}",
                "missing: the scale factors of this k-block (the index of a tcgen05.cp's source)",
                of=(record, new),
                severity=NOTE,
            )

    def _discarded(self, record: Record, tensor: TensorRules, op: DecodedMma) -> None:
        """Report a sum that is started over another sum that nobody has read."""
        if op.accumulate:
            return
        halves, columns, _ = place_of_sum(op, 0)
        if (unread := self._unread(tensor, halves, columns)) is not None:
            self.note(
                words.thing(record) + NEW_SUM,
                f"the sum: {words.act(unread)}",
                f"in {tensor.place(columns)}",
                "missing: enable-input-d true for all but the first MMA of a tile (the accumulate "
                "flag is never set, or reset for each k-tile)",
                of=(record, unread),
            )
            tensor.over.append((record, unread, columns))

    @staticmethod
    def _unread(tensor: TensorRules, halves: Halves, columns: slice) -> Record | None:
        """An MMA whose sum lies there and was not read; None if there is none."""
        cells = tensor.shadow.written[halves, columns]
        for number in distinct(cells):
            old = tensor.state.records[number] if number else None
            if old is not None and old.kind == "mma":
                if not tensor.shadow.loaded[:, halves, columns][:, cells == number].any():
                    return old
        return None

    # --- tcgen05.cp -----------------------------------------------------------------------------
    def copied(self, record: Record, cta: CTA, start: int, columns: slice) -> None:
        """Check a copy of scale factors at `start`, before the shadow records it."""
        tensor = self.observer.tensor(cta)
        thing = words.thing(record)
        record.start = start
        record.parts = (("", int(self.observer.shared(cta).shadow.written[start // GRANULE])),)
        if (unread := self._unread(tensor, ALL, columns)) is not None:
            self.note(
                f"{thing} overwrites an accumulator that nobody has read",
                f"the sum: {words.act(unread)}",
                f"in {tensor.place(columns)}",
                "missing: columns for the scale factors that no accumulator has",
                of=(record, unread),
            )
        cells, used = tensor.shadow.written[0, columns], tensor.shadow.core[0, columns]
        for number in distinct(cells):
            old = tensor.state.records[number] if number else None
            if old is not None and old.kind == "cp" and not used[cells == number].any():
                self.note(
                    f"{thing} overwrites scale factors that no tcgen05.mma has used",
                    f"written by: {words.act(old)}",
                    f"in {tensor.place(columns)}",
                    "missing: columns of their own for the scale factors of each operand and "
                    "k-block",
                    of=(record, old),
                )

    # --- operands in shared memory --------------------------------------------------------------
    def _layout(
        self, record: Record, cta: CTA, shared: SharedRules, operand: SharedOperand
    ) -> None:
        """Compare an operand's descriptor with the tensormap of the load that brought its bytes."""
        matrix = operand.matrix
        number = int(shared.shadow.written[matrix.start // GRANULE])
        old = self.observer.state(cta).records[number] if number else None
        if old is None or old.box is None:
            return
        box = old.box
        have, span = SPANS[box.swizzle], SWIZZLES[matrix.mode].span if matrix.mode else 0
        if have != span:
            said = f"{span}-byte swizzle" if span else "no swizzle"
            did = f"a {have}-byte swizzle" if have else "none"
            self._differs(
                record, old, operand, f"with {said}, and was loaded with {did}", "one swizzle"
            )
        elif span and not operand.mn_major and box.counts[1] >= 2 * GROUP:
            if matrix.sbo != GROUP * span:
                self._differs(
                    record,
                    old,
                    operand,
                    f"with {matrix.sbo} bytes between its groups of 8 rows, and was loaded with "
                    f"{GROUP * span}",
                    "one stride byte offset",
                )

    def _differs(
        self, record: Record, old: Record, operand: SharedOperand, how: str, one: str
    ) -> None:
        self.note(
            f"operand {operand.name} is read {how}",
            f"loaded by: {words.act(old)}",
            f"missing: {one} for the tensormap and the matrix descriptor (both from the same "
            "shared-memory layout)",
            of=(record, old),
        )

    def out_of_phase(self, new: Record, old: Record) -> None:
        """Note a plain read of a swizzled tile that does not begin where the swizzle's pattern
        does. The unit takes the XOR from the address, a reader most often from its place in the
        tile.
        """
        assert old.box is not None  # the caller has looked
        period = GROUP * SPANS[old.box.swizzle]
        self.note(
            f"{words.thing(new)} reads a tile of {words.thing(old)} that begins in the middle of "
            "the swizzle's pattern",
            f"loaded by: {words.act(old)}",
            f"the tile is at shared-memory offset {old.start:#x}, {old.start % period} bytes "
            f"after a multiple of {period}: the XOR of its rows is that of the address, not of "
            "the row in the tile",
            f"missing: a base that is a multiple of {period}, or an XOR of the reader that is "
            "taken from the address",
            of=(new, old),
        )

    def stale(self, new: Record, old: Record, place: str) -> None:
        """Report that `new` reads what a load of a later phase has left of an earlier one."""
        later = old.overwritten
        assert later is not None  # the caller has looked
        self.note(
            f"{words.thing(new)} reads what an earlier phase has left: the load of the later phase "
            "did not reach it",
            f"loaded by: {words.act(old)}",
            f"overwritten in part by: {words.act(later)}",
            f"in {place}",
            "missing: a load of the whole stage, or fewer k-blocks or rows for the tail",
            of=(new, old),
        )

    def remarked(self, finding: Finding) -> None:
        """Take over a finding on a cluster of an earlier launch that was followed."""
        self.unread |= finding.diagnosis.endswith(NEVER_READ)

    def part_unread(self, old: Record, total: int, used: int) -> None:
        """Report a load of which the tensor core has read only a part. total, used: in granules."""
        self.unread = True
        self.observer.report(
            "product",
            f"a part of what {words.thing(old)}{NEVER_READ}",
            f"the load: {words.act(old)}",
            f"{(total - used) * GRANULE} of {total * GRANULE} bytes are overwritten, or left "
            "when the CTA ends, and no tcgen05.mma or tcgen05.cp has read them",
            "missing: a k-block (their number, or the index of one), or N or M of the "
            "instruction descriptor is smaller than the tile",
            of=(old, None),
            severity=NOTE,
        )
