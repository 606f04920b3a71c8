"""Communication between the lanes of a warp (PTX ISA 9.7.9.8, 9.7.13).

`.sync` names the lanes that take part (membermask). Who executes an instruction has waited for the
named lanes that have not exited (Fragment.meet). Lanes executed at once may name different lanes:
each group of lanes that gives the same membermask is by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from b200.chip.alu.rounding import FLOATS, is_nan, order_key
from b200.effects import CountsEvents, Elects, Exchanges, LooksAtLanes, MeetsInWarp, Sleeps
from b200.errors import Fault
from b200.program.meeting import groups_of
from b200.program.module import Imm, Instr
from b200.registry import (
    FULL,
    UFUNCS,
    LaneValues,
    Run,
    active,
    as_bools,
    as_mask,
    lanes,
    lanes_text,
    no_effect,
    warp,
)

if TYPE_CHECKING:
    from b200.chip.fragment import Fragment
    from b200.chip.state import WarpState

LANE = np.arange(32)


def in_groups(one: Run, predicate: int | None = None) -> Run:
    """A run function that executes `one(w, lanes, *operands)` for each group of lanes that give the
    same membermask, the last operand. predicate: the result that is one, of several; 0 of one.
    Raises Fault for lanes that are not in their own membermask.
    """

    def run(warp: Fragment, mask: int, *args: Any):
        *operands, members = args
        if isinstance(members, int) and members & FULL == mask:
            return one(warp, mask, *operands)
        groups = groups_of(mask, members)
        for value, own in groups.items():
            if own & ~value:
                raise Fault(_outsiders(own, value))
            if others := value & mask & ~own:
                raise Fault(
                    f"membermask {value:#010x} names lanes {others:#010x}, which give different"
                    f" membermasks; it is that of lanes {own:#010x}"
                )
            _check_present(warp, mask, value)
        if len(groups) == 1:
            return one(warp, mask, *operands)
        results = [one(warp, own, *operands) for own in groups.values()]
        if not isinstance(results[0], tuple):
            return _of_groups(results, groups, predicate == 0)
        return tuple(
            _of_groups(column, groups, i == predicate) for i, column in enumerate(zip(*results))
        )

    return run


def _of_groups(results: Sequence[Any], groups: dict[int, int], predicate: bool) -> Any:
    """The results of groups of lanes as one."""
    if results[0] is None:
        return None
    if predicate:
        return sum(result & own for result, own in zip(results, groups.values(), strict=True))
    found = np.zeros(32, np.uint32)
    for result, own in zip(results, groups.values(), strict=True):
        found = np.where(as_bools(own), lanes(result, np.uint32), found)
    return found


def _outsiders(mask: int, members: int) -> str:
    return f"lanes {mask & ~members:#010x} execute it but are not in membermask {members:#010x}"


def _check_present(warp: Fragment, mask: int, members: int) -> None:
    """Fault if a lane of the membermask is neither here nor gone."""
    missing = members & ~mask & warp.state.live
    if missing:
        raise Fault(
            f"membermask {members:#010x} names lanes {missing:#010x}, which have diverged; here are"
            f" {mask:#010x}"
        )


def _check_groups(warp: Fragment, mask: int, members: LaneValues, ins: Instr) -> None:
    """The membermasks of a shuffle. Undefined for a lane that is not in its own; where lanes have
    not diverged, ptxas for sm_100a makes a SHFL of it, which has no membermask and moves values
    among the lanes that are here.
    """
    for value, own in groups_of(mask, members).items():
        if own & ~value:
            warp.machine.undefined(
                _outsiders(own, value), "a membermask with every lane that executes it", ins
            )
        _check_present(warp, mask, value)


def _without_source(warp: Fragment, mask: int, source: np.ndarray, ins: Instr) -> int:
    """The lanes that a shuffle gives the value of a lane that has exited: it is undefined. A source
    that is alive and does not take part is a fault.
    """
    absent = ~as_bools(mask)[source] & as_bools(mask)
    if not absent.any():
        return 0
    gone = as_mask(absent & ~as_bools(warp.state.live)[source])
    for lane in active(as_mask(absent) & ~gone):
        raise Fault(f"lane {lane} reads lane {int(source[lane])}, which does not take part")
    sources = sum({1 << int(source[lane]) for lane in active(gone)})
    warp.machine.undefined(
        f"a shuffle takes values of {lanes_text(sources)}, which {_left(warp.state, sources)}: "
        f"they are undefined, in {lanes_text(gone)}",
        "a membermask of the lanes that are left, and a source among them; or let all lanes come "
        "here, those past the end with a neutral value",
        ins,
        nobodys="shared",
    )
    return gone


def _left(state: WarpState, gone: int) -> str:
    """Where lanes have left the kernel."""
    places = dict.fromkeys(str(ins.loc) for mask, ins in state.exits if mask & gone and ins.loc)
    return f"have returned at {', '.join(places)}" if places else "have exited or do not exist"


def shuffle_sources(mode: str, b: LaneValues, c: LaneValues) -> tuple[np.ndarray, np.ndarray]:
    """Source lane of each lane and whether it is in range, by the clamp and segment mask in c."""
    all_b, all_c = (lanes(x, np.uint32).astype(np.int64) for x in (b, c))
    amount, clamp, segment = all_b & 31, all_c & 31, all_c >> 8 & 31
    first = LANE & segment
    last = first | (clamp & ~segment & 31)
    if mode == "up":
        source = LANE - amount
    elif mode == "down":
        source = LANE + amount
    elif mode == "bfly":
        source = LANE ^ amount
    else:
        source = first | (amount & ~segment)
    valid = source >= last if mode == "up" else source <= last
    return np.where(valid, source, LANE), valid


@warp("shfl.sync", states=Exchanges(pipe="shuffle"), out=1)
def shfl(ins: Instr) -> Run:
    """shfl.sync.{up,down,bfly,idx}.b32 d{|p}, a, b, c, membermask.

    A lane whose source is out of range gets its own value and p false. Reading a lane that does not
    take part is undefined; here that is a fault if it is alive, and said if it has exited.
    """
    mode = ins.one("up", "down", "bfly", "idx")

    def run(
        warp: Fragment, mask: int, a: LaneValues, b: LaneValues, c: LaneValues, members: LaneValues
    ):
        _check_groups(warp, mask, members, ins)
        source, valid = shuffle_sources(mode, b, c)
        d = lanes(a, np.uint32)[source]
        if mask != FULL and (gone := _without_source(warp, mask, source, ins)):
            d[as_bools(gone)] = warp.machine.unwritten_smem * 0x01010101
        return (d, as_mask(valid)) if ins.dual else d

    return run


@warp("vote.sync", states=Exchanges(pipe="vote"), out=1, uniform="group")
def vote(ins: Instr) -> Run:
    """vote.sync.{all,any,uni}.pred, vote.sync.ballot.b32 d, {!}p, membermask."""
    kind = ins.types[-1]
    mode = ins.one("ballot", "all", "any", "uni")
    constant = isinstance(ins.operands[1], Imm)

    def one(warp: Fragment, here: int, p: int):
        p = (here if p else 0) if constant else p & here
        if mode == "ballot":
            return p
        holds = {"all": p == here, "any": p != 0, "uni": p in (0, here)}[mode]
        return FULL if holds else 0

    return in_groups(one, 0 if kind == "pred" else None)


@warp("match.any.sync", "match.all.sync", states=Exchanges(pipe="shuffle"), out=1)
def match(ins: Instr) -> Run:
    """match.any.sync d, a: lanes of the same value; match.all.sync d{|p}, a: all or none."""
    bits = 32 if ins.types[-1] == "b32" else 64
    every = ins.mods[1] == "all"

    def one(warp: Fragment, here: int, a: LaneValues):
        values, chosen = lanes(a, np.uint64 if bits == 64 else np.uint32), as_bools(here)
        if every:
            same = (values[chosen] == values[chosen][0]).all()
            d = np.full(32, here if same else 0, np.uint32)
            return (d, FULL if same else 0) if ins.dual else d
        equal = (values[:, None] == values[None, :]) & chosen
        return np.packbits(equal, 1, "little").view(np.uint32).reshape(-1)

    return in_groups(one, 1)


@warp("redux.sync", states=Exchanges(pipe="shuffle"), out=1, uniform="group")
def redux(ins: Instr) -> Run:
    """redux.sync.op.{u32,s32,b32} and redux.sync.{min,max}{.abs}{.NaN}.f32 d, a, membermask."""
    kind = ins.types[-1]
    op = ins.one(*UFUNCS)
    magnitude, propagate = ins.has("abs"), ins.has("NaN")
    reduce = UFUNCS[op].reduce

    def one(warp: Fragment, here: int, a: np.ndarray):
        values = lanes(a, np.uint32)[as_bools(here)]
        if kind == "f32":
            return _reduce_f32(values, op, magnitude, propagate)
        return int(reduce(values.view(np.int32) if kind == "s32" else values)) & FULL

    return in_groups(one)


def _reduce_f32(values: np.ndarray, op: str, magnitude: bool, propagate: bool) -> int:
    """Least or greatest number; NaNs are left out unless .NaN, or if there is nothing else."""
    form = FLOATS["f32"]
    if magnitude:
        values = values & 0x7FFFFFFF
    nan = is_nan(values, form)
    if nan.all() or (propagate and nan.any()):
        return form.nan
    numbers = values[~nan]
    key = order_key(numbers, form)
    return int(numbers[key.argmin() if op == "min" else key.argmax()])


@warp("activemask", states=LooksAtLanes(pipe="active mask"), out=1, uniform="always")
def activemask(ins: Instr) -> Run:
    """activemask.b32: the lanes that execute it together."""

    def run(warp: Fragment, mask: int) -> int:
        return mask

    return run


@warp("elect.sync", states=Elects(pipe="elect"), out=1)
def elect(ins: Instr) -> Run:
    """elect.sync d|p, membermask: the lowest lane is leader; d is its number in all lanes."""

    def one(warp: Fragment, here: int):
        leader = here & -here
        number = leader.bit_length() - 1
        return (number, leader) if ins.dual else number

    return in_groups(one, 1)


@warp("bar.warp.sync", states=MeetsInWarp())
def bar_warp(ins: Instr) -> Run:
    """bar.warp.sync membermask: whoever executes it has waited (Fragment.meet), so only the
    membermask is checked.
    """
    return in_groups(no_effect)


@warp("pmevent", states=CountsEvents())
def pmevent(ins: Instr) -> Run:
    """pmevent{.mask} a"""
    return no_effect


@warp("nanosleep", states=Sleeps(pipe="sleep"))
def nanosleep(ins: Instr) -> Run:
    """nanosleep.u32 t: suspends for up to 2 t nanoseconds; any time, zero included, is legal."""
    return no_effect
