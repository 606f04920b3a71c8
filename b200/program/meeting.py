"""Where lanes of a warp wait for each other: instructions with `.sync`.

Outside of divergent code all live lanes of a warp execute an instruction together, and nothing has
to wait. `places` finds the others: a block is cut in front of each, and `meeting` puts the wait
(Fragment.meet) around its run function.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol, TypeAlias, cast

import numpy as np

from b200.program.analysis import Block, Op, Uniformity
from b200.program.flow import EXIT, reachable
from b200.program.module import TYPE_BITS, Instr, Label, Not, Operand, Reg, Sym, Vec
from b200.registry import DTYPES, FULL, LaneValues, Run, active, as_bools, as_mask, lanes

Kind: TypeAlias = (
    "str | tuple[Kind, ...]"  # the PTX type of an operand, of each element of a vector
)
# Arguments of a run function (registry.py): the form of the instruction says what each is.
Arguments: TypeAlias = tuple[Any, ...]
READS = ("ld", "ldu", "atom")
MEMBERMASK = ("shfl", "vote", "match", "redux", "elect")  # the last operand names the lanes


class Meets(Protocol):
    """A fragment of a warp, which waits at a place for the others."""

    def meet(self, place: MeetingPlace, mask: int, args: Arguments, run: Run) -> Any: ...


class MeetingPlaces(NamedTuple):
    """Instructions at which lanes may come in parts, by `Instr.key`.

    wait: these wait. alone: those of them that are a block by themselves, because the lanes of one
    fragment may name different lanes. guarded: a guard decides which lanes execute them.
    """

    wait: frozenset[int] = frozenset()
    alone: frozenset[int] = frozenset()
    guarded: frozenset[int] = frozenset()


def has_membermask(ins: Instr) -> bool:
    """Whether the last operand says which lanes take part."""
    return ins.mods[0] in MEMBERMASK or ins.mods[:2] == ("bar", "warp")


def is_meeting(op: Op) -> bool:
    """Whether the lanes of a warp execute an instruction together. Barriers of the CTA count lanes
    themselves (chip/sync/barriers.py).
    """
    ins = op.ins
    if op.entry is None or op.entry.style != "warp" or not ins.has("sync"):
        return False
    return ins.mods[:2] == ("bar", "warp") or ins.mods[0] not in ("bar", "barrier")


def places(blocks: list[Block], info: Uniformity) -> MeetingPlaces:
    """The instructions of a kernel at which parts of a warp wait."""
    meetings = [(block.index, op) for block in blocks for op in block.ops if is_meeting(op)]
    if not meetings:
        return MeetingPlaces()
    partial = _in_parts(blocks, info, {index for index, _ in meetings})
    guarded = {op.ins.key for _, op in meetings if op.ins.pred and info.is_varying(op.ins.pred)}
    wait = {op.ins.key for index, op in meetings if index in partial} | guarded
    alone = {
        op.ins.key
        for _, op in meetings
        if op.ins.key in wait and has_membermask(op.ins) and info.members_vary(op)
    }
    return MeetingPlaces(frozenset(wait), frozenset(alone), frozenset(guarded))


def _in_parts(blocks: list[Block], info: Uniformity, meetings: set[int]) -> set[int]:
    """Blocks that a part of a warp may execute: the arms of divergent branches. Lanes that stand
    where arms meet go on by themselves if others wait for them: so do those after an arm in which
    lanes can wait for others.
    """
    found: set[int] = set()
    for index in info.divergent:
        stop = info.ipdom[index]
        arms = {b for s in blocks[index].successors for b in reachable(blocks, s, stop)}
        found |= arms
        if stop != EXIT and (arms & meetings or may_poll(blocks, arms)):
            found |= reachable(blocks, stop)
    return found


def may_poll(blocks: list[Block], region: set[int]) -> bool:
    """Whether control can go round within a region and read memory there."""
    left = dict.fromkeys(region)
    while ends := [b for b in left if not any(s in left for s in blocks[b].successors)]:
        for b in ends:
            del left[b]
    instructions = (op.ins for b in left for op in blocks[b].ops)
    return any(ins.mods[0] in READS and not ins.has("param", "local") for ins in instructions)


Guarded: TypeAlias = tuple[Instr, Instr, Label]  # the branch around it, itself unguarded, behind it


def guards_as_branches(
    body: Iterable[Instr | Label], keys: frozenset[int], made: dict[int, Guarded]
) -> list[Instr | Label]:
    """A kernel's body in which a branch leads around each of these instructions where its guard
    did. made: the new instructions, for the next time.
    """
    items: list[Instr | Label] = []
    for item in body:
        if isinstance(item, Instr) and item.key in keys:
            if item.key not in made:
                label = Label(f"$after.{len(made)}")
                to, negated = (Sym(label.name),), not item.negated
                over = replace(item, opcode="bra", operands=to, negated=negated)
                made[item.key] = (over, replace(item, pred=None, negated=False), label)
            items += made[item.key]
        else:
            items.append(item)
    return items


def groups_of(mask: int, members: LaneValues) -> dict[int, int]:
    """Membermask -> the lanes of `mask` that give it."""
    if not isinstance(members, np.ndarray):
        return {members & FULL: mask}
    values = dict.fromkeys(int(members[i]) for i in active(mask))
    return {value: mask & as_mask(members == value) for value in values}


@dataclass(frozen=True)
class MeetingPlace:
    """An instruction where lanes meet.

    key: the same for instructions that join each other: with a membermask all of the same opcode
    (PTX ISA 9.7.9.8: "the same qualifiers"), else only the instruction itself. kinds: the type of
    each operand, a tuple for a vector. meet: the block where lanes that name different lanes meet.
    """

    ins: Instr
    key: object
    masked: bool
    kinds: tuple[Kind, ...]
    meet: int

    def groups(self, mask: int, args: Arguments) -> dict[int, int]:
        """Membermask -> the lanes of `mask` that give it."""
        return groups_of(mask, args[-1] if self.masked else FULL)

    def joined(self, parts: list[tuple[int, Arguments]]) -> Arguments:
        """The operands of all parts of a meeting: each part is (lanes, operands)."""
        masks = [mask for mask, _ in parts]
        columns = zip(*(args for _, args in parts), strict=True)
        return tuple(_joined(kind, masks, column) for kind, column in zip(self.kinds, columns))


def _joined(kind: Kind, masks: list[int], values: Arguments) -> Any:
    """One operand of several groups of lanes."""
    if isinstance(kind, tuple):
        columns = zip(*values, strict=True)
        return tuple(_joined(k, masks, column) for k, column in zip(kind, columns))
    first = values[0]
    if all(type(v) is type(first) and not isinstance(v, np.ndarray) and v == first for v in values):
        return first
    if kind == "pred":
        found = first & ~sum(masks[1:])
        for mask, value in zip(masks[1:], values[1:]):
            found |= value & mask
        return found
    arrays = [cast(np.ndarray, v).dtype for v in values if isinstance(v, np.ndarray)]
    dtype = arrays[0] if arrays else DTYPES[TYPE_BITS.get(kind, 64)]
    found = lanes(first, dtype)
    for mask, value in zip(masks[1:], values[1:]):
        found = np.where(as_bools(mask), lanes(value, dtype), found)
    return found


def kind_of_operand(operand: Operand) -> Kind:
    """The PTX type of an operand, a tuple of them for a vector; addresses count as b64."""
    if isinstance(operand, Vec):
        return tuple(kind_of_operand(o) for o in operand.items)
    if isinstance(operand, Not):
        return "pred"
    return operand.type if isinstance(operand, Reg) else "b64"


def meeting(ins: Instr, destinations: int, run: Run, meet: int) -> Run:
    """The run function of an instruction at which lanes wait for each other."""
    masked = has_membermask(ins)
    kinds = tuple(kind_of_operand(o) for o in ins.operands[destinations:])
    place = MeetingPlace(ins, ins.opcode if masked else ins.key, masked, kinds, meet)

    def met(w: Meets, mask: int, *args: Any) -> Any:
        return w.meet(place, mask, args, run)

    return met
