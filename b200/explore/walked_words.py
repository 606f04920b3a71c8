"""Words for an order that was carried out and ends badly (walk.py)."""

from __future__ import annotations

from itertools import groupby, takewhile

from b200.checker.finding import Finding
from b200.checker.words import line
from b200.chip.describe import mnemonic
from b200.effects import Stores
from b200.explore.races import Race
from b200.explore.states import Taken
from b200.explore.touches import Touch
from b200.explore.walk import Walked
from b200.registry import lanes_text

TOLD = 16  # turns of an order that are told
FULL = (1 << 32) - 1


def late(walked: Walked) -> str:
    """An order that ends badly, in which a strong store comes late."""
    assert walked.bad is not None
    store = _latest(walked.bad)
    how = walked.fault or "a warp waits for ever"
    return (
        f"where {mnemonic(store.ins)} at {line(store.ins)} is seen later than what its thread does "
        f"behind it (PTX ISA 8.10), {how}"
    )


def _latest(order: list[Taken]) -> Taken:
    """The strong store that most steps of its warp come before, though they stand behind it."""

    def overtaken(number: int) -> int:
        store = order[number]
        key, who = store.ins.key, (store.cta, store.warp)
        rest = takewhile(lambda t: all(one.ins.key != key for one in t.touched), order[number:])
        return sum(not t.name and (t.cta, t.warp) == who for t in rest)

    began = ((n, t.ins.effect) for n, t in enumerate(order) if not t.name and not t.quiet)
    stores = [number for number, e in began if isinstance(e, Stores) and e.strong]
    return order[max(stores, key=overtaken)]


def racing(race: Race) -> Finding:
    """The finding of an order that has a race."""
    mine, its = race.touches
    where = "shared" if its.cta is not None else "global"
    diagnosis = (
        f"another order of the warps has a race: {_access(race.earlier, mine)}, and "
        f"{_access(race.later, its)}, the same {where} memory with nothing to order the two"
    )
    kind = "race" if its.cta is not None else "global"
    return Finding(kind, diagnosis, tuple(_told(race.order)), line(its.ins), line(mine.ins))


def _access(taken: Taken, touch: Touch) -> str:
    does = "reads" if touch.now is None else "updates" if touch.read else "writes"
    return f"{_who(taken)} {does} by {mnemonic(touch.ins)} at {line(touch.ins)}"


def listed(steps: int, which: str, left_out: str, turns: list[str], ones: str) -> list[str]:
    """An order in words: how many steps it takes, and its latest turns (`ones`), numbered."""
    earlier = len(turns) - TOLD
    return [
        f"{which} takes {steps} steps{left_out}:",
        *([f"  ... {earlier} earlier {ones}"] if earlier > 0 else []),
        *(f"  {n}. {turn}" for n, turn in enumerate(turns, 1) if n > earlier),
    ]


def _told(order: list[Taken]) -> list[str]:
    telling = [taken for taken in order if not taken.quiet]
    turns: list[str] = []
    for who, some in groupby(telling, _who):  # as long as the same one goes on
        what = ", ".join(f"{mnemonic(taken.ins)} at {line(taken.ins)}" for taken in some)
        turns.append(f"{who} executes {what}")
    n = len(order) - len(telling)
    left_out = f" ({n} that nobody else can tell are left out)" if n else ""
    return listed(len(order), "the shortest order found", left_out, turns, "turns")


def finding(walked: Walked) -> Finding:
    """The finding of a bad order."""
    assert walked.bad is not None
    details = _told(walked.bad)
    if walked.fault:
        last = walked.bad[-1]
        diagnosis = f"another order of the warps breaks a rule: {_who(last)}: {walked.fault}"
        return Finding("protocol", diagnosis, tuple(details), line(last.ins))
    if not walked.standing:
        diagnosis = "another order of the warps hangs: no order leads from there to the end"
        return Finding("deadlock", diagnosis, tuple(details), line(walked.bad[-1].ins))
    first = walked.standing[0]
    what = f"waits for ever at {line(first.at.ins)}"
    details += [
        f"then for ever: {_who(one.at)} at {line(one.at.ins)} waits for {one.what}"
        for one in walked.standing
    ]
    diagnosis = f"another order of the warps hangs: {_who(first.at)} {what}"
    return Finding("deadlock", diagnosis, tuple(details), line(first.at.ins))


def _who(taken: Taken) -> str:
    name = f"warp {taken.warp} of CTA {taken.cta}"
    if taken.lanes != FULL:
        name = f"{lanes_text(taken.lanes)} of {name}"
    return f"the {taken.name} of {name}" if taken.name else name
