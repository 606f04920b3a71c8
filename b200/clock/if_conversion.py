"""Short branches that ptxas turns into guards.

A branch around a few instructions, or two short arms that meet again, cost SASS no branch: each
instruction gets the branch's predicate for a guard. So the loads behind them are in the same block
as those before, and all go to the front (order.py).

SASS of ptxas 13.0 for sm_100a, arms of 1 to 32 instructions: arithmetic and stores, or both, are
guarded up to 8 in one arm, and up to 7 in each of two. One arm that loads from global memory, or
has cp.async, is guarded where another load stands in the block before, or where the arm ends: its
latency is paid beside that one. A load that the condition comes from does not count before. Alone
the arm stays behind its branch. It may be longer: 13 and 16 instructions are guards, 16 loads of
16 bytes in public kernels are not, nor are 21. Up to 5 cp.async are guarded, not 6.

An arm that adds to global memory, exchanges between lanes, has a barrier or a division,
reciprocal or root that is not approximate, stays behind a branch. Where all lanes go the same way
6 is the most; which branch that is, is not asked here. What both arms compute is done once, before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from b200.clock import costs
from b200.effects import Copies, Effect, Jumps, Loads, Stores
from b200.program.analysis import make_op
from b200.program.module import Instr, Kernel, Label, Reg, Sym

ONE_ARM, TWO_ARMS = 8, 7  # the most instructions that are guarded, in each
ONE_ARM_OF_LOADS = 15  # ... in one that reads global memory
COPY_LENGTH = 3  # what a cp.async counts among them


def guarded(kernel: Kernel) -> list[Instr | Label]:
    """A kernel's body, its short branches as guards."""
    body = kernel.body
    references = Counter(_targets(kernel, body))
    found: list[Instr | Label] = []
    place = 0
    while place < len(body):
        new, after = _branch(body, place, references) or ([body[place]], place + 1)
        found += new
        place = after
    return found


def _targets(kernel: Kernel, body: Iterable[Instr | Label]) -> Iterable[str]:
    for names in kernel.branch_targets.values():
        yield from names
    for item in body:
        if isinstance(item, Instr) and item.mods[0] == "bra":
            yield from (o.name for o in item.operands if isinstance(o, Sym))


def _branch(
    body: Sequence[Instr | Label], place: int, references: Counter[str]
) -> tuple[list[Instr | Label], int] | None:
    """What takes the place of the branch at `place`, and where the rest begins; None where it
    stays.
    """
    branch = body[place]
    over = _target(branch)
    if over is None or not isinstance(branch, Instr) or branch.pred is None:
        return None
    start = place
    first = _arm(body, place + 1, branch.pred)
    place += 1 + len(first)
    skipped = _guard(first, branch.pred, not branch.negated)
    if _is(body, place, over):
        most = ONE_ARM
        if any(map(_is_far, first)):
            most = ONE_ARM_OF_LOADS if _is_beside_a_load(body, start, place) else 0
        if not 0 < _length(first, ()) <= most:
            return None
        return [*skipped, *_label(over, references)], place + 1
    end = _target(body[place]) if place < len(body) else None
    unconditional = end is not None and getattr(body[place], "pred", None) is None
    if not unconditional or not _is(body, place + 1, over) or references[over] > 1:
        return None
    second = _arm(body, place + 2, branch.pred)
    place += 2 + len(second)
    lengths = _length(first, second), _length(second, first)
    if not _is(body, place, end) or max(lengths) > TWO_ARMS:
        return None
    taken = _guard(second, branch.pred, branch.negated)
    return [*skipped, *taken, *_label(end, references)], place + 1


def _target(item: Instr | Label) -> str | None:
    """The label that a plain branch goes to."""
    if not isinstance(item, Instr) or item.mods[0] != "bra":
        return None
    return next((o.name for o in item.operands if isinstance(o, Sym)), None)


def _is(body: Sequence[Instr | Label], place: int, label: str | None) -> bool:
    item = body[place] if place < len(body) else None
    return isinstance(item, Label) and item.name == label


