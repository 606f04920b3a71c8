"""Races in the orders that a walk has carried out.

Of two accesses by different warps, or by a warp and an operation under way, one is weak and it
matters which comes first. If nothing lies between them in some order, then nothing has ordered
them there: a data race (PTX ISA 8.7.1). What a warp has accessed since its latest step may come as
late as its next one, for until then it has told nobody. So each state has what each warp has
accessed in its latest step, on any way there, and each step from there is held against that. A
quiet step tells nobody either, so it does not end what is latest.

A walk tries steps that only their cluster can tell before others (Steps.can). To other clusters
they tell nothing: for those, all that the warps of a cluster have accessed since its latest step
that others can tell is latest.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeAlias

from b200.chip.state import Cluster
from b200.explore.states import State, Taken, shortest, way
from b200.explore.touches import Touch

Actor: TypeAlias = tuple[tuple[int, int, int], int]  # the index of a CTA, and a warp
What: TypeAlias = tuple[Actor | None, int, tuple[Touch, ...]]  # see _what


class Race(NamedTuple):
    """An order up to a race's later access; its two steps, and what they access."""

    order: list[Taken]
    earlier: Taken
    later: Taken
    touches: tuple[Touch, Touch]


def race(first: State) -> Race | None:
    """A race of some order from a state on, with a short way there; None if there is none."""
    states = list(shortest(first))
    edges = [edge for state in states for edge in _edges(state)]
    pairs = _Pairs([taken for _, taken, _ in edges])
    if not pairs.conflicts:
        return None
    open_steps = _latest(first, pairs)
    for state, taken, _ in edges:
        if found := pairs.conflicts.get(_what(taken), 0) & open_steps[state].to(taken, pairs):
            what = pairs.what[(found & -found).bit_length() - 1]
            return _told(first, edges, state, taken, what)
    return None


Edge: TypeAlias = tuple[State, Taken, State]


def _edges(state: State) -> Iterator[Edge]:
    """The steps from a state. A poll that changes nothing accesses memory, too."""
    yield from ((state, taken, after) for taken, after in state.steps)
    yield from ((state, taken, state) for taken in state.polls)


def _actor(taken: Taken) -> Actor | None:
    """Who takes a step; None: an operation under way, which is nobody's latest step."""
    return None if taken.name else (taken.cta, taken.warp)


def _what(taken: Taken) -> What:
    """What a step is to others."""
    return _actor(taken), len(taken.own), taken.touched


class _Pairs:
    """Which steps disagree, by what they are. number: a bit of each that disagrees with another;
    what: its inverse. conflicts: of a later step, the bits of the earlier ones. of: of an actor, or
    of a cluster, the bits of its steps.
    """

    def __init__(self, steps: list[Taken]):
        kinds = {_what(taken): taken for taken in steps if taken.touched}
        self.number: dict[What, int] = {}
        self.what: list[What] = []
        self.conflicts: dict[What, int] = {}
        self.of: dict[Actor | Cluster | None, int] = {}
        for what, earlier in kinds.items():
            if earlier.name:
                continue
            later = [other for other in kinds if other[0] != what[0]]
            later = [other for other in later if next(_disagree(earlier, kinds[other]), None)]
            if later:
                bit = 1 << len(self.what)
                self.number[what] = bit
                self.what.append(what)
                for who in (what[0], earlier.cluster):
                    self.of[who] = self.of.get(who, 0) | bit
                for other in later:
                    self.conflicts[other] = self.conflicts.get(other, 0) | bit


class _Latest(NamedTuple):
    """The latest steps at a state, as bits. mine: of each warp. far: of each cluster, those since
    its latest step that others can tell.
    """

    mine: int = 0
    far: int = 0

    def to(self, later: Taken, pairs: _Pairs) -> int:
        """Those that a later step may conflict with."""
        return self.mine | self.far & ~pairs.of.get(later.cluster, 0)

    def after(self, taken: Taken, pairs: _Pairs) -> _Latest:
        """The latest steps behind a step."""
        actor = _actor(taken)
        if actor is None:
            return self
        mine, far, new = *self, pairs.number.get(_what(taken), 0)
        if not taken.quiet:
            mine &= ~pairs.of.get(actor, 0)
        if not taken.near:
            far &= ~pairs.of.get(taken.cluster, 0)
        return _Latest(mine | new, far | new)

    def __or__(self, other: _Latest) -> _Latest:
        return _Latest(self.mine | other.mine, self.far | other.far)


def _disagree(earlier: Taken, later: Taken) -> Iterator[tuple[Touch, Touch]]:
    """Accesses of two steps that a race has. The first of a step may tell others, or be told by
    them: what lies behind it in the later step is not held against a strong first one.
    """
    for mine in (*earlier.own, *earlier.behind):
        for its in later.own if mine.strong else (*later.own, *later.behind):
            if mine.disagrees(its):
                yield mine, its


def _latest(first: State, pairs: _Pairs) -> dict[State, _Latest]:
    """For each state, the latest steps of all warps on any way there."""
    found = {first: _Latest()}
    work = deque([first])
    while work:
        state = work.popleft()
        for _, taken, after in _edges(state):
            known = found.get(after)
            new = found[state].after(taken, pairs) | (known or _Latest())
            if new != known:
                found[after] = new
                work.append(after)
    return found


def _told(first: State, edges: list[Edge], last: State, later: Taken, what: What) -> Race:
    """An order with the race: to a step that is `what`, and from there to a later one of `last`
    without another of the same warp that somebody else can tell, or, where that one is of another
    cluster, without one of the same cluster that it can tell.
    """
    came = shortest(first)
    for state, earlier, after in edges:
        if _what(earlier) == what:
            for ways in (shortest(after, tells_nobody) for tells_nobody in _silent(earlier, later)):
                if last in ways:
                    order = [*way(came, state), earlier, *way(ways, last), later]
                    return Race(order, earlier, later, next(_disagree(earlier, later)))
    raise AssertionError("no way leads to a race that was found")


def _silent(earlier: Taken, later: Taken) -> Iterator[Callable[[Taken], bool]]:
    """Which steps between the two tell nobody, or none of the later one's cluster, of the first."""
    yield lambda taken: taken.quiet or _actor(taken) != _actor(earlier)
    if earlier.cluster is not later.cluster:
        yield lambda taken: bool(taken.name) or taken.near or taken.cluster is not earlier.cluster
