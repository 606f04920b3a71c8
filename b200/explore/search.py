"""Searches all orders of the steps at unsettled places; orders that differ in nothing count once.

A state is the set of steps taken and the states of the unsettled places. Steps at settled places,
and ends of waits that nothing can take back, commute with all others: where one of them can be
taken it is taken, and nothing else is tried there. Elsewhere a stubborn set is tried (Valmari).
With each step that can be taken, such a set has all steps that do not commute with it; with each
step that cannot be taken yet, it has all steps that might enable it. Every deadlock of the whole is
reached through such sets. The search does not enter a state twice. Every step is taken once, so
paths end, and a state is as many steps from the start on every path: the deadlock with the fewest
steps is that of the shortest order.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Any, TypeAlias

from b200.explore import kinds
from b200.explore.courses import by_place
from b200.explore.places import RULES, Broken
from b200.explore.settle import Settled
from b200.explore.states import bound_of
from b200.explore.trace import Step, Trace, bits_of

LIMIT = 200_000  # states of a cluster
# The steps that have been taken, as bits, and the state of each place that is not settled: Any, for
# it is known to the rules of the place alone (places.py).
SearchState: TypeAlias = tuple[int, tuple[Any, ...]]
Parents: TypeAlias = dict[SearchState, tuple[SearchState, tuple[int, ...]] | None]
# How many steps a bad order takes, its end, and what is blocked there, with the error if any.
Best: TypeAlias = tuple[int, SearchState, list[tuple[int, str | None]]]


@dataclass
class Stuck:
    """An order that ends badly. order: the steps taken. blocked: the steps that wait for ever, each
    with the reason; if `broken`, the step that is an error there.
    """

    order: list[Step]
    blocked: list[tuple[Step, str]]
    broken: bool = False


@dataclass
class Searched:
    """The result of a search. states: number of states seen. stuck: the shortest bad order, None if
    there is none. bound: what has ended the search before its end, "" if all orders were tried.
    """

    states: int
    stuck: Stuck | None
    bound: str


class Search:
    """The search through the orders of one trace."""

    def __init__(self, trace: Trace, settled: Settled, limit: int = LIMIT, until: float = inf):
        self.steps, self.limit, self.until = trace.steps, limit, until
        self.needs = {wait: bits_of(numbers) for wait, numbers in settled.needs.items()}
        self.behind: list[list[int]] = [[] for _ in self.steps]
        self.direct = [bits_of(step.before) for step in self.steps]
        for step in self.steps:
            for number in set(step.before):
                self.behind[number].append(step.number)
        at = by_place(trace)
        self.places = [place for place in at if place in settled.open_places]
        self.rules = [RULES[place.kind](trace) for place in self.places]
        self.members = [bits_of(s.number for s in at[place]) for place in self.places]
        # for each step the unsettled places it acts on, by number; none: it commutes with all
        self.acts: list[list[int]] = [[] for _ in self.steps]
        # bits of the steps that change no place
        self.looks = bits_of(s.number for s in self.steps if s.kind in (kinds.WAIT, kinds.PASS))
        for i, place in enumerate(self.places):
            for step in at[place]:
                self.acts[step.number].append(i)
        self.free = {  # steps that nothing takes back once they can be taken
            step.number
            for step in self.steps
            if not self.acts[step.number] or step.kind == kinds.PASS
        }

    def run(self) -> Searched:
        """Try all orders, or as many as limit and time (time.monotonic()) allow."""
        start: SearchState = (0, tuple(rules.start for rules in self.rules))
        ready = [s.number for s in self.steps if not s.before]
        parents: Parents = {start: None}
        work: list[tuple[SearchState, tuple[int, ...]]] = [(start, tuple(ready))]
        count = 1
        best: Best | None = None
        while work:
            if bound := bound_of(count, self.limit, self.until):
                return Searched(count, self._told(best, parents), bound)
            state, ready = work.pop()
            before, (state, ready, taken) = state, self._forced(state, ready)
            count += len(taken)
            if taken:
                if state in parents:
                    continue
                parents[state] = before, taken
            depth = state[0].bit_count()
            if best is not None and depth >= best[0]:
                continue
            can = [n for n in ready if self._can(state, n)]
            if not can:
                if ready:
                    best = depth, state, [(n, None) for n in ready]
                continue
            for number in self._stubborn(state, ready, can):
                try:
                    new = self._take(state, number)
                except Broken as broken:
                    best = depth, state, [(number, str(broken))]
                    break
                if new not in parents:
                    parents[new] = state, (number,)
                    count += 1
                    work.append((new, self._ready(new[0], ready, number)))
        return Searched(count, self._told(best, parents), "")

    # --- one step ---------------------------------------------------------------------------------
    def _can(self, state: SearchState, number: int) -> bool:
        """Whether a step whose turn it is can be taken."""
        taken, held = state
        step = self.steps[number]
        if number in self.needs:
            return not self.needs[number] & ~taken
        if step.kind not in kinds.WAITS or not self.acts[number]:
            return True
        place = self.acts[number][0]
        return self.rules[place].open(held[place], step)

    def _take(self, state: SearchState, number: int) -> SearchState:
        taken, held = state
        step = self.steps[number]
        if self.acts[number] and not self.looks >> number & 1:
            changed = list(held)
            for place in self.acts[number]:
                changed[place] = self.rules[place].after(held[place], step)
            held = tuple(changed)
        return taken | 1 << number, held

    def _ready(self, taken: int, ready: tuple[int, ...], number: int) -> tuple[int, ...]:
        """The steps whose turn it is after step `number` has been taken."""
        more = [n for n in self.behind[number] if not self.direct[n] & ~taken]
        return (*(n for n in ready if n != number), *more)

    def _forced(
        self, state: SearchState, ready: tuple[int, ...]
    ) -> tuple[SearchState, tuple[int, ...], tuple[int, ...]]:
        """Take steps that commute with all others, as long as there are any."""
        done: list[int] = []
        moved = True
        while moved:
            moved = False
            for number in ready:
                if number in self.free and self._can(state, number):
                    state = self._take(state, number)
                    ready = self._ready(state[0], ready, number)
                    done.append(number)
                    moved = True
        return state, ready, tuple(done)

    # --- which steps to try -----------------------------------------------------------------------
    def _stubborn(self, state: SearchState, ready: tuple[int, ...], can: list[int]) -> list[int]:
        """The steps to try in a state: those of the smallest stubborn set that can be taken."""
        best: list[int] = can
        for seed in can:
            found = self._closure(state, set(ready), seed)
            tried = [n for n in can if found >> n & 1]
            if len(tried) < len(best):
                best = tried
            if len(best) == 1:
                break
        return best

    def _closure(self, state: SearchState, ready: set[int], seed: int) -> int:
        left = ~state[0]
        found, work = 1 << seed, [seed]
        while work:
            number = work.pop()
            if number not in ready:  # one step that it must come after has to be taken first
                missing = self.direct[number] & left
                add = 0 if missing & found else missing & -missing
            elif self._can(state, number):  # all that do not commute with it
                add = self._conflicts(number)
            elif number in self.needs:  # all that it waits for
                missing = self.needs[number] & left
                add = 0 if missing & found else missing & -missing
            else:  # all that might let it pass
                add = self.members[self.acts[number][0]] & ~self.looks
            add &= left & ~found
            found |= add
            work += _numbers(add)
        return found

    def _conflicts(self, number: int) -> int:
        """Steps that do not commute with a step, as bits: at its places; for a look, changes."""
        found = 0
        for place in self.acts[number]:
            found |= self.members[place]
        return found & ~self.looks if self.looks >> number & 1 else found

    # --- what is told -----------------------------------------------------------------------------
    def _told(self, best: Best | None, parents: Parents) -> Stuck | None:
        if best is None:
            return None
        _, state, blocked = best
        numbers: list[int] = []
        at = state
        while (parent := parents[at]) is not None:
            at, taken = parent
            numbers[:0] = taken
        held = state[1]
        reasons: list[tuple[Step, str]] = []
        for number, text in blocked:
            step = self.steps[number]
            if text is None:
                place = self.acts[number][0] if self.acts[number] else None
                text = "" if place is None else self.rules[place].text(held[place], step)
            reasons.append((step, text))
        broken = any(text is not None for _, text in blocked)
        return Stuck([self.steps[n] for n in numbers], reasons, broken)


def _numbers(bits: int) -> list[int]:
    found: list[int] = []
    while bits:
        low = bits & -bits
        found.append(low.bit_length() - 1)
        bits ^= low
    return found
