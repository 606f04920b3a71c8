"""How an instruction with state is carried out in n CTAs at once, by its effect.

An effect that is not in FORMS has no such form: a kernel with it runs its CTAs one after the other.
`each` is the form of whatever only concerns a CTA by itself: it calls the run function of one CTA
for each of them, with its part of the operands.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from b200 import effects as e
from b200.chip.abreast import accesses, updates
from b200.chip.abreast.accesses import AccessSeen
from b200.chip.abreast.dropped import NotAbreast
from b200.chip.abreast.updates import part_of
from b200.chip.alu.warp import shuffle_sources
from b200.program.analysis import Op
from b200.program.meeting import Kind, kind_of_operand
from b200.program.module import TYPE_BITS, Addr, Vec
from b200.program.pack_writer import flat
from b200.registry import DTYPES, FULL, LaneValues, Run, active, as_mask

if TYPE_CHECKING:
    from b200.chip.abreast.machine import AbreastFragment
    from b200.chip.fragment import Fragment
    from b200.program.module import Reg

AbreastForm = Callable[[Op, AccessSeen | None], Run]


def form_of(op: Op, seen: AccessSeen | None = None) -> Run:
    """The run function of an instruction in CTAs abreast. seen: called with (warp, mask,
    AccessPlace, other arguments) before a load or a store. Raises NotAbreast if there is none.
    """
    make = FORMS.get(type(op.ins.effect))
    if make is None:
        raise NotAbreast(f"{op.ins.opcode} has no form for CTAs abreast")
    return make(op, seen)


def flat_kinds(op: Op) -> list[Kind]:
    """The types of the arguments of a run function; a tuple for a vector, "pred" for a mask."""
    kinds: list[Kind] = []
    for operand in op.arguments:
        if isinstance(operand, Addr) and operand.coords:
            raise NotAbreast(f"{op.ins.opcode} has coordinates")
        kinds.append(kind_of_operand(operand))
    return kinds


# --- forms ----------------------------------------------------------------------------------------


def each(op: Op, seen: AccessSeen | None = None) -> Run:
    """Each CTA by itself."""
    ins, entry, narrow, kinds = op.ins, op.entry, op.made, flat_kinds(op)
    assert entry is not None
    n = op.results
    outs = flat(ins.operands[:n])
    if ins.dual and len(outs) == 1:
        raise NotAbreast(f"{ins.opcode} has one register for two results")
    whole = n > 1 or ins.dual or n == 1 and isinstance(ins.operands[0], Vec)
    by_lane = entry.style == "lane"

    def of_one(seat: Fragment, m: int, args: list[Any]) -> Any:
        if not by_lane:
            return narrow(seat, m, *args)
        for lane in active(m):
            narrow(seat, lane, *(_of_lane(k, a, lane) for k, a in zip(kinds, args)))

    def run(warp: AbreastFragment, mask: int, *args: Any):
        found: list[tuple[int, Any]] = []
        for i, seat, m in warp.machine.seats(warp, mask):
            result = of_one(seat, m, [part_of(k, a, i) for k, a in zip(kinds, args)])
            found.append((i, result if whole else (result,)))
            if seat.spin is None:
                warp.spin = None
        if not outs:
            return None
        columns = [
            _joined(reg, [(i, row[j]) for i, row in found], warp.machine.width)
            for j, reg in enumerate(outs)
        ]
        return tuple(columns) if whole else columns[0]

    if by_lane and outs:
        raise NotAbreast(f"{ins.opcode} gives each lane a result")
    return run


def _of_lane(kind: Kind, value: Any, lane: int) -> Any:
    if isinstance(kind, tuple):
        return tuple(_of_lane(k, v, lane) for k, v in zip(kind, value, strict=True))
    if isinstance(value, np.ndarray):
        return int(value[lane])
    return value >> lane & 1 != 0 if kind == "pred" else value


def _joined(reg: Reg | None, parts: list[tuple[int, Any]], width: int) -> Any:
    """The results of CTAs in one register."""
    if reg is None:
        return None
    if reg.type == "pred":
        return sum((value & FULL) << 32 * i for i, value in parts)
    out = np.zeros(width, DTYPES[TYPE_BITS[reg.type]])
    for i, value in parts:
        out[32 * i : 32 * i + 32] = value
    return out


def _load(op: Op, seen: AccessSeen | None) -> Run:
    effect = op.ins.effect
    assert isinstance(effect, e.Loads)
    if effect.space == "param":
        return _parameters(op)
    return accesses.load(op.ins, op.made, seen)


def _parameters(op: Op) -> Run:
    """All CTAs have the same parameters; lanes may read different ones."""
    common, alone = op.made, each(op)

    def run(warp: AbreastFragment, mask: int, address: LaneValues, *rest: Any):
        differ = isinstance(address, np.ndarray)
        return (alone if differ else common)(warp, mask, address, *rest)

    return run


def _barrier(op: Op, seen: AccessSeen | None) -> Run:
    """Whole warps of all CTAs that still have them come to the barrier of the CTA that stands for
    all.
    """
    narrow = op.made
    if "red" in op.ins.mods:
        raise NotAbreast("bar.red")

    def run(warp: AbreastFragment, mask: int, *args: Any):
        if not all(isinstance(x, int) for x in args):
            raise NotAbreast("a barrier whose operands differ")
        if mask != warp.state.live or warp.mask != mask:
            raise NotAbreast("a part of a warp comes to a barrier")
        return narrow(warp, mask, *args)

    return run


def _exchange(op: Op, seen: AccessSeen | None) -> Run:
    if op.ins.mods[0] == "shfl":
        return _shuffle(op)
    if op.ins.mods[:2] == ("vote", "sync") and op.ins.mods[2] in ("ballot", "any", "all"):
        return _vote(op)
    return each(op)


def _whole_ctas(warp: AbreastFragment, mask: int, members: LaneValues) -> bool:
    """Whether all lanes of each CTA that is here take part."""
    return isinstance(members, int) and members & FULL == FULL and warp.machine.has_whole_ctas(mask)


def _shuffle(op: Op) -> Run:
    """One gather, where all lanes of a CTA take part and all CTAs name the same lanes."""
    ins, alone = op.ins, each(op)
    mode = ins.one("up", "down", "bfly", "idx")

    def run(warp: AbreastFragment, mask: int, *args: LaneValues):
        a, b, c, members = args
        n = warp.machine.n
        lanes = _same_row(b, n)
        if lanes is None or isinstance(c, np.ndarray) or not _whole_ctas(warp, mask, members):
            return alone(warp, mask, *args)
        source, valid = shuffle_sources(mode, lanes, c)
        wide = a if isinstance(a, np.ndarray) else np.full(warp.machine.width, a, np.uint32)
        d = wide.reshape(n, 32)[:, source].reshape(-1)
        return (d, as_mask(valid) * warp.machine.every_cta) if ins.dual else d

    return run


def _same_row(value: LaneValues, n: int) -> LaneValues | None:
    """An operand that is the same in all CTAs as one of them has it; None if it is not."""
    if not isinstance(value, np.ndarray):
        return value
    rows = value.reshape(n, 32)
    return rows[0] if (rows == rows[0]).all() else None


def _vote(op: Op) -> Run:
    """A word for each CTA, where all its lanes take part."""
    mode, alone = op.ins.mods[2], each(op)

    def run(warp: AbreastFragment, mask: int, p: int, members: LaneValues):
        if not _whole_ctas(warp, mask, members):
            return alone(warp, mask, p, members)
        machine = warp.machine
        words = machine.words(p & mask)
        if mode == "ballot":
            return np.repeat(words, 32)
        holds = words != 0 if mode == "any" else words == FULL
        return as_mask(np.repeat(holds, 32)) & mask

    return run


def _nothing(op: Op, seen: AccessSeen | None) -> Run:
    """What has no effect in a machine in which one instruction is carried out after the other."""
    return op.made


FORMS: dict[type[e.Effect], AbreastForm] = {
    e.Loads: _load,
    e.Stores: lambda op, seen: accesses.store(op.ins, seen),
    e.Updates: lambda op, seen: updates.update(op, flat_kinds(op), each(op), seen),
    e.MeetsInCta: _barrier,
    e.Exchanges: _exchange,
    **dict.fromkeys(
        (e.MeetsInWarp, e.Elects, e.LooksAtLanes, e.Transposes, e.MultipliesInWarp), each
    ),
    **dict.fromkeys((e.MatrixLoads, e.MatrixStores, e.Copies), each),
    **dict.fromkeys((e.FencesMemory, e.FencesProxy, e.Hints, e.Discards, e.Sleeps), _nothing),
    **dict.fromkeys((e.CommitsGroup, e.WaitsForGroups), _nothing),
}