def _label(name: str | None, references: Counter[str]) -> list[Instr | Label]:
    """The label behind the arms, where others come to it, too."""
    assert name is not None
    return [Label(name)] if references[name] > 1 else []


def _arm(body: Sequence[Instr | Label], place: int, predicate: Reg) -> list[Instr]:
    """The instructions from `place` on that can be guarded by a predicate."""
    found: list[Instr] = []
    while place < len(body):
        item = body[place]
        if not isinstance(item, Instr) or not _can_be_guarded(item, predicate):
            break
        found.append(item)
        place += 1
    return found


def _can_be_guarded(ins: Instr, predicate: Reg) -> bool:
    op = make_op(ins)
    if op.entry is None or op.entry.may_block or ins.pred is not None:
        return False
    if any(register.name == predicate.name for register in op.dsts):
        return False
    effect = ins.effect
    if isinstance(effect, Copies):
        return _is_copy_by_lanes(effect)
    if isinstance(effect, Loads | Stores):
        return not effect.strong
    is_long = effect.pipe == "divide" or ins.mods[0] in ("rcp", "sqrt") and not ins.has("approx")
    return op.entry.style == "pure" and not is_long


def _is_copy_by_lanes(effect: Effect) -> bool:
    return isinstance(effect, Copies) and effect.signals == "cp.async" and not effect.bulk


def _is_far(ins: Instr) -> bool:
    """Whether an instruction reads what may be in global memory."""
    effect = ins.effect
    loads = isinstance(effect, Loads) and effect.space in ("global", "generic")
    return loads or _is_copy_by_lanes(effect)


def _is_beside_a_load(body: Sequence[Instr | Label], branch: int, end: int) -> bool:
    """Whether a load that the condition does not need stands in the block before a branch, or one
    in the block that begins at the label `end`.
    """
    needed: set[str] = set()
    for ins in _block_before(body, branch + 1):
        op = make_op(ins)
        results = {register.name for register in op.dsts}
        if ins is body[branch] or results & needed:
            needed |= {register.name for register in op.srcs}
        elif _is_far(ins):
            return True
    return any(map(_is_far, _block_behind(body, end + 1)))


def _block_before(body: Sequence[Instr | Label], end: int) -> Iterator[Instr]:
    """The instructions of a block that ends before `end`, the last one first."""
    for place in range(end - 1, -1, -1):
        item = body[place]
        if not isinstance(item, Instr) or place < end - 1 and isinstance(item.effect, Jumps):
            return
        yield item


def _block_behind(body: Sequence[Instr | Label], place: int) -> Iterator[Instr]:
    for item in body[place:]:
        if not isinstance(item, Instr) or isinstance(item.effect, Jumps):
            return
        yield item


def _length(arm: Sequence[Instr], other: Sequence[Instr]) -> int:
    """How many instructions an arm is in SASS, without those that the other has, too. Copies,
    constants and parameters are none.
    """
    none = (costs.is_copy, costs.is_constant, costs.is_parameter)
    common = set(_values(other))
    return sum(
        COPY_LENGTH if _is_copy_by_lanes(ins.effect) else 1
        for ins, value in zip(arm, _values(arm), strict=True)
        if value not in common and not any(is_one(ins) for is_one in none)
    )


def _values(arm: Sequence[Instr]) -> list[object]:
    """What each instruction of an arm computes, in terms of what is there before it."""
    known: dict[str, object] = {}
    found: list[object] = []
    for ins in arm:
        op = make_op(ins)
        outputs = {register.name for register in op.dsts}
        inputs = tuple(known.get(r.name, r.name) for r in op.srcs)
        rest = tuple(o for o in ins.operands if not isinstance(o, Reg))
        pure = op.entry is not None and op.entry.style == "pure"
        value = (ins.opcode, inputs, rest) if pure else object()
        known.update(dict.fromkeys(outputs, value))
        found.append(value)
    return found


def _guard(arm: list[Instr], predicate: Reg, negated: bool) -> list[Instr]:
    return [replace(ins, pred=predicate, negated=negated) for ins in arm]
