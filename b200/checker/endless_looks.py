"""Whether a loop of looks can end although a look always answers the same.

The loop is carried out over what is known of its registers: constants, and what is not known. Of
that, two kinds: what the loop itself changes (a count of tries, a clock) may become anything; what
it does not change, what other looks answer, and what a flag's value is compared with, stays as it
is, whatever it is. The loop is a wait if some choice of the second kind keeps control inside.

What an instruction computes stays if its operands do. So a register that is counted up has another
value in each round, and where these meet it may be anything. The first round begins in the middle,
at the look: whether control leaves is told of the rounds behind it.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import NamedTuple

from b200.effects import Loads, WaitsForPhase
from b200.program.analysis import EXIT, Block, Op
from b200.program.module import CLOCKS, Imm, Instr, Not, Reg, Special

RUNS = 256  # choices that are tried, at most: a loop that has more is taken for a wait

ANY = "any"  # what the loop changes
LOOKED = "looked"  # what comes of the value of a flag


class Stays(NamedTuple):
    """A value that stays as it is. of: a register, as it was, or the number of a result."""

    of: object


AbstractValue = int | str | Stays  # int: a constant (a predicate: 0 or 1); str: ANY or LOOKED
Known = dict[str, AbstractValue]

COMPARED = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}
# What a comparison always says if its bound is the least or the largest number: a count of tries
# that is less than 0, or not more than all numbers, which some programs take for no bound.
ENDLESS = {"lt": 0, "lo": 0, "gt": 0, "hi": 0, "le": 1, "ls": 1, "ge": 1, "hs": 1}
JOINED = {"and": operator.and_, "or": operator.or_, "xor": operator.xor}


def ends_only_by(blocks: list[Block], start: Block, look: Instr, behind: int) -> bool:
    """Whether control comes from a look, in block `start`, to `behind` only once it has passed."""
    asked = next(op for op in start.ops if op.ins is look)
    return not _Run(blocks, asked, None).comes(start, behind, {})


def may_end(blocks: list[Block], start: Block, look: Op, behind: set[int]) -> bool:
    """Whether control comes from a look to each of `behind`, whatever it always answers."""
    work: list[tuple[int, ...]] = [()]
    for _ in range(RUNS):
        if not work:
            return True
        first = work.pop()
        run = _Run(blocks, look, first)
        if not all(run.leaves(start, block) for block in behind):
            return False
        made = tuple(run.chosen.values())
        work += [(*made[:i], 1) for i in range(len(first), len(made))]
    return False


class _Run:
    """One choice of what stays. first: what is chosen first, in the order in which it is asked for;
    0 behind these. None: the look fails, and all else is open. chosen: what was asked for.
    """

    def __init__(self, blocks: list[Block], look: Op, first: tuple[int, ...] | None):
        self.blocks, self.look, self.first = blocks, look, first
        self.chosen: dict[object, int] = {}
        self.computed: dict[tuple, Stays] = {}

    def leaves(self, start: Block, behind: int) -> bool:
        """Whether control comes to block `behind`, in a later round if there is one."""
        entry: dict[int, Known] = {}
        if not self.comes(start, behind, entry):
            return False
        again = entry.get(start.index)
        return again is None or self.comes(start, behind, {}, again)

    def comes(
        self, start: Block, behind: int, entry: dict[int, Known], known: Known | None = None
    ) -> bool:
        """Whether control comes from the look in block `start` to block `behind`; from the block's
        beginning if it is `known` what registers hold there. entry: what is known at the beginning
        of each block, which is filled in.
        """
        first = start.ops.index(self.look) if known is None else 0
        work: list[tuple[Block, int, Known]] = [(start, first, known or {})]
        came = False
        while work:
            block, begin, known = work.pop()
            known = dict(known)
            for op in block.ops[begin:]:
                self._step(op, known)
            for after in self._ways(block, known):
                if after == behind:
                    came = True
                elif after != EXIT:
                    before = entry.get(after)
                    new = dict(known) if before is None else self._joined(before, known)
                    if new != before:
                        entry[after] = new
                        work.append((self.blocks[after], 0, new))
        return came

    def _joined(self, one: Known, other: Known) -> Known:
        """What is known where two ways meet."""
        found = {}
        for name in one.keys() | other.keys():
            mine, its = self._of(name, one), self._of(name, other)
            found[name] = mine if mine == its else ANY
        return found

    def _of(self, name: str, known: Known) -> AbstractValue:
        return known.get(name, Stays(name))

    def _choice(self, key: object) -> AbstractValue:
        if self.first is None:
            return 0 if key == self.look.ins.key else ANY
        if key not in self.chosen:
            number = len(self.chosen)
            self.chosen[key] = self.first[number] if number < len(self.first) else 0
        return self.chosen[key]

    def _predicate(self, register: Reg, known: Known) -> AbstractValue:
        value = self._of(register.name, known)
        return self._choice(value) if isinstance(value, Stays) else value

    def _operand(self, x: object, known: Known, predicate: bool = False) -> AbstractValue:
        if isinstance(x, Imm):
            return x.value
        if isinstance(x, Not):
            value = self._predicate(x.reg, known)
            return 1 - value if isinstance(value, int) else value
        if isinstance(x, Reg):
            return self._predicate(x, known) if predicate else self._of(x.name, known)
        return ANY if isinstance(x, Special) and x.name in CLOCKS else Stays(str(x))

    def _guard(self, ins: Instr, known: Known) -> AbstractValue:
        if ins.pred is None:
            return 1
        value = self._predicate(ins.pred, known)
        return 1 - value if isinstance(value, int) and ins.negated else value

    def _ways(self, block: Block, known: Known) -> Iterator[int]:
        last = block.ops[-1]
        if last.entry is not None or last.ins.mods[0] != "bra" or len(block.successors) != 2:
            yield from block.successors
            return
        guard = self._guard(last.ins, known)
        target = next(iter(block.targets.values()))
        for after in block.successors:
            if guard == ANY or (guard == 1) == (after == target):
                yield after

    def _step(self, op: Op, known: Known) -> None:
        if op.entry is None:
            return
        guard = self._guard(op.ins, known)
        values = self._values(op, known) if guard != 0 else {}
        for name, value in values.items():
            before = self._of(name, known)
            known[name] = value if guard == 1 or before == value else ANY

    def _values(self, op: Op, known: Known) -> dict[str, AbstractValue]:
        """What an instruction leaves in its registers."""
        ins = op.ins
        if isinstance(ins.effect, WaitsForPhase):
            return {r.name: self._choice(ins.key) for r in op.dsts}
        if isinstance(ins.effect, Loads):
            return {r.name: LOOKED for r in op.dsts}
        single = len(op.dsts) == 1 and isinstance(ins.operands[0], Reg)
        if single and (value := self._computed(op, known)) is not None:
            return {op.dsts[0].name: value}
        found = self._unknown(op, known)
        made = zip(op.dsts, getattr(op.made, "outs", ()), strict=False)
        of = {r.name: kind for r, kind in made}
        return {
            r.name: self._choice((found, ins.key, r.name))
            if of.get(r.name) == "pred" and found != ANY
            else found
            for r in op.dsts
        }

    def _unknown(self, op: Op, known: Known) -> AbstractValue:
        inputs = [self._of(r.name, known) for r in op.srcs]
        inputs += [self._operand(x, known) for x in op.ins.operands if isinstance(x, Special)]
        if LOOKED in inputs:
            return LOOKED
        if ANY in inputs:
            return ANY
        key = op.ins.key, *inputs
        return self.computed.setdefault(key, Stays(len(self.computed)))

    def _computed(self, op: Op, known: Known) -> AbstractValue | None:
        """The result of a simple instruction; None if it is not known."""
        ins = op.ins
        name, rest = ins.mods[0], ins.operands[1:]
        if name == "mov":
            whole = isinstance(rest[0], Imm | Reg | Special)
            return self._operand(rest[0], known) if whole else None
        if name == "selp":
            which = self._operand(rest[2], known, predicate=True)
            one, other = (self._operand(x, known) for x in rest[:2])
            if which in (0, 1):
                return one if which else other
            return one if one == other else None
        if name == "setp":
            return self._compared(ins, known)
        logical = ins.mods[-1] == "pred"
        if name == "not" and logical:
            value = self._operand(rest[0], known, predicate=True)
            return 1 - value if isinstance(value, int) else None
        if name not in JOINED:
            return None
        one, other = (self._operand(x, known, predicate=logical) for x in rest)
        return _joined(name, one, other, logical)

    def _compared(self, ins: Instr, known: Known) -> AbstractValue | None:
        """The result of setp."""
        (one, other), rest = ins.operands[1:3], ins.operands[3:]
        values = self._operand(one, known), self._operand(other, known)
        found = _compare(ins, *values)
        always = ENDLESS.get(ins.mods[1])
        if ANY in values and always is not None and any(isinstance(x, Stays) for x in values):
            found = always if self._choice((ins.key, *values)) == 1 else None
        if not rest:
            return found
        return _joined(ins.mods[2], found, self._operand(rest[0], known, predicate=True), True)


def _compare(ins: Instr, one: AbstractValue, other: AbstractValue) -> int | None:
    """The comparison of setp, of two constants; None if it is not known."""
    kind = ins.mods[-1]
    if not (isinstance(one, int) and isinstance(other, int)) or ins.mods[1] not in COMPARED:
        return None
    if kind[0] not in "bsu" or not kind[1:].isdigit():
        return None
    bits = int(kind[1:])
    one, other = (x % (1 << bits) for x in (one, other))
    if kind[0] == "s":
        one, other = (x - (x >> bits - 1 << bits) for x in (one, other))
    return int(COMPARED[ins.mods[1]](one, other))


def _joined(
    name: str, one: AbstractValue | None, other: AbstractValue | None, logical: bool
) -> AbstractValue | None:
    """The result of and, or, xor; None if it is not known. logical: of predicates."""
    decides = {"and": 0, "or": 1 if logical else -1}.get(name)
    if decides is not None and decides in (one, other):
        return decides
    known = isinstance(one, int) and isinstance(other, int)
    return JOINED[name](one, other) if known else None
