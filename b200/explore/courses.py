"""The uses of each place in a run: the phases of mbarriers, what meets at barriers, allocations.

A *course* is the uses of one place, in order, with the steps that complete each and the waits for
it. settle.py asks which courses are the same in every order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import NamedTuple

from b200.explore import kinds
from b200.explore.trace import EVERY, Place, Step, Trace


class Why(NamedTuple):
    """The reason why a place is not settled, in words, and the steps that the reason is about."""

    text: str
    step: Step | None = None
    other: Step | None = None


class Use(NamedTuple):
    """One use of a place, as it was in the run. signals: the steps that complete it. complete:
    whether they did. waits: the waits for it. An initialisation of an mbarrier is a use, too: its
    waits are those that pass before phase 0 is over.
    """

    signals: list[Step]
    complete: bool
    waits: list[Step]

    @property
    def resets(self) -> bool:
        return bool(self.signals) and self.signals[0].kind in (kinds.INIT, kinds.INVAL)


class Course(NamedTuple):
    """The uses of a place in the run, in order. odd: a reason not to settle it that shows in the
    run itself, because no rule here covers it.
    """

    uses: list[Use]
    odd: Why | None = None


def by_place(trace: Trace) -> dict[Place, list[Step]]:
    """The steps at each place. A warp's exit is one of every barrier that waits for all threads."""
    found: dict[Place, list[Step]] = defaultdict(list)
    for step in trace.steps:
        if step.place.number != EVERY:
            found[step.place].append(step)
    exits = [s for s in trace.steps if s.place.number == EVERY]
    for place, steps in found.items():
        if place.kind == "barrier" and any(s.kind == kinds.MEET and not s.threads for s in steps):
            steps += [s for s in exits if s.place.rank == place.rank]
            steps.sort(key=lambda s: s.number)
    return dict(found)


def _mbarrier(trace: Trace, steps: list[Step]) -> Course:
    """The uses of an mbarrier: its initialisations and phases, in order."""
    uses: list[Use] = []
    odd, expected, pending, tx = None, 0, 0, 0
    seen: dict[int, Use] = {}  # look -> the use that it has found over
    for step in steps:
        if step.kind in (kinds.INIT, kinds.INVAL):
            if uses and not uses[-1].complete and uses.pop().signals:
                odd = Why("it is initialised or made invalid in mid-phase", step)
            uses.append(Use([step], True, []))
            if step.kind == kinds.INIT:
                uses.append(Use([], False, []))
            expected = pending = step.count
            tx = 0
            continue
        if not uses or uses[-1].complete:
            return Course([], Why("it is used without an initialisation in the run", step))
        if step.kind == kinds.LOOK:
            reset = max(i for i, use in enumerate(uses) if use.resets)
            phase = sum(not use.resets for use in uses[reset:]) - 1
            if phase % 2 != step.parity:
                seen[step.number] = uses[-2]
            continue
        if step.kind == kinds.WAIT:
            over = [seen[look] for look in step.of if look in seen]
            (over[0] if over else uses[-2]).waits.append(step)  # else the latest that is over
            continue
        uses[-1].signals.append(step)
        for i in range(step.times):
            arrivals = step.count if step.kind == kinds.ARRIVE else 0
            pending += (step.kind == kinds.EXPECT_ARRIVAL) - arrivals
            expected -= arrivals if step.drop else 0
            tx += -step.tx if step.kind == kinds.COMPLETE else step.tx
            if pending == 0 and tx == 0:
                uses[-1] = uses[-1]._replace(complete=True)
                uses.append(Use([], False, []))
                pending = expected
                if i + 1 < step.times:
                    odd = Why("lanes of one instruction arrive in two phases", step)
                    uses[-1].signals.append(step)
    return Course(uses, odd)


def _passed(uses: list[Use], use_of: dict[int, int], step: Step) -> Why | None:
    """Note a wait at the use whose arrivals it ends; a reason if that is not exactly one."""
    of = {use_of[number] for number in step.of}
    if len(of) != 1:
        return Why("its wait ends several arrivals", step)
    uses[of.pop()].waits.append(step)
    return None


def _missed(use: Use, step: Step) -> Why | None:
    """A reason if a warp exits that has arrived at this use while others are to come; else None."""
    if any(s.actor == step.actor and s.kind == kinds.MEET for s in use.signals):
        return Why("a warp exits while others are to meet it", step)
    return None


def _barrier(trace: Trace, steps: list[Step]) -> Course:
    """The uses of a barrier of the CTA. Exits may complete one, if it waits for all threads."""
    odd = None
    if len({s.threads == 0 for s in steps if s.kind == kinds.MEET}) > 1:
        odd = Why("it is used for all threads and for some", steps[0])

    def is_complete(arrived: int, told: int, exited: int) -> bool:
        return arrived == (told or max(32 * (trace.warps - exited), 1))

    return _meetings(steps, is_complete, odd)


def _cluster(trace: Trace, steps: list[Step]) -> Course:
    if not any(step.kind == kinds.MEET for step in steps):
        return Course([])

    def is_complete(arrived: int, _told: int, exited: int) -> bool:
        return 0 < trace.threads * trace.ctas - exited <= arrived

    return _meetings(steps, is_complete)


def _meetings(
    steps: list[Step], is_complete: Callable[[int, int, int], bool], odd: Why | None = None
) -> Course:
    """The uses of what threads meet at. is_complete: of the threads that have arrived, the number
    that the last of them was told, and what has exited, as the steps count it.
    """
    uses, arrived, told, exited = [Use([], False, [])], 0, 0, 0
    use_of: dict[int, int] = {}
    for step in steps:
        if step.kind == kinds.PASS:
            odd = _passed(uses, use_of, step) or odd
            continue
        if step.kind == kinds.EXIT:
            exited += step.count
            odd = _missed(uses[-1], step) or odd
        else:
            told, arrived = step.threads, arrived + step.count
            use_of[step.number] = len(uses) - 1
        uses[-1].signals.append(step)
        if arrived and is_complete(arrived, told, exited):
            uses[-1] = uses[-1]._replace(complete=True)
            uses.append(Use([], False, []))
            arrived = 0
    return Course(uses, odd)


def _tensor_memory(trace: Trace, steps: list[Step]) -> Course:
    """The uses of tensor memory: a pair's allocations by its even CTA; the odd one waits."""
    uses = [Use([s], True, []) for s in steps if s.kind == kinds.ALLOC_PAIR]
    for use, step in zip(uses, (s for s in steps if s.kind == kinds.JOIN_PAIR), strict=False):
        use.waits.append(step)
    return Course(uses)


def _registers(trace: Trace, steps: list[Step]) -> Course:
    return Course([])


COURSES = {
    "mbarrier": _mbarrier,
    "barrier": _barrier,
    "cluster": _cluster,
    "tmem": _tensor_memory,
    "registers": _registers,
}
