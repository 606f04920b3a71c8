"""Draws litmus programs: the classic shapes, with strengths, scopes, fences and places at random.

MP, SB, LB, WRC, ISA2, IRIW, R, S, 2+2W and coherence, by flags; hand-over through barriers,
mbarriers and the barrier of a cluster; lanes of one warp. A draw is a function of its number.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from tests.litmus.program import Op, Program, Thread

SCOPES = ("gpu",) * 6 + ("cluster",) * 2 + ("cta",) * 2 + ("sys",)
X, Y, FLAG, SECOND = range(4)


class Draw:
    """Random choices for one program."""

    def __init__(self, number: int, kind: str):
        self.random = random.Random(f"{kind} {number}")
        self.pick = self.random.choice

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def scope(self) -> str:
        return self.pick(SCOPES)

    def ordered(self, kind: str, at: int, value: int, order: str) -> Op:
        """A strong operation of some scope; a volatile one has that of the system [8.4.1]."""
        return Op(kind, at, value, order, "sys" if order == "volatile" else self.scope())

    # --- parts of a thread ------------------------------------------------------------------------
    def writes(self, at: int, value: int = 1) -> list[Op]:
        """Data is written."""
        kind = self.random.random()
        if kind < 0.7:
            return [Op("W", at, value)]
        if kind < 0.9:
            return [self.ordered("W", at, value, self.pick(("relaxed", "relaxed", "volatile")))]
        return [Op("U", at, 0, "relaxed", self.scope())]

    def reads(self, at: int) -> list[Op]:
        kind = self.random.random()
        if kind < 0.75:
            return [Op("R", at)]
        if kind < 0.9:
            return [self.ordered("R", at, 0, self.pick(("relaxed", "volatile", "acquire")))]
        return [Op("W", at, 9)]

    def fence(self) -> list[Op]:
        return [Op("F", 0, 0, self.pick(("acq_rel", "acq_rel", "sc")), self.scope())]

    def signals(self, at: int, value: int = 1, counts: bool = False) -> list[Op]:
        """A flag is set, or a counter raised by 1."""
        kind = "U" if counts else "W"

        def strong(order: str, value=value) -> Op:
            return self.ordered(kind, at, 0 if counts else value, order)

        how = self.random.random()
        if how < 0.35:
            return [strong("release")]
        if how < 0.6:
            return [*self.fence(), strong("relaxed")]
        if how < 0.7 and counts:
            return [strong("acq_rel")]
        if how < 0.75 and not counts:
            return [strong("release", 5), strong("relaxed")]
        if how < 0.8 and not counts:
            return [*self.fence(), strong("volatile")]
        if how < 0.85 and not counts:
            return [strong("volatile")]
        return [strong("relaxed")]

    def polls(self, at: int, value: int = 1) -> list[Op]:
        def poll(order: str) -> Op:
            return self.ordered("P", at, value, order)

        how = self.random.random()
        if how < 0.4:
            return [poll("acquire")]
        if how < 0.65:
            return [poll("relaxed"), *self.fence()]
        if how < 0.72:
            return [poll("relaxed"), Op("R", at, 0, "acquire", self.scope())]
        if how < 0.78:
            return [poll("volatile"), *self.fence()]
        if how < 0.83:
            return [poll("volatile")]
        return [poll("relaxed")]

    def strong(self, kind: str, at: int, value: int = 0) -> list[Op]:
        if self.chance(0.2):
            return [Op(kind, at, value)]
        order = "relaxed" if self.chance(0.6) else {"R": "acquire", "W": "release"}[kind]
        return [Op(kind, at, value, order, self.scope())]

    # --- places -----------------------------------------------------------------------------------
    def program(self, name: str, threads: Sequence[list[Op]], near: float = 0.2) -> Program:
        """Puts threads into CTAs, and locations into a space. near: the share of programs of one
        CTA.
        """
        how = self.random.random()
        shared = self.chance(0.25)
        if how < near:
            places, cluster = [(0, i) for i in range(len(threads))], 1
        elif how < near + 0.25 or shared:
            places, cluster = [(self.pick((0, 1)), i) for i in range(len(threads))], 2
        else:
            places, cluster = [(i, i % 2) for i in range(len(threads))], self.pick((1, 1, 2))
        self.random.shuffle(places)
        if shared and any(op.kind == "A" for ops in threads for op in ops):
            shared = False
        made = (Thread(cta, warp, tuple(ops)) for (cta, warp), ops in zip(places, threads))
        return Program(tuple(made), cluster, "shared" if shared else "global", name=name)


# --- flags ----------------------------------------------------------------------------------------


def mp(d: Draw) -> Program:
    return d.program("MP", [d.writes(X, 7) + d.signals(FLAG), d.polls(FLAG) + d.reads(X)])


def mp_war(d: Draw) -> Program:
    return d.program("MP, read first", [d.reads(X) + d.signals(FLAG), d.polls(FLAG) + d.writes(X)])


def mp_without_poll(d: Draw) -> Program:
    look = d.strong("R", FLAG)
    return d.program("MP, asked once", [d.writes(X, 7) + d.signals(FLAG), look + d.reads(X)])


def counted(d: Draw) -> Program:
    """Several agents count; the last reads what all have written, or adds have gathered."""
    both = d.chance(0.5)
    one = d.writes(X, 7) if not both else [Op("U", X, 0, "relaxed", d.scope())]
    other = d.writes(Y, 8) if not both else [Op("U", X, 0, "relaxed", d.scope())]
    return d.program(
        "counter",
        [
            one + d.signals(FLAG, counts=True),
            other + d.signals(FLAG, counts=True),
            d.polls(FLAG, 2) + d.reads(X) + (d.reads(Y) if not both else []),
        ],
    )


def wrc(d: Draw) -> Program:
    if d.chance(0.5):
        first, second = [Op("W", X, 7, "relaxed", d.scope())], [Op("P", X, 7, "relaxed", d.scope())]
    else:
        first, second = d.writes(X, 7) + d.signals(FLAG), d.polls(FLAG)
    return d.program(
        "WRC", [first, second + d.signals(SECOND), d.polls(SECOND) + d.reads(X)], near=0.1
    )


def isa2(d: Draw) -> Program:
    middle = d.polls(FLAG) + d.signals(SECOND)
    if d.chance(0.3):
        middle = [Op("P", FLAG, 1, "relaxed", d.scope()), *d.fence()]
        middle += [Op("W", SECOND, 1, "relaxed", d.scope())]
    return d.program(
        "ISA2",
        [d.writes(X, 7) + d.signals(FLAG), middle, d.polls(SECOND) + d.reads(X)],
        near=0.1,
    )


def sb(d: Draw) -> Program:
    def side(mine: int, other: int) -> list[Op]:
        fence = d.fence() if d.chance(0.6) else []
        return d.strong("W", mine, 1) + fence + d.strong("R", other)

    return d.program("SB", [side(X, Y), side(Y, X)])


def lb(d: Draw) -> Program:
    def side(mine: int, other: int) -> list[Op]:
        fence = d.fence() if d.chance(0.5) else []
        return d.strong("R", other) + fence + d.strong("W", mine, 1)

    return d.program("LB", [side(X, Y), side(Y, X)])


def iriw(d: Draw) -> Program:
    def side(one: int, other: int) -> list[Op]:
        return d.strong("R", one) + (d.fence() if d.chance(0.5) else []) + d.strong("R", other)

    threads = [d.strong("W", X, 1), d.strong("W", Y, 1), side(X, Y), side(Y, X)]
    return d.program("IRIW", threads)


def r(d: Draw) -> Program:
    fences = [d.fence() if d.chance(0.5) else [] for _ in range(2)]
    one = d.strong("W", X, 1) + fences[0] + d.strong("W", Y, 1)
    return d.program("R", [one, d.strong("W", Y, 2) + fences[1] + d.strong("R", X)])


def s(d: Draw) -> Program:
    return d.program("S", [d.writes(X, 2) + d.signals(Y), d.polls(Y) + d.writes(X, 1)])


def two_writes(d: Draw) -> Program:
    def side(one: int, other: int, value: int) -> list[Op]:
        fence = d.fence() if d.chance(0.5) else []
        return d.strong("W", one, value) + fence + d.strong("W", other, value)

    return d.program("2+2W", [side(X, Y, 1), side(Y, X, 2)])


def coherence(d: Draw) -> Program:
    one = d.strong("W", X, 1) + (d.strong("W", X, 2) if d.chance(0.5) else [])
    other = d.strong("R", X) + d.strong("R" if d.chance(0.6) else "W", X, 3)
    return d.program("coherence", [one, other], near=0.5)


def observed(d: Draw) -> Program:
    """What is read strongly is overwritten, or read plainly."""
    other = [Op("P", X, 1, d.pick(("relaxed", "acquire")), d.scope()), *d.reads(X)]
    return d.program("observed", [[Op("W", X, 1, "relaxed", d.scope())], other], near=0.4)


def proxy(d: Draw) -> Program:
    """The data is read through the async proxy."""
    fence = [Op("FP")]
    one = [Op("W", X, 7), *(fence if d.chance(0.2) else []), *d.signals(FLAG)]
    other = [*d.polls(FLAG), *(fence if d.chance(0.6) else []), Op("A", X)]
    return d.program("proxy", [one, other])


def unordered(d: Draw) -> Program:
    """Two threads with nothing between them."""
    return d.program("none", [d.writes(X, 7), d.pick((d.writes, d.reads))(X)], near=0.6)


FLAGS = (
    mp, mp, mp, mp_war, mp_war, mp_without_poll, counted, counted, wrc, wrc, isa2, isa2, sb, lb, iriw,
    r, s, two_writes, coherence, observed, proxy, unordered,
)  # fmt: skip


# --- barriers -------------------------------------------------------------------------------------


def by_bar(d: Draw) -> Program:
    """bar.sync and bar.arrive, in the right place or not."""
    access = d.writes if d.chance(0.8) else d.reads
    one, other = access(X), d.reads(X) if access == d.writes else d.writes(X)
    arrive = [Op("BA" if d.chance(0.3) else "B", 0)]
    if d.chance(0.2):
        one = arrive + one
    else:
        one = one + arrive
    other = other + [Op("B", 0)] if d.chance(0.2) else [Op("B", 0)] + other
    third = [[Op("B", 0), *d.reads(X)]] if d.chance(0.4) else []
    return _near(d, "bar", [one, other, *third])


def _near(d: Draw, name: str, threads: list[list[Op]]) -> Program:
    made = tuple(Thread(0, i, tuple(ops)) for i, ops in enumerate(threads))
    return Program(made, 1, d.pick(("global", "shared")), name=name)


def by_mbarrier(d: Draw) -> Program:
    """Arrivals at an mbarrier of CTA 0, of some order and scope, from its own or another CTA."""
    far = d.chance(0.6)

    def arrives() -> list[Op]:
        scope = d.pick(("cluster", "cluster", "cta"))
        if d.chance(0.75):
            return [Op("MA", 0, 0, "release", scope)]
        return [*(d.fence() if d.chance(0.7) else []), Op("MA", 0, 0, "relaxed", scope)]

    def waits() -> list[Op]:
        scope = d.pick(("cluster", "cluster", "cta"))
        if d.chance(0.8):
            return [Op("MW", 0, 0, "acquire", scope)]
        return [Op("MW", 0, 0, "relaxed", scope), *(d.fence() if d.chance(0.7) else [])]

    data = d.writes(X, 7)
    one = arrives() + data if d.chance(0.15) else data + arrives()
    threads = [one, waits() + d.reads(X)]
    if d.chance(0.4):
        threads.append(d.writes(Y, 8) + arrives())
        threads[1] += d.reads(Y)
    ctas = [d.pick((0, 1)) if far else 0 for _ in threads]
    ctas[1] = 0
    made = tuple(Thread(cta, i, tuple(ops)) for i, (cta, ops) in enumerate(zip(ctas, threads)))
    return Program(made, 2 if far else 1, d.pick(("global", "shared")), name="mbarrier")


def by_cluster(d: Draw) -> Program:
    def side(before: list[Op], behind: list[Op]) -> list[Op]:
        relaxed = d.chance(0.3)
        fence = d.fence() if d.chance(0.5 if relaxed else 0.1) else []
        order = "relaxed" if relaxed else "release"
        arrive = [*fence, Op("CA", 0, 0, order, "cluster")]
        between = d.reads(Y) if d.chance(0.2) else []
        return [*before, *arrive, *between, Op("CW", 0, 0, "acquire", "cluster"), *behind]

    first = side(d.writes(X, 7), [])
    second = side(d.writes(Y, 5) if d.chance(0.3) else [], d.reads(X))
    made = tuple(Thread(cta, 0, tuple(ops)) for cta, ops in enumerate((first, second)))
    return Program(made, 2, d.pick(("global", "shared")), name="cluster barrier")


def bar_then_flag(d: Draw) -> Program:
    """A warp hands over to another one of its CTA, and that to another CTA, or the reverse."""

    def fence() -> list[Op]:
        return d.fence() if d.chance(0.25) else []

    threads = [
        [*d.writes(X, 7), *fence(), Op("B", 0)],
        [Op("B", 0), *d.signals(FLAG)],
        [*d.polls(FLAG), *([Op("B", 1)] if (further := d.chance(0.4)) else d.reads(X))],
    ]
    places = [(0, 0), (0, 1), (1, 0)]
    if further:
        threads.append([Op("B", 1), *fence(), *d.reads(X)])
        places.append((1, 1))
    made = tuple(Thread(*place, tuple(ops)) for place, ops in zip(places, threads))
    return Program(made, d.pick((1, 2)), "global", name="bar and flag")


BARRIERS = (by_bar, by_bar, by_mbarrier, by_mbarrier, by_mbarrier, by_cluster, bar_then_flag)


# --- lanes ----------------------------------------------------------------------------------------


def of_lanes(d: Draw) -> Program:
    """Stores, loads and synchronisation of lanes of one warp, which execute one text."""
    lanes = d.pick(((0, 1), (0, 1, 31), (3, 17)))
    steps: list[list[tuple[int, Op]]] = []
    for _ in range(d.pick((2, 2, 3, 3, 4))):
        some = [lane for lane in lanes if d.chance(0.55)] or [d.pick(lanes)]
        own = d.chance(0.35)  # each lane at its own place, or at its neighbour's
        turn = d.pick((0, 0, 1))
        places = {lane: (i + turn) % len(lanes) if own else X for i, lane in enumerate(lanes)}
        if d.chance(0.55):
            if not own:
                some = some[:1]
            step = [(lane, Op("W", places[lane], 7 + lane)) for lane in some]
        else:
            some = lanes if d.chance(0.5) else some
            step = [(lane, Op("R", places[lane])) for lane in some]
        steps.append(step)
        if d.chance(0.3):
            between = d.pick(("S", "S", "V"))
            steps.append([(lane, Op(between, len(steps))) for lane in lanes])
    return Program.of_lanes(steps, d.pick(("shared", "shared", "global")), "lanes")


CLASSES: dict[str, tuple[Callable[[Draw], Program], ...]] = {
    "warps, by flags": FLAGS,
    "warps, by barriers": BARRIERS,
    "lanes of one warp": (of_lanes,),
}


def drawn(kind: str, number: int) -> Program:
    """The program with this number of a class."""
    draw = Draw(number, kind)
    return draw.pick(CLASSES[kind])(draw)
