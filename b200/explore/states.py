"""The states of a launch and the steps between them, as a graph."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import NamedTuple

from b200.chip.state import Cluster
from b200.explore.touches import Touch
from b200.program.module import Instr


class Taken(NamedTuple):
    """A step. who: cluster, CTA (its number in the grid), warp, lanes. name: of an asynchronous
    operation, else "". ins: the instruction that it begins with. quiet: nobody else can tell it.
    near: no other cluster can. touched: what it accesses.
    """

    cluster: Cluster
    cta: tuple[int, int, int]
    warp: int
    lanes: int
    name: str
    ins: Instr
    quiet: bool
    near: bool
    touched: tuple[Touch, ...] = ()

    @property
    def own(self) -> Sequence[Touch]:
        """What the instruction that it begins with accesses, or the operation."""
        if self.name:
            return self.touched
        return [touch for touch in self.touched if touch.ins.key == self.ins.key]

    @property
    def behind(self) -> Sequence[Touch]:
        """What is accessed behind it, by weak accesses up to the first strong one: a strong load
        may find another value where these come later.
        """
        rest = () if self.name else (t for t in self.touched if t.ins.key != self.ins.key)
        return tuple(takewhile(lambda touch: not touch.strong, rest))


class Standing(NamedTuple):
    """A fragment that waits for ever. what: for what, in words."""

    at: Taken
    what: str


@dataclass(eq=False)
class State:
    """steps: those that lead on, each with the state after it. polls: those that change nothing."""

    steps: list[tuple[Taken, State]] = field(default_factory=lambda: [])
    polls: list[Taken] = field(default_factory=list[Taken])
    ended: bool = False
    fault: str = ""
    standing: list[Standing] = field(default_factory=list[Standing])


Ways = dict[State, tuple[State, Taken] | None]


def shortest(first: State, goes: Callable[[Taken], bool] = lambda taken: True) -> Ways:
    """Each state that some steps reach, nearest first, with the last step of a shortest way."""
    found: Ways = {first: None}
    work = deque([first])
    while work:
        state = work.popleft()
        for taken, after in state.steps:
            if after not in found and goes(taken):
                found[after] = state, taken
                work.append(after)
    return found


def way(came: Ways, last: State) -> list[Taken]:
    """The steps to a state."""
    order: list[Taken] = []
    state = last
    while (before := came[state]) is not None:
        state, taken = before
        order.append(taken)
    return order[::-1]


def bound_of(count: int, limit: int, until: float) -> str:
    """What ends a walk through states before its end: their number, or the time (as of
    time.monotonic()) that a launch may take; "" for neither.
    """
    if count >= limit:
        return f"stopped at the bound of {limit:,} states"
    return "stopped by the budget of seconds" if time.monotonic() > until else ""
