"""The mbarrier object (PTX ISA 9.7.13.15); mbarrier_instructions.py has what changes it.

An mbarrier lives at an 8-byte aligned offset of a CTA's shared memory. Its state is kept in a
Python object and not in the bytes there, so only mbarrier instructions and the units that signal
completion see it. (On the chip a plain load of an mbarrier reads nothing useful, either.)
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence

from b200.chip.memory.addressing import Signaller
from b200.chip.state import CTA
from b200.errors import Fault
from b200.program.barrier_names import barrier_name
from b200.registry import Waitable

MAX_COUNT = (1 << 20) - 1  # of arrivals, and of |tx-count|
HISTORY = 8  # signals remembered for a deadlock report


class MBarrier(Waitable):
    """The state of an mbarrier: phase parity, expected and pending arrivals, bytes (tx-count).

    init_by, arrivals: who initialised it, and who arrived or completed bytes last, for reports.
    """

    __slots__ = ("cta", "offset", "phase", "expected", "pending", "tx", "init_by", "arrivals")

    def __init__(self, cta: CTA, offset: int, count: int, init_by: Signaller | None = None):
        super().__init__()
        if not 1 <= count <= MAX_COUNT:
            raise Fault(
                f"mbarrier.init at offset {offset:#x} with count {count}: must be 1..{MAX_COUNT}"
            )
        self.cta, self.offset = cta, offset
        self.phase, self.expected, self.pending, self.tx = 0, count, count, 0
        self.init_by = init_by
        self.arrivals: deque[Signaller | None] = deque(maxlen=HISTORY)

    def __str__(self):
        name = f" {self.name}" if self.name else ""
        where = f"shared-memory offset {self.offset:#x} of CTA rank {self.cta.rank}"
        return f"mbarrier{name} at {where}"

    @property
    def name(self) -> str:
        """The name in the source, "empty[0]"; "" where it has none (program/barrier_names.py)."""
        name = self._source_name()
        if not name:
            return ""
        alike = {at for at, b in self.cta.mbarriers.items() if b._source_name() == name}
        alike.add(self.offset)
        return f"{name}[{sorted(alike).index(self.offset)}]" if len(alike) > 1 else name

    def _source_name(self) -> str:
        return barrier_name(self.init_by.ins.loc) if self.init_by else ""

    def place(self) -> str:
        """ "mbarrier empty[0] (2 of 5 in a row, offset 0x410)": its name, its row, its offset."""
        index, length = self.row()
        row = f"{index} of {length} in a row" if length > 1 else ""
        if self.name:
            return f"mbarrier {self.name} ({f'{row}, ' if row else ''}offset {self.offset:#x})"
        return f"{f'mbarrier {row}' if row else 'mbarrier'} (offset {self.offset:#x})"

    @property
    def idle(self) -> bool:
        """Whether nothing has happened in the current phase."""
        return self.pending == self.expected and self.tx == 0

    def token(self) -> int:
        """The opaque 64-bit state as on H200: phase parity in bit 63, -pending in bits 43-62."""
        return self.phase << 63 | (-self.pending & MAX_COUNT) << 43

    def arrive(
        self, count: int = 1, who: Signaller | None = None, tx: int = 0, complete: bool = True
    ) -> int:
        """arrive, .expect_tx with `tx`, .noComplete unless `complete`; returns the state before."""
        state = self.token()
        if not 1 <= count <= MAX_COUNT:
            raise Fault(f"arrive with count {count} on the {self}: must be 1..{MAX_COUNT}")
        if count > self.pending:
            raise Fault(
                f"arrive with count {count} on the {self}, which waits for only {self.pending} "
                f"more arrival(s) in this phase (expected {self.expected}, tx-count {self.tx}): "
                "there are more arrivals than its count"
            )
        if tx:
            self._add_tx(tx)
        self.touch()
        self.pending -= count
        self.arrivals.append(who)
        if self.pending == 0 and self.tx == 0 and not complete:
            raise Fault(f"arrive.noComplete with count {count} completes the phase of the {self}")
        self._check()
        return state

    def arrive_drop(
        self, count: int = 1, who: Signaller | None = None, tx: int = 0, complete: bool = True
    ) -> int:
        """Arrive, and expect `count` fewer arrivals in the following phases."""
        if count > self.expected:
            raise Fault(
                f"arrive_drop with count {count} on the {self}, which expects only "
                f"{self.expected} arrival(s)"
            )
        before, self.expected = self.expected, self.expected - count
        try:
            return self.arrive(count, who, tx, complete)
        except Fault:
            self.expected = before
            raise

    def expect_tx(self, nbytes: int) -> None:
        self._add_tx(nbytes)
        self._check()

    def complete_tx(self, nbytes: int, who: Signaller | None = None) -> None:
        self.touch()
        self._add_tx(-nbytes)
        if who is not None:
            self.arrivals.append(who)
        self._check()

    def expect_arrival(self) -> None:
        """One arrival more in this phase only (cp.async.mbarrier.arrive without .noinc)."""
        if self.pending == MAX_COUNT:
            raise Fault(
                f"cp.async.mbarrier.arrive: the pending count of the {self} would exceed "
                f"{MAX_COUNT}"
            )
        self.pending += 1

    def _add_tx(self, nbytes: int) -> None:
        tx = self.tx + nbytes
        if not -MAX_COUNT <= tx <= MAX_COUNT:
            raise Fault(
                f"the tx-count of the {self} would become {tx}: "
                f"its range is -{MAX_COUNT}..{MAX_COUNT}"
            )
        self.tx = tx

    def _check(self) -> None:
        """Complete the phase if all has come."""
        if self.pending == 0 and self.tx == 0:
            self.phase ^= 1
            self.pending = self.expected
            self.notify()

    def row(self) -> tuple[int, int]:
        """(index, length) of this barrier among those next to each other in shared memory."""
        have = self.cta.mbarriers
        first = last = self.offset
        while first - 8 in have:
            first -= 8
        while last + 8 in have:
            last += 8
        return (self.offset - first) // 8, (last - first) // 8 + 1

    def describe(self) -> str:
        """State and history in one line, for a deadlock report."""
        index, length = self.row()
        text = f"{self}"
        if length > 1:
            text += f" (number {index} of {length} in a row)"
        text += f": its phase of parity {self.phase} is not over"
        text += f", {self.pending} of {self.expected} arrival(s) missing"
        if self.tx > 0:
            text += f", {self.tx} byte(s) missing"
        elif self.tx < 0:
            text += f", {-self.tx} byte(s) more completed than expected"
        if self.init_by:
            text += f"; initialised by {self.init_by}"
        if not any(self.arrivals):
            return f"{text}; nobody has arrived yet"
        count = Counter(str(a) for a in self.arrivals if a)
        last = (f"{who}{f' ({n} times)' if n > 1 else ''}" for who, n in count.items())
        return f"{text}; last signals: {', '.join(last)}"


class AnyOf(Waitable):
    """Wakes its waiter when the first of several waitables does: for lanes that wait on different
    barriers.
    """

    __slots__ = ("parts",)

    def __init__(self, parts: Sequence[Waitable]):
        super().__init__()
        self.parts = list(parts)
        for part in self.parts:
            part.waiters.append(self)

    def wake(self) -> None:
        for part in self.parts:
            if self in part.waiters:
                part.waiters.remove(self)
        self.notify()

    def describe(self) -> str:
        return "any of: " + "; ".join(part.describe() for part in self.parts)


def mbarrier_at(cta: CTA, offset: int) -> MBarrier:
    """The mbarrier at an offset of a CTA's shared memory. Raises Fault if there is none."""
    found = cta.mbarriers.get(offset)
    if found is None:
        cta.check(offset, 8, 8)
        have = ", ".join(f"{at:#x}" for at in sorted(cta.mbarriers)[:24]) or "none"
        raise Fault(
            f"no mbarrier is initialised at shared-memory offset {offset:#x} of "
            f"CTA rank {cta.rank}; initialised: {have}"
        )
    return found
