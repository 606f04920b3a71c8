"""Finds the barriers that do the same in every order of the steps.

This is a proof from one run. Its time grows with the number of steps, not with that of orders.

`before[i]`: the steps that come before step i in every order. They are those before it in its own
warp and, if step i is a wait at a settled barrier, those that complete the phase it waits for. A
barrier is settled if

  1. each of its arrivals comes, in every order, after all arrivals of the phase before,
  2. each wait comes after the phase before the one it waits for (else a look at the parity would
     take that phase's predecessor for it), and so does a LOOK that leaves the wait out; and some
     arrival of the next phase comes after the wait (else that phase may end first, and the parity
     says that nothing is over),
  3. bytes are announced no later than some arrival of their phase (else it may end without them).

By induction over the steps of any order: an arrival at a settled barrier counts into the same phase
as in the run, and a wait passes once that phase is over, and from then on. So the barrier's steps
are the same in all orders, and so is their order among themselves. Barriers that are not settled,
or that depend on one that is not, are left to the search (search.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from b200.explore import kinds
from b200.explore.courses import COURSES, Course, Use, Why, by_place
from b200.explore.trace import Place, Step, Trace, bits_of
from b200.hardware import TMEM_COLUMNS

ALLOCATIONS = (kinds.ALLOC, kinds.ALLOC_PAIR, kinds.JOIN_PAIR)
MAX_TX = (1 << 20) - 1  # bytes that a phase can have under way


class Settled(NamedTuple):
    """The result of `settle`. open_places: the places that are not settled, each with the reason.
    needs: number of a wait at a settled place -> numbers of the steps that let it pass.
    """

    open_places: dict[Place, Why]
    needs: dict[int, tuple[int, ...]]


def settle(trace: Trace) -> Settled:
    """Find what is settled, from the trace of a run that came to its end."""
    places = by_place(trace)
    courses = {place: COURSES[place.kind](trace, steps) for place, steps in places.items()}
    open_places = {place: c.odd for place, c in courses.items() if c.odd is not None}
    while True:
        needs = _needs(courses, open_places)
        order = StepOrder(trace, needs)
        new: dict[Place, Why] = {}
        for place, course in courses.items():
            if place not in open_places:
                why = order.why_open(place, course, places[place], open_places)
                if why is not None:
                    new[place] = why
        if not new:
            return Settled(open_places, needs)
        open_places |= new


def _needs(
    courses: dict[Place, Course], open_places: Mapping[Place, Why]
) -> dict[int, tuple[int, ...]]:
    needs: dict[int, tuple[int, ...]] = {}
    for place, course in courses.items():
        if place in open_places:
            continue
        for use in course.uses:
            numbers = tuple(step.number for step in use.signals)
            for wait in use.waits:
                needs[wait.number] = numbers
    return needs


class StepOrder:
    """The relations between steps that hold in every order, as bits. before[i]: the steps that come
    before step i. own[i]: the same without the steps that let step i pass if it is a wait.
    """

    def __init__(self, trace: Trace, needs: dict[int, tuple[int, ...]]):
        self.trace = trace
        self.before: list[int] = []
        self.own: list[int] = []
        for step in trace.steps:
            own = self._union(step.before)
            self.own.append(own)
            self.before.append(own | self._union(needs.get(step.number, ())))

    def _union(self, numbers: tuple[int, ...]) -> int:
        found = 0
        for number in numbers:
            found |= self.before[number] | 1 << number
        return found

    def why_open(
        self,
        place: Place,
        course: Course,
        steps: list[Step],
        open_places: Mapping[Place, Why],
    ) -> Why | None:
        """The reason why a place is not settled; None if it is."""
        if place.kind == "tmem":
            return self._tensor_memory(steps)
        if place.kind == "registers":
            return self._registers(steps, open_places)
        why = self._arrivals(course)
        if why is None and place.kind == "mbarrier":
            why = self._parities(course) or self._bytes(course)
        return why

    def _arrivals(self, course: Course) -> Why | None:
        earlier: list[Step] = []
        every: list[Step] = []
        for use in course.uses:
            if use.resets:
                earlier = every
            bits = bits_of(s.number for s in earlier)
            for step in use.signals:
                missing = bits & ~self.before[step.number]
                if missing:
                    other = next(s for s in earlier if missing >> s.number & 1)
                    return Why("an arrival may count into the phase before its own", step, other)
            earlier = use.signals or earlier
            every += use.signals + use.waits
        return None

    def _parities(self, course: Course) -> Why | None:
        uses = course.uses
        for k, use in enumerate(uses):
            behind = use.signals if use.resets else uses[k - 1].signals
            for wait in use.waits:
                first = wait.of[0] if wait.of else wait.number  # of the look before it
                if bits_of(s.number for s in behind) & ~self.own[first]:
                    what = (
                        "a wait may come before the initialisation"
                        if use.resets
                        else "a wait may pass for the phase two before, which has the same parity"
                    )
                    return Why(what, wait, behind[0])
                if (why := self._overtaken(wait, uses, k + 1)) is not None:
                    return why
        return None

    def _overtaken(self, wait: Step, uses: list[Use], following: int) -> Why | None:
        """A reason if the use after the one waited for may be over before the wait looks."""
        if following >= len(uses) or not uses[following].complete:
            return None
        signals = uses[following].signals
        if any(self.before[s.number] >> wait.number & 1 for s in signals):
            return None
        return Why("the phase after the one waited for may be over before", wait, signals[-1])

    def _bytes(self, course: Course) -> Why | None:
        for use in course.uses:
            arrivals = [s for s in use.signals if s.kind == kinds.ARRIVE]
            total = sum(s.tx * s.times for s in use.signals if s.kind != kinds.COMPLETE)
            came = sum(s.tx for s in use.signals if s.kind == kinds.COMPLETE)
            if max(total, came) > MAX_TX:
                return Why("more bytes than a tx-count holds", use.signals[0])
            if not use.complete and came > total:
                return Why("more bytes come than are announced", use.signals[0])
            for step in use.signals:
                late = step.kind in (kinds.EXPECT, kinds.EXPECT_ARRIVAL)
                plain = [a for a in arrivals if a.actor[2] != "CpAsyncArrive"]
                if late and not any(self.before[a.number] >> step.number & 1 for a in plain):
                    return Why("the phase may be over before this is announced", step)
        return None

    def _tensor_memory(self, steps: list[Step]) -> Why | None:
        inside = zip(steps, steps[1:], strict=False)
        if all(self.before[b.number] >> a.number & 1 for a, b in inside):
            return None
        for rank in {step.rank for step in steps}:
            mine = [s for s in steps if s.rank == rank and s.kind in ALLOCATIONS]
            both = [s for s in steps if s.rank == rank - 1 and s.kind == kinds.ALLOC_PAIR]
            here = both + [s for s in mine if s.kind != kinds.JOIN_PAIR]
            if sum(s.count for s in here) > TMEM_COLUMNS:
                return Why("which allocation comes first may decide whether there is room", here[0])
            pairs = list(zip(mine, mine[1:], strict=False))
            ordered = all(self.before[b.number] >> a.number & 1 for a, b in pairs)
            paired = any(s.kind != kinds.ALLOC for s in mine)
            if not ordered and (paired or any(a.count != b.count for a, b in pairs)):
                return Why("allocations of a CTA in any order", *pairs[0])
            for step in steps:
                ends = step.kind == kinds.RELINQUISH and step.rank == rank
                if ends and bits_of(s.number for s in mine) & ~self.before[step.number]:
                    return Why("an allocation may come after relinquish_alloc_permit", step)
        return None

    def _registers(self, steps: list[Step], open_places: Mapping[Place, Why]) -> Why | None:
        """A reason if a warp may wait for ever for registers; else None. It gets them in the end if
        every step that gives registers back comes whatever else waits: after no step that takes
        some, and after no wait that may be for ever.
        """
        takes = bits_of(s.number for s in steps if s.kind == kinds.TAKE)
        waits = (s for s in self.trace.steps if s.kind in kinds.WAITS)
        doubtful = bits_of(s.number for s in waits if s.place in open_places)
        for step in steps:
            if step.kind == kinds.GIVE and self.before[step.number] & (takes | doubtful):
                return Why("registers are given back after a step that may wait for them", step)
        return None
