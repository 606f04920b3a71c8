"""Whether a loop of looks can end although a look always answers the same.

The loop is carried out over what is known of its registers: constants, and what is not known. Of
that, two kinds: what the loop itself changes (a count of tries, a clock) may become anything; what
it does not change, what other looks answer, and what a flag's value is compared with, stays as it
is, whatever it is. The loop is a wait if some choice of the second kind keeps control inside.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from itertools import product

from b200.effects import Loads, WaitsForPhase
from b200.program.analysis import EXIT, Block, Op
from b200.program.module import CLOCKS, Imm, Instr, Not, Reg, Special

CHOICES = 8  # predicates of the second kind, at most: more are taken for a wait

Value = int | str  # a constant (a predicate: 0 or 1), or one of these:
ANY = "any"  # what the loop changes
STAYS = "stays"  # what it does not change
LOOKED = "looked"  # what comes of the value of a flag
Known = dict[str, Value]

COMPARED = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}
JOINED = {"and": operator.and_, "or": operator.or_, "xor": operator.xor}


def ends_only_by(
    blocks: list[Block], start: Block, look: Instr, loop: set[int], behind: int
) -> bool:
    """Whether control comes from a look at an mbarrier, in block `start`, to block `behind` only
    once the look has passed. loop: the blocks before that.
    """
    changed = {r.name for i in loop for op in blocks[i].ops for r in op.dsts}
    asked = next(op for op in start.ops if op.ins is look)
    return not _Run(blocks, asked, changed, [], None).comes(start, {behind})


class _TooMany(Exception):
    """More choices than are tried."""


def may_end(blocks: list[Block], start: Block, look: Op, loop: set[int], behind: set[int]) -> bool:
    """Whether control comes from a look, in block `start`, to one of the blocks `behind`, whatever
    the look always answers. loop: the blocks that the answer decides over.
    """
    changed = {r.name for i in loop for op in blocks[i].ops for r in op.dsts}
    keys: list[object] = []
    every = (_Run(blocks, look, changed, keys, c) for c in product((0, 1), repeat=CHOICES))
    try:
        return all(run.comes(start, behind) for run in every)
    except _TooMany:
        return False


class _Run:
    """One choice of what stays. keys: what is chosen, in the order in which it was met. chosen:
    None if the look fails, and all else is open.
    """

    def __init__(
        self,
        blocks: list[Block],
        look: Op,
        changed: set[str],
        keys: list[object],
        chosen: tuple[int, ...] | None,
    ):
        self.blocks, self.look, self.changed = blocks, look, changed
        self.keys, self.chosen = keys, chosen

    def comes(self, start: Block, behind: set[int]) -> bool:
        first = start.ops.index(self.look)
        entry: dict[int, Known] = {}
        work: list[tuple[Block, int, Known]] = [(start, first, {})]
        while work:
            block, begin, known = work.pop()
            known = dict(known)
            for op in block.ops[begin:]:
                self._step(op, known)
            for after in self._ways(block, known):
                if after in behind:
                    return True
                if after != EXIT:
                    before = entry.get(after)
                    new = dict(known) if before is None else self._joined(before, known)
                    if new != before:
                        entry[after] = new
                        work.append((self.blocks[after], 0, new))
        return False

    def _joined(self, one: Known, other: Known) -> Known:
        """What is known where two ways meet."""
        found = {}
        for name in one.keys() | other.keys():
            mine, its = self._of(name, one), self._of(name, other)
            found[name] = mine if mine == its else ANY
        return found

    def _of(self, name: str, known: Known) -> Value:
        return known.get(name, ANY if name in self.changed else STAYS)

    def _choice(self, key: object) -> Value:
        if self.chosen is None:
            return 0 if key == self.look.ins.key else ANY
        if key not in self.keys:
            if len(self.keys) == CHOICES:
                raise _TooMany
            self.keys.append(key)
        return self.chosen[self.keys.index(key)]

    def _predicate(self, register: Reg, known: Known) -> Value:
        value = self._of(register.name, known)
        return self._choice(register.name) if value == STAYS else value

    def _operand(self, x: object, known: Known, predicate: bool = False) -> Value:
        if isinstance(x, Imm):
            return x.value
        if isinstance(x, Not):
            value = self._predicate(x.reg, known)
            return value if isinstance(value, str) else 1 - value
        if isinstance(x, Reg):
            return self._predicate(x, known) if predicate else self._of(x.name, known)
        return ANY if isinstance(x, Special) and x.name in CLOCKS else STAYS

    def _guard(self, ins: Instr, known: Known) -> Value:
        if ins.pred is None:
            return 1
        value = self._predicate(ins.pred, known)
        return value if isinstance(value, str) or not ins.negated else 1 - value

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

    def _values(self, op: Op, known: Known) -> dict[str, Value]:
        """What an instruction leaves in its registers."""
        ins = op.ins
        if isinstance(ins.effect, WaitsForPhase):
            return {r.name: self._choice(ins.key) for r in op.dsts}
        if isinstance(ins.effect, Loads):
            return {r.name: LOOKED for r in op.dsts}
        if len(op.dsts) == 1 and (value := self._computed(op, known)) is not None:
            return {op.dsts[0].name: value}
        found = self._unknown(op, known)
        made = zip(op.dsts, getattr(op.made, "outs", ()), strict=False)
        of = {r.name: kind for r, kind in made}
        return {
            r.name: self._choice((ins.key, r.name))
            if of.get(r.name) == "pred" and found != ANY
            else found
            for r in op.dsts
        }

    def _unknown(self, op: Op, known: Known) -> Value:
        inputs = [self._of(r.name, known) for r in op.srcs]
        inputs += [self._operand(x, known) for x in op.ins.operands if isinstance(x, Special)]
        mine = {r.name for r in op.dsts} & {r.name for r in op.srcs}
        if LOOKED in inputs:
            return LOOKED
        return ANY if ANY in inputs or mine and op.ins.pred is None else STAYS

    def _computed(self, op: Op, known: Known) -> Value | None:
        """The result of a simple instruction; None if it is not known."""
        ins = op.ins
        name, rest = ins.mods[0], ins.operands[1:]
        if name == "mov" and len(rest) == 1:
            return self._operand(rest[0], known)
        if name == "selp":
            which = self._operand(rest[2], known, predicate=True)
            one, other = (self._operand(x, known) for x in rest[:2])
            if which in (0, 1):
                return one if which else other
            return one if one == other else None
        logical = ins.mods[-1] == "pred"
        if name not in ("setp", "not", *JOINED) or name == "not" and not logical:
            return None
        values = [self._operand(x, known, predicate=logical) for x in rest]
        if name in ("and", "or") and (0 if name == "and" else 1) in values:
            return 0 if name == "and" else 1
        numbers = [value for value in values if isinstance(value, int)]
        if len(numbers) < len(values):
            return None
        if name == "not":
            return 1 - numbers[0]
        if name == "setp":
            same = len(numbers) == 2 and ins.mods[1] in COMPARED
            return int(COMPARED[ins.mods[1]](*numbers)) if same else None
        return JOINED[name](*numbers)
