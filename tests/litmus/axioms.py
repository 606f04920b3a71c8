"""The memory model of PTX, by enumeration (PTX ISA, chapter 8; Lustig et al., ASPLOS 2019).

An execution of a litmus program says for each read which write it reads (rf), in which order the
writes of a location take effect (co), and in which order fence.sc come (sc). All of them are made,
those that break an axiom are dropped, and a program is racy if one that is left has a data race.
This knows nothing of the checker. Numbers in brackets are sections of the ISA.

A poll is the read that ends it: the reads before it find something else and change nothing. What
stands behind a poll comes after it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import permutations, product

from tests.litmus.program import WEAK, Op, Program, Thread

READS, WRITES = ("R", "P", "U", "A"), ("W", "U")
ARRIVES, WAITS = ("BA", "CA", "MA", "SA"), ("BW", "CW", "MW", "SW")


@dataclass(frozen=True, eq=False)
class Event:
    """An operation of a thread. A barrier that arrives and waits is two of them."""

    number: int
    thread: Thread
    op: Op
    kind: str

    @property
    def reads(self) -> bool:
        return self.kind in READS

    @property
    def writes(self) -> bool:
        return self.kind in WRITES

    @property
    def memory(self) -> bool:
        return self.reads or self.writes

    @property
    def strong(self) -> bool:
        return self.op.order != WEAK

    @property
    def proxy(self) -> str:
        return "async" if self.kind == "A" else "generic"

    def releases(self) -> bool:
        return self.op.order in ("release", "acq_rel", "sc") and not self.kind == "R"

    def acquires(self) -> bool:
        return self.op.order in ("acquire", "acq_rel", "sc") and not self.kind == "W"


class Relation:
    """A relation of events, by their numbers: a row of bits for each event."""

    def __init__(self, size: int, pairs=()):
        self.rows = [0] * size
        for one, other in pairs:
            self.add(one, other)

    def add(self, one: Event, other: Event) -> None:
        self.rows[one.number] |= 1 << other.number

    def __contains__(self, pair: tuple[Event, Event]) -> bool:
        return bool(self.rows[pair[0].number] >> pair[1].number & 1)

    def union(self, other: Relation) -> Relation:
        found = Relation(len(self.rows))
        found.rows = [a | b for a, b in zip(self.rows, other.rows)]
        return found

    def closed(self) -> Relation:
        found = Relation(len(self.rows))
        rows = found.rows = self.rows.copy()
        for middle, via in enumerate(rows):
            bit = 1 << middle
            for i, row in enumerate(rows):
                if row & bit:
                    rows[i] = row | via | rows[middle]
        return found

    @property
    def cyclic(self) -> bool:
        return any(row >> i & 1 for i, row in enumerate(self.closed().rows))


class Model:
    """The executions of a program."""

    def __init__(self, program: Program):
        self.program = program
        self.events: list[Event] = []
        for thread in program.threads:
            for op in thread.ops:
                for kind in {"B": ("BA", "BW"), "S": ("SA", "SW")}.get(op.kind, (op.kind,)):
                    self.events.append(Event(len(self.events), thread, op, kind))
        self.size = len(self.events)
        self.reads = [e for e in self.events if e.reads]
        self.writes = [e for e in self.events if e.writes]
        self.po = Relation(
            self.size,
            (
                (a, b)
                for a in self.events
                for b in self.events
                if a.thread is b.thread and a.number < b.number
            ),
        )

    # --- what all executions have in common -------------------------------------------------------
    def includes(self, event: Event, thread: Thread) -> bool:
        """Whether the scope of an event includes a thread [8.5]."""
        mine, scope = event.thread, event.op.scope
        if scope == "cta":
            return mine.cta == thread.cta
        if scope == "cluster":
            size = self.program.cluster
            return mine.cta // size == thread.cta // size
        return True

    def morally_strong(self, a: Event, b: Event) -> bool:
        """[8.7] Locations of a litmus program are the same or do not overlap."""
        if (a, b) in self.po or (b, a) in self.po:
            return a.proxy == b.proxy
        strong = a.strong and b.strong and a.proxy == b.proxy
        return strong and self.includes(a, b.thread) and self.includes(b, a.thread)

    @cached_property
    def release_patterns(self) -> list[tuple[Event, Event]]:
        """(first operation, strong write) [8.8]."""
        found = []
        for write in self.events:
            if not (write.writes or write.kind == "MA") or not write.strong:
                continue
            if write.releases():
                found.append((write, write))
            for first in self.events:
                if (first, write) not in self.po or not first.releases():
                    continue
                same = first.writes and write.writes and first.op.at == write.op.at
                if first.kind == "F" or same:
                    found.append((first, write))
        return found

    @cached_property
    def acquire_patterns(self) -> list[tuple[Event, Event]]:
        """(strong read, last operation) [8.8]."""
        found = []
        for read in self.events:
            if not (read.reads or read.kind == "MW") or not read.strong:
                continue
            if read.acquires():
                found.append((read, read))
            for last in self.events:
                if (read, last) not in self.po or not last.acquires():
                    continue
                same = last.reads and read.reads and last.op.at == read.op.at
                if last.kind == "F" or same:
                    found.append((read, last))
        return found

    @cached_property
    def barriers(self) -> list[tuple[Event, Event]]:
        """Arrivals that synchronise with waits, whatever is read [8.9.2, 9.7.13]."""
        found = []
        for a, b in product(self.events, self.events):
            if (a.kind, b.kind) == ("SA", "SW"):
                same = (a.thread.cta, a.thread.warp, a.op.at) == (
                    b.thread.cta,
                    b.thread.warp,
                    b.op.at,
                )
            elif (a.kind, b.kind) == ("BA", "BW"):
                same = (a.thread.cta, a.op.at) == (b.thread.cta, b.op.at)
            else:
                continue
            if same:
                found.append((a, b))
        return found

    def _cluster(self, a: Event, b: Event) -> bool:
        size = self.program.cluster
        return a.thread.cta // size == b.thread.cta // size

    def over_barriers(self) -> Iterator[tuple[Event, Event]]:
        """(first operation of a release pattern, last of an acquire pattern) whose arrival comes
        before the wait. An arrival at the cluster's barrier is of cluster scope.
        """
        arrivals = [(e, e) for e in self.events if e.kind == "CA" and e.op.order != "relaxed"]
        arrivals += [
            (f, e)
            for e in self.events
            for f in self.events
            if e.kind == "CA" and f.kind == "F" and f.releases() and (f, e) in self.po
        ]
        for first, arrive in arrivals:
            for wait in self.events:
                if wait.kind != "CW" or not self._cluster(arrive, wait):
                    continue
                if first.kind == "CA" or self.includes(first, wait.thread):
                    yield first, wait
        for first, arrive in self.release_patterns:
            for wait, last in self.acquire_patterns:
                if (arrive.kind, wait.kind) != ("MA", "MW") or arrive.op.at != wait.op.at:
                    continue
                if self.morally_strong(arrive, wait) and self.morally_strong(first, last):
                    yield first, last

    # --- executions -------------------------------------------------------------------------------
    def executions(self) -> Iterator[Execution]:
        fences = [e for e in self.events if e.kind == "F" and e.op.order == "sc"]
        at = sorted({e.op.at for e in self.writes})
        orders = [list(permutations([w for w in self.writes if w.op.at == a])) for a in at]
        sources = [
            [None, *(w for w in self.writes if w.op.at == r.op.at and w is not r)]
            for r in self.reads
        ]
        for chosen in product(*sources):
            rf = dict(zip(self.reads, chosen))
            if not self._possible(rf):
                continue
            for co in product(*orders):
                for sc in permutations(fences):
                    execution = Execution(self, rf, dict(zip(at, co)), sc)
                    if execution.consistent():
                        yield execution

    def _possible(self, rf: dict[Event, Event | None]) -> bool:
        """Whether each poll finds what it waits for, and no value comes out of thin air."""
        after = Relation(self.size, ((w, r) for r, w in rf.items() if w is not None))
        for poll in self.events:
            if poll.kind in ("P", *WAITS):
                after.rows[poll.number] |= self.po.rows[poll.number]
        for a in self.events:
            for b in self.events:
                ends = (a.kind, b.kind) in (("MA", "MW"), ("BA", "BW"), ("SA", "SW"), ("CA", "CW"))
                if ends and (a.op.at == b.op.at) and (a.kind != "CA" or self._cluster(a, b)):
                    after.add(a, b)
        if after.cyclic:
            return False

        def value(write: Event | None) -> int:
            if write is None:
                return 0
            return write.op.value if write.kind == "W" else value(rf[write]) + 1

        return all(r.kind != "P" or value(w) == r.op.value for r, w in rf.items())

    def races(self) -> tuple[bool, bool]:
        """(whether an execution has a data race, whether each one has). Raises ValueError for a
        program without an execution that ends.
        """
        found = [execution.racy() for execution in self.executions()]
        if not found:
            raise ValueError("the program cannot end")
        return any(found), all(found)


class Execution:
    """One execution: rf, co and sc as above."""

    def __init__(self, model: Model, rf, co: dict[int, tuple[Event, ...]], sc):
        self.model, self.rf, self.co, self.sc = model, rf, co, sc
        self.place = {w: i for order in co.values() for i, w in enumerate(order)}
        self.observed = self._observation()
        self.base = self._base()

    def _observation(self) -> Relation:
        """Which writes come before which reads, by what is read [8.9.1]."""
        model = self.model
        direct = Relation(
            model.size,
            ((w, r) for r, w in self.rf.items() if w is not None and model.morally_strong(w, r)),
        )
        rows, grown = direct.rows, True
        while grown:
            grown = False
            for z in model.events:
                if z.kind != "U":
                    continue
                for w in model.writes:
                    if rows[w.number] >> z.number & 1 and rows[z.number] & ~rows[w.number]:
                        rows[w.number] |= rows[z.number]
                        grown = True
        return direct

    def _base(self) -> Relation:
        """Base causality order [8.9.4]: program order and synchronisation."""
        model = self.model
        base = model.po.union(Relation(model.size, model.barriers))
        for first, last in model.over_barriers():
            base.add(first, last)
        for first, write in model.release_patterns:
            for read, last in model.acquire_patterns:
                if write.memory and read.memory and (write, read) in self.observed:
                    if model.morally_strong(first, last):
                        base.add(first, last)
        for i, one in enumerate(self.sc):
            for other in self.sc[i + 1 :]:
                if model.morally_strong(one, other):
                    base.add(one, other)
        return base.closed()

    def preserved(self, a: Event, b: Event) -> bool:
        """Proxy-preserved base causality order [8.9.4]."""
        if (a, b) not in self.base:
            return False
        if a.proxy == b.proxy:
            return True
        return any(
            f.kind == "FP" and (a, f) in self.base and (f, b) in self.base
            for f in self.model.events
        )

    def before(self, a: Event, b: Event) -> bool:
        """Causality order [8.9.4]."""
        if self.preserved(a, b):
            return True
        return any(
            (a, z) in self.observed and (z is b or self.preserved(z, b)) for z in self.model.reads
        )

    def consistent(self) -> bool:
        """The axioms [8.10]."""
        if any(row >> i & 1 for i, row in enumerate(self.base.rows)):
            return False  # Fence-SC
        for order in self.co.values():
            for i, w in enumerate(order):
                if any(self.before(later, w) for later in order[i + 1 :]):
                    return False  # Coherence
        for r, w in self.rf.items():
            if w is not None and self.before(r, w):
                return False  # Causality: it reads what comes after it
            for other in self.co.get(r.op.at, ()):
                if other is w or other is r or not self.before(other, r):
                    continue
                if w is None or self.place[w] < self.place[other]:
                    return False  # Causality: it reads what has been overwritten
            if r.kind == "U" and not self._atomic(r, w):
                return False
        return not self._per_location().cyclic

    def _atomic(self, update: Event, source: Event | None) -> bool:
        """Atomicity: no morally strong write between what an atomic reads and what it writes."""
        low = self.place[source] if source is not None else -1
        high = self.place[update]
        between = self.co[update.op.at][low + 1 : high]
        return high > low and not any(self.model.morally_strong(update, w) for w in between)

    def _per_location(self) -> Relation:
        """Sequential consistency of each location, among what is morally strong."""
        model = self.model
        found = Relation(model.size)

        def relate(a: Event, b: Event):
            if model.morally_strong(a, b):
                found.add(a, b)

        for r, w in self.rf.items():
            if w is not None:
                relate(w, r)
            for other in self.co.get(r.op.at, ()):
                if other is not r and (w is None or self.place[other] > self.place[w]):
                    relate(r, other)
        for order in self.co.values():
            for i, w in enumerate(order):
                for later in order[i + 1 :]:
                    relate(w, later)
        for a in model.events:
            for b in model.events:
                if a.memory and b.memory and a.op.at == b.op.at and (a, b) in model.po:
                    found.add(a, b)
        return found

    def racy(self) -> bool:
        """Whether two conflicting operations are neither ordered nor morally strong [8.7.1]."""
        model = self.model
        memory = [e for e in model.events if e.memory]
        for i, a in enumerate(memory):
            for b in memory[i + 1 :]:
                if a.op.at != b.op.at or not (a.writes or b.writes):
                    continue
                if model.morally_strong(a, b) or self.before(a, b) or self.before(b, a):
                    continue
                return True
        return False
