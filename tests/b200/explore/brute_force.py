"""Small random protocols, and all of their orders tried one by one, by rules written down here anew.

A protocol is a list of warps; a warp is a list of operations:

    ("arrive", b, tx)    one arrival on mbarrier b, which announces tx bytes
    ("copy", b, n)       issues a copy that brings n bytes to mbarrier b some time later
    ("expect", b, n)     announces n bytes
    ("wait", b, parity)  waits until the phase of that parity is over
    ("sync", k, threads)  barrier k of the CTA (threads 0: all that have not exited); ("come", k,
                         threads) arrives there without waiting
    ("alloc", n), ("free",)  tensor memory: its latest allocation

Mbarriers are initialised from the start, with the counts given. A warp exits after its last one.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from b200.explore import kinds
from b200.explore.trace import EVERY, Place, Step, Trace

COLUMNS = 512


@dataclass
class World:
    """What all warps share, and where each is. barriers: [count, pending, tx, phases over]."""

    protocol: list
    counts: list[int]
    at: list[int]
    barriers: list[list[int]]
    copies: list[tuple] = field(default_factory=list)  # under way: (warp, place in it)
    met: dict = field(default_factory=dict)  # barrier -> [threads, arrived, uses over]
    waiting: dict = field(default_factory=dict)  # warp -> (barrier, use it waits for)
    memory: dict = field(default_factory=dict)  # warp -> [(first column, columns)]
    gone: set = field(default_factory=set)  # warps that have exited

    @classmethod
    def new(cls, protocol, counts):
        return cls(protocol, counts, [0] * len(protocol), [[c, c, 0, 0] for c in counts])

    def copy(self) -> World:
        return World(
            self.protocol,
            self.counts,
            list(self.at),
            [list(b) for b in self.barriers],
            list(self.copies),
            {k: list(v) for k, v in self.met.items()},
            dict(self.waiting),
            {k: list(v) for k, v in self.memory.items()},
            set(self.gone),
        )

    def key(self):
        return (
            tuple(self.at),
            tuple(map(tuple, self.barriers)),
            tuple(sorted(self.copies)),
            tuple(sorted((k, tuple(v)) for k, v in self.met.items())),
            tuple(sorted(self.waiting.items())),
            tuple(sorted((k, tuple(v)) for k, v in self.memory.items())),
            tuple(sorted(self.gone)),
        )

    def over(self) -> bool:
        return len(self.gone) == len(self.protocol) and not self.copies

    def moves(self) -> list[tuple]:
        """What can happen next: ("warp", w), whose last is its exit, or ("copy", w, i)."""
        found: list[tuple] = [("copy", *c) for c in self.copies]
        for w, ops in enumerate(self.protocol):
            if w in self.waiting:
                barrier, use = self.waiting[w]
                if self.met[barrier][2] > use:
                    found.append(("warp", w))
            elif self.at[w] == len(ops):
                found += [] if w in self.gone else [("warp", w)]
            elif self._passes(ops[self.at[w]]):
                found.append(("warp", w))
        return found

    def _passes(self, op) -> bool:
        if op[0] == "wait":
            return self.barriers[op[1]][3] % 2 != op[2]
        if op[0] == "alloc":
            return self._room(op[1]) is not None
        return True

    def _room(self, n: int) -> int | None:
        taken = [r for ranges in self.memory.values() for r in ranges]
        for first in range(0, COLUMNS - n + 1, 32):
            if all(first + n <= a or a + m <= first for a, m in taken):
                return first
        return None

    def make(self, move) -> str:
        """Carry out a move; "" or what rule it breaks."""
        if move[0] == "copy":
            _, w, i = move
            self.copies.remove((w, i))
            _, b, n = self.protocol[w][i]
            return self._count(b, 0, -n)
        w = move[1]
        if w in self.waiting:
            del self.waiting[w]
            self.at[w] += 1
            return ""
        if self.at[w] == len(self.protocol[w]):
            self.gone.add(w)
            return next(filter(None, map(self._complete, self.met)), "")
        op = self.protocol[w][self.at[w]]
        if op[0] in ("sync", "come"):
            return self._meet(w, op)
        self.at[w] += 1
        if op[0] == "arrive":
            return self._count(op[1], 1, op[2])
        if op[0] == "expect":
            return self._count(op[1], 0, op[2])
        if op[0] == "copy":
            self.copies.append((w, self.at[w] - 1))
        elif op[0] == "alloc":
            self.memory.setdefault(w, []).append((self._room(op[1]), op[1]))
        elif op[0] == "free":
            self.memory[w].pop()
        return ""

    def _count(self, b: int, arrivals: int, tx: int) -> str:
        barrier = self.barriers[b]
        if arrivals > barrier[1]:
            return "too many arrivals"
        barrier[1] -= arrivals
        barrier[2] += tx
        if barrier[1] == barrier[2] == 0:
            barrier[1] = barrier[0]
            barrier[3] += 1
        return ""

    def _meet(self, w: int, op) -> str:
        kind, k, threads = op
        state = self.met.setdefault(k, [threads, 0, 0])
        if state[1] and state[0] != threads:
            return "another count"
        state[0] = threads
        state[1] += 32
        use = state[2]
        broken = self._complete(k)
        if kind == "sync":
            self.waiting[w] = k, use
        else:
            self.at[w] += 1
        return broken

    def _complete(self, k: int) -> str:
        """A use of barrier k is over once all are there."""
        state = self.met[k]
        needed = state[0] or max(32 * (len(self.protocol) - len(self.gone)), 1)
        if state[1] > needed:
            return "too many threads"
        if state[1] == needed:
            state[1] = 0
            state[2] += 1
        return ""


def random_protocol(rng: random.Random):
    """(warps, counts of the mbarriers)."""
    counts = [rng.choice((1, 1, 2)) for _ in range(rng.choice((1, 2)))]
    warps = []
    for _ in range(rng.choice((2, 3))):
        ops: list[tuple] = []
        for _ in range(rng.randint(1, 5)):
            b = rng.randrange(len(counts))
            ops.append(
                rng.choice(
                    [
                        ("arrive", b, 0),
                        ("arrive", b, 0),
                        ("wait", b, rng.randrange(2)),
                        ("wait", b, rng.randrange(2)),
                        ("arrive", b, 16),
                        ("copy", b, 16),
                        ("expect", b, 16),
                        ("sync", rng.randrange(2), 64),
                        ("come", 1, 64),
                        ("sync", 2, 0),
                        ("come", 2, 0),
                        ("alloc", 256),
                        ("free",) if ("alloc", 256) in ops else ("alloc", 256),
                    ]
                )
            )
        held = 0
        for i, op in enumerate(ops):  # no free without an allocation
            held += (op[0] == "alloc") - (op[0] == "free")
            if held < 0:
                ops[i], held = ("alloc", 256), 1
        warps.append(ops)
    return warps, counts


def run(protocol, counts, rng: random.Random) -> list[tuple] | None:
    """The moves of one random order to its end; None if it gets stuck or breaks a rule."""
    world, moves = World.new(protocol, counts), []
    while not world.over():
        can = world.moves()
        if not can:
            return None
        moves.append(rng.choice(can))
        if world.make(moves[-1]):
            return None
    return moves


def worst(protocol, counts) -> tuple[bool, int | None]:
    """(whether some order breaks a rule, steps of the shortest order that gets stuck or None). The
    issue of a copy is no step.
    """
    start = World.new(protocol, counts)
    work, seen, broken, shortest = [(start, 0)], {start.key()}, False, None
    while work:
        world, depth = work.pop()
        can = world.moves()
        if not can and not world.over():
            shortest = depth if shortest is None else min(shortest, depth)
        for move in can:
            new = world.copy()
            issues = move[0] == "warp" and _issues(world, move[1])
            if new.make(move):
                broken = True
            elif new.key() not in seen:
                seen.add(new.key())
                work.append((new, depth + (not issues)))
    return broken, shortest


def replay(protocol, counts, order: list[Step]) -> World:
    """Where an order leads, of steps of a trace after the initialisations; AssertionError where it
    breaks a rule or does what cannot happen.
    """
    world = World.new(protocol, counts)
    for step in order:
        w = step.actor[1]
        if step.kind == kinds.INIT:
            continue
        while step.actor[2] == "" and w not in world.waiting and _issues(world, w):
            assert not world.make(("warp", w))
        move = ("warp", w)
        if step.actor[2]:
            while not any(
                c[0] == w and protocol[w][c[1]][1] == step.place.number // 8 for c in world.copies
            ):
                assert _issues(world, w)
                world.make(("warp", w))
            move = (
                "copy",
                *next(
                    c
                    for c in world.copies
                    if c[0] == w and protocol[w][c[1]][1] == step.place.number // 8
                ),
            )
        assert move in world.moves(), (step, world)
        assert not world.make(move)
    for w in range(len(protocol)):  # copies that are issued, but have not come: they do not matter
        while w not in world.waiting and _issues(world, w):
            world.make(("warp", w))
    return world


def _issues(world: World, w: int) -> bool:
    ops = world.protocol[w]
    return world.at[w] < len(ops) and ops[world.at[w]][0] == "copy"


def trace_of(protocol, counts, moves) -> Trace:
    """The trace that a recorder would make of a run."""
    trace = Trace(threads=32 * len(protocol), warps=len(protocol), ctas=1)
    last: list[tuple[int, ...]] = [() for _ in protocol]
    allocations: dict[int, list[int]] = {}
    met: dict[int, int] = {}

    def step(w, kind, place, before, name="", **what):
        found = Step(len(trace.steps), kind, place, before, (0, w, name), None, **what)
        trace.steps.append(found)
        return found.number

    init = tuple(
        step(0, kinds.INIT, Place("mbarrier", 0, 8 * b), (), count=c) for b, c in enumerate(counts)
    )
    last = [init for _ in protocol]
    at = [0] * len(protocol)
    issued: dict[tuple[int, int], tuple[int, ...]] = {}
    for move in moves:
        w = move[1]
        if move[0] == "copy":
            _, b, n = protocol[w][move[2]]
            behind = issued[w, move[2]]
            step(w, kinds.COMPLETE, Place("mbarrier", 0, 8 * b), behind, "copy", tx=n)
            continue
        if at[w] == len(protocol[w]):
            step(w, kinds.EXIT, Place("barrier", 0, EVERY), last[w], count=1)
            continue
        op = protocol[w][at[w]]
        place = Place("mbarrier", 0, 8 * op[1]) if len(op) == 3 else Place("tmem")
        if op[0] == "copy":
            issued[w, at[w]] = last[w]
            at[w] += 1
            continue
        if op[0] in ("sync", "come"):
            place = Place("barrier", 0, op[1])
            if w in met:
                number = step(w, kinds.PASS, place, last[w], of=(met.pop(w),))
                at[w] += 1
            else:
                number = step(w, kinds.MEET, place, last[w], count=32, threads=op[2])
                if op[0] == "sync":
                    met[w] = number
                else:
                    at[w] += 1
            last[w] = (number,)
            continue
        at[w] += 1
        if op[0] == "arrive":
            number = step(w, kinds.ARRIVE, place, last[w], count=1, tx=op[2])
        elif op[0] == "expect":
            number = step(w, kinds.EXPECT, place, last[w], tx=op[2])
        elif op[0] == "wait":
            number = step(w, kinds.WAIT, place, last[w], parity=op[2])
        elif op[0] == "alloc":
            number = step(w, kinds.ALLOC, place, last[w], count=op[1])
            allocations.setdefault(w, []).append(number)
        else:
            number = step(w, kinds.DEALLOC, place, last[w], of=(allocations[w].pop(),))
        last[w] = (number,)
    return trace
