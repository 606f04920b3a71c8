"""Loops of looks whose count comes to rest: it goes as far as a number and stays there.

`c = min(c + 1, 100); if (c > 100) break;` has a bound that is never reached, so the loop around a
look is a wait. Compilers write such counts in many ways (`c += ~c >> 31`), and what is known of
registers one by one (endless_looks.py) does not tell. So the loop is carried out with numbers. The
look fails in each round. The count goes on from what it begins with; where it only counts, it is
taken as far as the next number that an instruction of the loop compares it with.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from b200.effects import Moves
from b200.program.analysis import EXIT, Block, Op, reachable
from b200.program.module import TYPE_BITS, Imm, Not, Reg
from b200.registry import DTYPES, FULL, Pure

NEAR = 3  # rounds carried out on either side of a number
ROUNDS = 256  # in all, at most
Values = dict[str, int]


def comes_to_rest(blocks: list[Block], start: Block, look: Op) -> bool:
    """Whether the loop around a look that always fails goes round for ever, as what it counts comes
    to rest. False where that is not known: another loop, several counts.
    """
    inside = {
        i
        for i in reachable(blocks, start.index)
        if start.index in reachable(blocks, i) and i != EXIT
    }
    loop = [op for i in sorted(inside) for op in blocks[i].ops]
    counts = _counts(loop)
    if len(counts) != 1:
        return False
    (count,) = counts
    run = _Rounds(blocks, start, look, count)
    begins = {_constant(op) for b in blocks for op in b.ops if count in op.dsts and op not in loop}
    first = begins.pop() if len(begins) == 1 else None
    wrap = 1 << TYPE_BITS[count.type]
    numbers = {x.value % wrap for op in loop for x in op.ins.operands if isinstance(x, Imm)}
    numbers |= {0, wrap // 2}
    if first is None:  # whatever it is: some beginning may come to rest
        near = {(n + d) % wrap for n in numbers for d in range(-NEAR, NEAR + 1)}
        return any(run.round(n) == n for n in near)
    return _rests(run, first % wrap, sorted(numbers), wrap)


def _rests(run: _Rounds, value: int, numbers: list[int], wrap: int) -> bool:
    """Whether a count comes to rest before the loop ends."""
    before = 0  # what the round before has added
    for _ in range(ROUNDS):
        after = run.round(value)
        if after is None or after == value:
            return after is not None
        step = (after - value + wrap // 2) % wrap - wrap // 2
        ahead = [(n - value if step > 0 else value - n) % wrap for n in numbers]
        far = min(ahead) // abs(step) - NEAR if step == before else 1
        value, before = (value + step * max(far, 1)) % wrap, step
    return False


def _counts(loop: list[Op]) -> set[Reg]:
    """The registers that a round hands on to the next one, of those that decide where control
    goes.
    """
    deciding = {r.name for op in loop if op.entry is None for r in op.srcs}
    size = -1
    while size != (size := len(deciding)):
        for op in loop:
            if any(r.name in deciding for r in op.dsts):
                deciding |= {r.name for r in op.srcs}
    written: set[str] = set()
    carried: dict[str, Reg] = {}
    for op in loop:
        for r in op.srcs:
            if r.name in deciding and r.name not in written and r.type != "pred":
                carried[r.name] = r
        written |= {r.name for r in op.dsts if op.ins.pred is None}
    changed = {r.name for op in loop for r in op.dsts}
    return {r for name, r in carried.items() if name in changed and TYPE_BITS[r.type] in (32, 64)}


def _constant(op: Op) -> int | None:
    source = op.ins.operands[1] if isinstance(op.ins.effect, Moves) else None
    return source.value if isinstance(source, Imm) and op.ins.pred is None else None


class _Rounds:
    """One round of a loop after the other, from a look that fails to the same look."""

    def __init__(self, blocks: list[Block], start: Block, look: Op, count: Reg):
        self.blocks, self.start, self.look, self.count = blocks, start, look, count

    def round(self, value: int) -> int | None:
        """The count after a round that begins with `value`; None if the loop ends, or if it is not
        known whether it does.
        """
        values: Values = {self.count.name: value}
        values |= {r.name: 0 for r in self.look.dsts}
        block, begin = self.start, self.start.ops.index(self.look) + 1
        for _ in self.blocks:
            for op in block.ops[begin:]:
                if op.entry is not None:
                    _execute(op, values)
            after = self._after(block, values)
            if after is None or after == EXIT:
                return None
            block, begin = self.blocks[after], 0
            if block is self.start:
                for op in block.ops[: block.ops.index(self.look)]:
                    _execute(op, values)
                return values.get(self.count.name)
        return None

    @staticmethod
    def _after(block: Block, values: Values) -> int | None:
        """The block behind; None if it is not known."""
        last = block.ops[-1]
        if len(block.successors) == 1:
            return block.successors[0]
        if last.entry is not None or last.ins.mods[0] != "bra" or last.ins.pred is None:
            return None
        guard = values.get(last.ins.pred.name)
        if guard is None:
            return None
        target = next(iter(block.targets.values()))
        others = [s for s in block.successors if s != target] or [target]
        return target if bool(guard) != last.ins.negated else others[0]


def _execute(op: Op, values: Values) -> None:
    """Let an instruction change the values that are known."""
    guard = values.get(op.ins.pred.name) if op.ins.pred is not None else int(not op.ins.negated)
    if guard is not None and bool(guard) == op.ins.negated:
        return
    found: Any = None
    if guard is not None and isinstance(op.made, Pure) and op.made.vector is not None:
        found = _computed(op, op.made, values)
    for r, value in zip(op.dsts, found or [None] * len(op.dsts), strict=False):
        values.pop(r.name, None)
        if value is not None:
            values[r.name] = value


def _computed(op: Op, made: Pure, values: Values) -> list[int] | None:
    operands = op.ins.operands[1:]
    if len(operands) != len(made.ins) or len(op.dsts) != len(made.outs) or made.vector is None:
        return None
    given: list[Any] = []
    for x, kind in zip(operands, made.ins, strict=True):
        name = x.reg.name if isinstance(x, Not) else getattr(x, "name", "")
        value = x.value if isinstance(x, Imm) else values.get(name)
        if value is None:
            return None
        if kind == "pred":
            given.append(0 if bool(value) == isinstance(x, Not) else FULL)
        else:
            bits = TYPE_BITS[kind]
            given.append(np.full(32, value % (1 << bits), DTYPES[bits]))
    result = made.vector(*given)
    results = result if isinstance(result, tuple) else (result,)
    return [
        r & 1 if kind == "pred" else int(r[0]) for r, kind in zip(results, made.outs, strict=True)
    ]
