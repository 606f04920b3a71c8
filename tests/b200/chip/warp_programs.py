"""Random programs of a warp whose lanes part, return and meet again, with what each lane ends with.

A program is a tree of statements on four registers of 32 bits. It is legal by construction: each
scope has a register with the lanes that are in it, made by a ballot in front of the branch, and
`.sync` names these lanes or a part of them that names itself. Lanes that return stay named.

`interpret` runs a program thread by thread, as PTX ISA 9.7.9 and 9.7.13.2 describe it: a lane waits
until each lane that it names has exited, or waits at the same kind of instruction with the same
membermask. It shares nothing with the emulator.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

FULL = 0xFFFFFFFF
REGISTERS = 4
HALVES = (0x0000FFFF, 0xFFFF0000)
OPS = {
    "add.u32": lambda a, b: a + b,
    "mul.lo.u32": lambda a, b: a * b,
    "xor.b32": lambda a, b: a ^ b,
    "sub.u32": lambda a, b: a - b,
}
REDUCTIONS = {
    "add.u32": sum,
    "min.u32": min,
    "max.u32": max,
}


class Maker:
    """Makes programs. turns: whether lanes may pass the end of a branch in which others of their
    scope wait for them, and come to the same kind of instruction behind it.
    """

    def __init__(self, seed: int, turns: bool = False):
        self.rng, self.turns = random.Random(seed), turns

    def program(self) -> list:
        return self.block(3, self.rng.randint(4, 8))

    def block(self, depth: int, length: int, loop: bool = False) -> list:
        return [self.statement(depth, loop) for _ in range(length)]

    def register(self) -> int:
        return self.rng.randrange(REGISTERS)

    def condition(self) -> tuple:
        """(register, bits, bound): register & bits < bound."""
        bits = self.rng.choice((1, 3, 7, 31))
        return self.register(), bits, self.rng.randint(1, bits)

    def statement(self, depth: int, loop: bool) -> tuple:
        rng = self.rng
        kinds = ["alu"] * 4 + ["shfl", "vote", "redux", "match", "elect", "sync", "bcast"]
        if depth:
            kinds += ["if"] * 3 + ["both"] * 2 + ["loop", "leave"]
            kinds += ["turns"] * 3 if self.turns else []
        kind = rng.choice(kinds)
        half = rng.random() < 0.3  # the halves of the warp by themselves
        dst, src = self.register(), self.register()
        if kind == "alu":
            value = rng.choice((self.register(), ("imm", rng.randrange(1, 1000))))
            return kind, dst, rng.choice(list(OPS)), src, value
        if kind in ("shfl", "bcast"):
            return kind, dst, src, rng.randrange(32), rng.choice((1, 3, 5, 31)), half
        if kind == "vote":
            return kind, dst, rng.choice(("ballot", "any", "all")), self.condition(), half
        if kind == "redux":
            return kind, dst, src, rng.choice(list(REDUCTIONS)), half
        if kind in ("match", "elect"):
            return kind, dst, src, half
        if kind == "sync":
            return kind, half
        if kind == "if":
            other = self.block(depth - 1, rng.randint(0, 3), loop)
            return kind, self.condition(), self.block(depth - 1, rng.randint(1, 4), loop), other
        if kind == "both":  # each arm comes to the same kind of instruction with the outer mask
            arms = [
                [self.alu() for _ in range(rng.randint(0, 2))],
                [self.alu() for _ in range(rng.randint(0, 2))],
            ]
            what = rng.choice(("ballot", "redux", "sync", "shfl", "gone"))
            return kind, self.condition(), what, dst, src, rng.randrange(32), *arms
        if kind == "turns":
            return kind, self.condition(), rng.choice(("ballot", "sync")), dst, src
        if kind == "loop":
            return kind, src, self.block(depth - 1, rng.randint(1, 3), True)
        return kind, self.condition()

    def alu(self) -> tuple:
        return "alu", self.register(), self.rng.choice(list(OPS)), self.register(), self.register()


# --- thread by thread -----------------------------------------------------------------------------


def interpret(program: list) -> list[int]:
    """What each of 32 lanes ends with."""
    lanes = [Lane(program, lane) for lane in range(32)]
    waiting: dict[int, tuple] = {}  # lane -> (kind, membermask, operand)
    replies: dict[int, object] = dict.fromkeys(range(32))
    ended: set[int] = set()
    while len(ended) < 32:
        for lane, reply in replies.items():
            try:
                waiting[lane] = lanes[lane].run.send(reply)
            except StopIteration:
                ended.add(lane)
        replies, met = {}, {}  # met: what those who have come together bring, by what they wait for
        for lane, (kind, mask, _) in waiting.items():
            if (kind, mask) not in met:
                group = [i for i in range(32) if mask >> i & 1 and i not in ended]
                come = all(i in waiting and waiting[i][:2] == (kind, mask) for i in group)
                met[kind, mask] = {i: waiting[i][2] for i in group} if come else None
            if (found := met[kind, mask]) is not None:
                replies[lane] = found
        assert replies or len(ended) == 32, "the program is not legal"
        for lane in replies:
            del waiting[lane]
    return [lane.result for lane in lanes]


class Lane:
    """One thread. `run` yields (kind, membermask, operand) where it waits for others, and is sent
    the operands of all lanes that have come, by lane.
    """

    def __init__(self, program: list, lane: int):
        self.lane, self.v = lane, [lane * (3 + 2 * i) + i for i in range(REGISTERS)]
        self.run = self.start(program)

    def start(self, program: list) -> Iterator:
        yield from self.block(program, FULL)

    @property
    def result(self) -> int:
        found = 0
        for value in self.v:
            found = (found * 31 + value) & FULL
        return found

    def holds(self, condition: tuple) -> bool:
        register, bits, bound = condition
        return self.v[register] & bits < bound

    def block(self, block: list, mask: int) -> Iterator:
        """Yields as `run`; its value is whether the lane has returned."""
        for statement in block:
            if (yield from getattr(self, f"do_{statement[0]}")(mask, *statement[1:])):
                return True
        return False

    def named(self, mask: int, half: bool) -> int:
        return mask & HALVES[self.lane // 16] if half else mask

    def do_alu(self, mask, dst, op, a, b) -> Iterator:
        yield from ()
        right = b[1] if isinstance(b, tuple) else self.v[b]
        self.v[dst] = OPS[op](self.v[a], right) & FULL

    def do_shfl(self, mask, dst, src, shift, factor, half) -> Iterator:
        mask = self.named(mask, half)
        here = yield "ballot", mask, True
        source = (self.lane * factor + shift) & 31
        values = yield "shfl", mask, self.v[src]
        self.v[dst] = values[source if source in here else self.lane]

    def do_bcast(self, mask, dst, src, shift, factor, half) -> Iterator:
        mask = self.named(mask, half)
        here = yield "ballot", mask, True
        values = yield "shfl", mask, self.v[src]
        self.v[dst] = values[min(here)]

    def do_vote(self, mask, dst, mode, condition, half) -> Iterator:
        votes = yield mode, self.named(mask, half), self.holds(condition)
        found = {
            "ballot": sum(1 << i for i, vote in votes.items() if vote),
            "any": int(any(votes.values())),
            "all": int(all(votes.values())),
        }
        self.v[dst] = found[mode]

    def do_redux(self, mask, dst, src, op, half) -> Iterator:
        values = yield op, self.named(mask, half), self.v[src]
        self.v[dst] = REDUCTIONS[op](values.values()) & FULL

    def do_match(self, mask, dst, src, half) -> Iterator:
        value = self.v[src] & 7
        values = yield "match", self.named(mask, half), value
        self.v[dst] = sum(1 << i for i, other in values.items() if other == value)

    def do_elect(self, mask, dst, src, half) -> Iterator:
        values = yield "elect", self.named(mask, half), None
        self.v[dst] = self.v[src] + 1 & FULL if min(values) == self.lane else min(values)

    def do_sync(self, mask, half) -> Iterator:
        yield "sync", self.named(mask, half), None

    def do_if(self, mask, condition, arm, other) -> Iterator:
        votes = yield "ballot", mask, self.holds(condition)
        taken = sum(1 << i for i, vote in votes.items() if vote)
        if self.holds(condition):
            return (yield from self.block(arm, mask & taken))
        return (yield from self.block(other, mask & ~taken))

    def do_both(self, mask, condition, what, dst, src, shift, first, second) -> Iterator:
        here = yield "ballot", mask, True
        yes = self.holds(condition)
        yield from self.block(first if yes else second, mask)
        if what == "gone" and not yes:
            return True
        if what in ("ballot", "gone"):
            votes = yield "ballot", mask, bool(self.v[src] & 1)
            self.v[dst] = sum(1 << i for i, vote in votes.items() if vote)
        elif what == "redux":
            values = yield "add.u32", mask, self.v[src]
            self.v[dst] = sum(values.values()) & FULL
        elif what == "shfl":
            source = self.lane + shift & 31
            values = yield "shfl", mask, self.v[src]
            self.v[dst] = values[source if source in here else self.lane]
        else:
            yield "sync", mask, None
        self.v[dst] = self.v[dst] + (1 if yes else 2) & FULL

    def do_turns(self, mask, condition, what, dst, src) -> Iterator:
        yes = self.holds(condition)
        votes = yield what, mask, bool(self.v[src] & 1)
        if what == "ballot":
            self.v[dst] = sum(1 << i for i, vote in votes.items() if vote)
        self.v[dst] = self.v[dst] + (1 if yes else 2) & FULL

    def do_loop(self, mask, src, body) -> Iterator:
        left = self.v[src] & 3
        while True:
            votes = yield "ballot", mask, left > 0
            if left == 0:
                return False
            mask = sum(1 << i for i, vote in votes.items() if vote)
            left -= 1
            if (yield from self.block(body, mask)):
                return True

    def do_leave(self, mask, condition) -> Iterator:
        yield from ()
        return self.holds(condition)


# --- as PTX ---------------------------------------------------------------------------------------


class Text:
    """The PTX of a program: a kernel of one warp that stores 32 words at `out`."""

    def __init__(self, program: list):
        self.lines: list[str] = []
        self.count = {"m": 0, "p": 0, "t": 0, "L": 0}
        self.block(program, self.masked("mov.b32 {}, -1;"))
        self.leave()

    def body(self) -> str:
        declared = (
            f".reg .pred %q<{self.count['p'] + 1}>;",
            f".reg .b32 %m<{self.count['m'] + 1}>, %t<{self.count['t'] + 1}>;",
            f".reg .b32 %v<{REGISTERS}>, %lane, %half; .reg .b64 %a, %b;",
            "mov.u32 %lane, %laneid; ld.param.u64 %a, [out];",
            "mul.wide.u32 %b, %lane, 4; add.u64 %a, %a, %b;",
            ".reg .pred %low; setp.lt.u32 %low, %lane, 16;",
            f"selp.b32 %half, {HALVES[0]:#x}, {HALVES[1]:#x}, %low;",
            *(f"mad.lo.u32 %v{i}, %lane, {3 + 2 * i}, {i};" for i in range(REGISTERS)),
        )
        return "\n".join((*declared, *self.lines))

    def __call__(self, line: str) -> None:
        self.lines.append(line)

    def new(self, kind: str) -> str:
        self.count[kind] += 1
        prefix = {"p": "%q", "m": "%m", "t": "%t", "L": "L"}[kind]
        return f"{prefix}{self.count[kind]}"

    def masked(self, line: str, kind: str = "m") -> str:
        found = self.new(kind)
        self(line.format(found))
        return found

    def leave(self) -> None:
        total = self.masked("mov.b32 {}, 0;", "t")
        for i in range(REGISTERS):
            self(f"mad.lo.u32 {total}, {total}, 31, %v{i};")
        self(f"st.global.u32 [%a], {total};")
        self("ret;")

    def holds(self, condition: tuple) -> str:
        register, bits, bound = condition
        low = self.masked(f"and.b32 {{}}, %v{register}, {bits};", "t")
        return self.masked(f"setp.lt.u32 {{}}, {low}, {bound};", "p")

    def ballot(self, mask: str, predicate: str = "1") -> str:
        return self.masked(f"vote.sync.ballot.b32 {{}}, {predicate}, {mask};")

    def named(self, mask: str, half: bool) -> str:
        return self.masked(f"and.b32 {{}}, {mask}, %half;") if half else mask

    def block(self, block: list, mask: str) -> None:
        for statement in block:
            getattr(self, f"do_{statement[0]}")(mask, *statement[1:])

    def do_alu(self, mask, dst, op, a, b) -> None:
        right = b[1] if isinstance(b, tuple) else f"%v{b}"
        self(f"{op} %v{dst}, %v{a}, {right};")

    def source(self, wanted: str, here: str) -> str:
        """The wanted source lane if it is here, else the own lane."""
        bit = self.masked(f"shr.u32 {{}}, {here}, {wanted};", "t")
        self(f"and.b32 {bit}, {bit}, 1;")
        there = self.masked(f"setp.ne.u32 {{}}, {bit}, 0;", "p")
        return self.masked(f"selp.b32 {{}}, {wanted}, %lane, {there};", "t")

    def do_shfl(self, mask, dst, src, shift, factor, half) -> None:
        mask = self.named(mask, half)
        here = self.ballot(mask)
        wanted = self.masked(f"mad.lo.u32 {{}}, %lane, {factor}, {shift};", "t")
        self(f"and.b32 {wanted}, {wanted}, 31;")
        self(f"shfl.sync.idx.b32 %v{dst}, %v{src}, {self.source(wanted, here)}, 31, {mask};")

    def do_bcast(self, mask, dst, src, shift, factor, half) -> None:
        mask = self.named(mask, half)
        here = self.ballot(mask)
        lowest = self.masked(f"brev.b32 {{}}, {here};", "t")
        self(f"clz.b32 {lowest}, {lowest};")
        self(f"shfl.sync.idx.b32 %v{dst}, %v{src}, {lowest}, 31, {mask};")

    def do_vote(self, mask, dst, mode, condition, half) -> None:
        mask, holds = self.named(mask, half), self.holds(condition)
        if mode == "ballot":
            self(f"vote.sync.ballot.b32 %v{dst}, {holds}, {mask};")
        else:
            found = self.masked(f"vote.sync.{mode}.pred {{}}, {holds}, {mask};", "p")
            self(f"selp.b32 %v{dst}, 1, 0, {found};")

    def do_redux(self, mask, dst, src, op, half) -> None:
        self(f"redux.sync.{op} %v{dst}, %v{src}, {self.named(mask, half)};")

    def do_match(self, mask, dst, src, half) -> None:
        value = self.masked(f"and.b32 {{}}, %v{src}, 7;", "t")
        self(f"match.any.sync.b32 %v{dst}, {value}, {self.named(mask, half)};")

    def do_elect(self, mask, dst, src, half) -> None:
        leader, more = self.new("t"), self.masked(f"add.u32 {{}}, %v{src}, 1;", "t")
        chosen = self.masked(f"elect.sync {leader}|{{}}, {self.named(mask, half)};", "p")
        self(f"selp.b32 %v{dst}, {more}, {leader}, {chosen};")

    def do_sync(self, mask, half) -> None:
        self(f"bar.warp.sync {self.named(mask, half)};")

    def do_if(self, mask, condition, arm, other) -> None:
        holds = self.holds(condition)
        taken = self.ballot(mask, holds)
        otherwise, end = self.new("L"), self.new("L")
        self(f"@!{holds} bra {otherwise};")
        self.block(arm, self.masked(f"and.b32 {{}}, {mask}, {taken};"))
        self(f"bra {end};")
        self(f"{otherwise}:")
        left = self.masked(f"not.b32 {{}}, {taken};")
        self.block(other, self.masked(f"and.b32 {{}}, {mask}, {left};"))
        self(f"{end}:")

    def do_both(self, mask, condition, what, dst, src, shift, first, second) -> None:
        here, holds = self.ballot(mask), self.holds(condition)
        otherwise, end = self.new("L"), self.new("L")
        self(f"@!{holds} bra {otherwise};")
        self.arm(mask, here, what, dst, src, shift, first, 1)
        self(f"bra {end};")
        self(f"{otherwise}:")
        self.arm(mask, here, what, dst, src, shift, second, 2)
        self(f"{end}:")

    def arm(self, mask, here, what, dst, src, shift, block, number) -> None:
        self.block(block, mask)
        if what == "gone" and number == 2:
            return self.leave()
        if what in ("ballot", "gone"):
            low = self.masked(f"and.b32 {{}}, %v{src}, 1;", "t")
            odd = self.masked(f"setp.ne.u32 {{}}, {low}, 0;", "p")
            self(f"vote.sync.ballot.b32 %v{dst}, {odd}, {mask};")
        elif what == "redux":
            self(f"redux.sync.add.u32 %v{dst}, %v{src}, {mask};")
        elif what == "shfl":
            wanted = self.masked(f"add.u32 {{}}, %lane, {shift};", "t")
            self(f"and.b32 {wanted}, {wanted}, 31;")
            self(f"shfl.sync.idx.b32 %v{dst}, %v{src}, {self.source(wanted, here)}, 31, {mask};")
        else:
            self(f"bar.warp.sync {mask};")
        return self(f"add.u32 %v{dst}, %v{dst}, {number};")

    def do_turns(self, mask, condition, what, dst, src) -> None:
        holds = self.holds(condition)
        for number, negated in ((1, "!"), (2, "")):
            over = self.new("L")
            self(f"@{negated}{holds} bra {over};")
            self.arm(mask, mask, what, dst, src, 0, [], number)
            self(f"{over}:")

    def do_loop(self, mask, src, body) -> None:
        left, inner = self.masked(f"and.b32 {{}}, %v{src}, 3;", "t"), self.new("m")
        self(f"mov.b32 {inner}, {mask};")
        head, end = self.new("L"), self.new("L")
        self(f"{head}:")
        more = self.masked(f"setp.gt.u32 {{}}, {left}, 0;", "p")
        votes = self.ballot(inner, more)
        self(f"@!{more} bra {end};")
        self(f"mov.b32 {inner}, {votes};")
        self(f"sub.u32 {left}, {left}, 1;")
        self.block(body, inner)
        self(f"bra {head};")
        self(f"{end}:")

    def do_leave(self, mask, condition) -> None:
        holds, over = self.holds(condition), self.new("L")
        self(f"@!{holds} bra {over};")
        self.leave()
        self(f"{over}:")
