"""Packs independent instructions of one kind in a block into one numpy call.

An epilogue does the same with each of many registers, and a numpy call on 32 n lanes costs hardly
more than one on 32 lanes. So the instructions of a block are reordered until alike ones come
together. This is sound for three reasons:

*   Only stateless instructions move (`Pure`, b200/registry.py): they read and write registers, and
    nothing observes when. All others keep their order, and so do those that the writer gives a
    fixed place. If one of two instructions writes a register that the other reads or writes, the
    two keep their order.
*   Two instructions are alike if they have the same opcode, the same types of registers and the
    same immediates at the same places. A factory looks at nothing else of an instruction, so what
    it made for one of them serves all.
*   The array form of a stateless instruction works on each element by itself, so arrays that are
    joined give results that are joined. tests/b200/chip/isa_support.py checks this for each
    instruction that it tests.

A machine that gives instructions a time, or records what they do, leaves their order alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable

from b200.program.analysis import Op
from b200.program.module import Imm, Operand, Reg, Vec
from b200.registry import Pure

LEAST = 4  # instructions that one call pays for


def kind_of(op: Op) -> Hashable | None:
    """A key that is equal for alike instructions; None for an instruction that is never packed."""
    ins, made = op.ins, op.made
    if op.entry is None or not isinstance(made, Pure) or ins.pred is not None:
        return None
    one_result = len(made.outs) == 1 and isinstance(ins.operands[0], Reg)
    if not one_result or "pred" in (*made.ins, *made.outs) or made.vector is None:
        return None
    operands = tuple(map(_shape, ins.operands))
    return ins.mods, made.ins, made.outs, operands


def _shape(operand: Operand) -> Hashable:
    """What instructions that are alike have in common in an operand."""
    if isinstance(operand, Imm):
        return operand
    if isinstance(operand, Reg):
        return operand.type
    if isinstance(operand, Vec):
        return tuple(map(_shape, operand.items))
    return type(operand)


def arrange(
    ops: list[Op], kind: Callable[[Op], Hashable | None], stays: Callable[[Op], bool]
) -> list[list[Op]]:
    """The instructions of a block, reordered so that alike ones come together. Each list has one
    instruction, or LEAST or more that are alike and independent.

    kind: gives an instruction's key (kind_of), None for one that is never packed. stays: whether an
    instruction keeps its order among the others that do.
    """
    kinds = [kind(op) for op in ops]
    left = Counter(kinds)
    needed, waiting = _order(ops, stays)
    ready = [i for i, n in enumerate(needed) if n == 0]
    found: list[list[Op]] = []
    while ready:
        chosen = _choose(ready, kinds, left)
        ready = [i for i in ready if i not in chosen]
        found.append([ops[i] for i in chosen])
        left.subtract(kinds[i] for i in chosen)
        for i in chosen:
            for j in waiting[i]:
                needed[j] -= 1
                if needed[j] == 0:
                    ready.append(j)
        ready.sort()
    return found


def _choose(
    ready: list[int], kinds: list[Hashable | None], left: Counter[Hashable | None]
) -> list[int]:
    """What comes next of the instructions that may: first those that will not be many, for which
    others may wait; then the largest group; else one of a kind of which few are left.
    """
    alone = [i for i in ready if kinds[i] is None or left[kinds[i]] < LEAST]
    if alone:
        return alone[:1]
    groups: dict[Hashable, list[int]] = {}
    for i in ready:
        groups.setdefault(kinds[i], []).append(i)
    largest = max(groups.values(), key=len)
    return largest if len(largest) >= LEAST else [min(ready, key=lambda i: left[kinds[i]])]


def _order(ops: list[Op], stays: Callable[[Op], bool]) -> tuple[list[int], list[list[int]]]:
    """(how many instructions each one needs, which ones need it), by their numbers."""
    before: list[set[int]] = [set() for _ in ops]
    wrote: dict[str, int] = {}
    read: dict[str, list[int]] = {}
    last: int | None = None
    for i, op in enumerate(ops):
        for register in op.srcs:
            if register.name in wrote:
                before[i].add(wrote[register.name])
            read.setdefault(register.name, []).append(i)
        for register in op.dsts:
            if register.name in wrote:
                before[i].add(wrote[register.name])
            before[i].update(read.pop(register.name, ()))
            wrote[register.name] = i
        if stays(op):
            if last is not None:
                before[i].add(last)
            last = i
        before[i].discard(i)
    waiting: list[list[int]] = [[] for _ in ops]
    for i, those in enumerate(before):
        for j in those:
            waiting[j].append(i)
    return [len(those) for those in before], waiting
