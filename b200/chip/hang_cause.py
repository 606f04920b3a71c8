"""Causes of a deadlock that are sure: what is waited for cannot come, and it is known why."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from b200.chip.fragment import ClusterBarrier, Fragment, WarpState
from b200.chip.meeting import Meeting
from b200.chip.polls import Poll
from b200.chip.sync.barriers import NamedBarrier
from b200.chip.sync.mbarrier import MBarrier
from b200.chip.tensor.tmem_alloc import TmemPool, pool_of
from b200.program.module import Instr, Loc
from b200.registry import Waitable, lanes_text

if TYPE_CHECKING:
    from b200.chip.machine import Machine


class Cause(NamedTuple):
    """One likely cause of a deadlock.

    what: the thing that warps wait for. why: the reason that it may never come, "" if unknown.
    facts: lines about this one thing. hints: what to look for; causes with the same `why` have the
    same hints.
    """

    what: str
    why: str = ""
    facts: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()


# --- where somebody stands ------------------------------------------------------------------------


def instruction(machine: Machine, warp: Fragment) -> Instr:
    """The instruction that a fragment waits in, or is about to execute."""
    if isinstance(warp.waits_for, Poll):
        return warp.waits_for.ins
    return machine.code.structure[warp.pc].ops[0].ins


def where(machine: Machine, fragment: Fragment) -> str:
    ins = instruction(machine, fragment)
    return ins.opcode if ins.loc is None else _at(ins.loc)


def _at(loc: Loc) -> str:
    frames = [str(frame) for frame in loc.chain()]
    return frames[0] + (f" (called at {frames[1]})" if len(frames) > 1 else "")


def shown(barrier: MBarrier) -> str:
    """An mbarrier, by its name or row if it has one."""
    if barrier.name or barrier.row()[1] > 1:
        return barrier.place()
    return f"mbarrier at {barrier.offset:#x}"


# --- causes ---------------------------------------------------------------------------------------


def sure_cause(machine: Machine, waitable: Waitable) -> Cause | None:
    """Why what is waited for cannot come, if that is sure."""
    if isinstance(waitable, Meeting):
        return _membermask(machine, waitable)
    if isinstance(waitable, TmemPool):
        return _allocations(machine, waitable)
    return _left(machine, waitable) if isinstance(waitable, MBarrier) else None


def _membermask(machine: Machine, meeting: Meeting) -> Cause | None:
    """A membermask that names lanes which stand elsewhere."""
    missing = meeting.missing
    elsewhere = [
        (f.mask & missing, f)
        for f in meeting.state.fragments
        if f.mask & missing and f.waits_for is not meeting
    ]
    if not elsewhere or not meeting.place.masked:
        return None
    lanes, there = elsewhere[0]
    warp = meeting.state
    here = where(machine, meeting.parts[0][0])
    return Cause(
        f"membermask {meeting.members:#010x} at {here} names {lanes_text(lanes)}, which stand at "
        f"{where(machine, there)}",
        "the lanes that it names have diverged, and do not all come to it",
        (f"of warp {warp.index} of CTA {warp.cta.index}, {lanes_text(meeting.arrived)} are here",),
        ("a membermask of the lanes that execute it, or a loop that all lanes leave together",),
    )


def _allocations(machine: Machine, pool: TmemPool) -> Cause | None:
    """Several warps of one CTA that allocate, or one that allocates again and frees nothing."""
    waiting = [f for f in machine.fragments() if f.waits_for is pool]
    for fragment in waiting:
        cta, ins = fragment.cta, instruction(machine, fragment)
        held = pool_of(cta).allocated
        alike = {f.index for f in waiting if f.cta is cta and instruction(machine, f) is ins}
        alike |= {warp for warp, by in held.values() if by is ins}
        if len(alike) > 1:
            return Cause(
                f"{len(alike)} warps of CTA {cta.index} allocate tensor memory at "
                f"{where(machine, fragment)}",
                "each of them allocates for itself, and the first has taken what the others ask "
                "for: one warp of a CTA allocates",
                (pool.describe(),),
                ("a branch around tcgen05.alloc that one warp takes",),
            )
        if any(_may_free(cta.warps[warp], fragment) for warp, _ in held.values()):
            continue
        for warp, by in held.values():
            own, at = warp == fragment.index, _at(by.loc) if by.loc else by.opcode
            return Cause(
                f"warp {fragment.index} of CTA {cta.index} allocates tensor memory at "
                f"{where(machine, fragment)}, and {'it' if own else f'warp {warp}'} keeps what "
                f"{'it' if own else 'that one'} has allocated at {at}",
                "what is asked for does not fit beside it, and it is not freed"
                + ("" if own else ": one warp of a CTA allocates, for all of them"),
                (pool.describe(),),
                ("a tcgen05.dealloc that is missing", "an allocation of all columns at once"),
            )
    return None


def _may_free(holder: WarpState, asking: Fragment) -> bool:
    """Whether a warp that holds tensor memory may come to free it while `asking` waits for some: it
    waits for something else than `asking`, or than a barrier at which all warps meet.
    """
    waits = [f.waits_for for f in holder.fragments]
    meets = (NamedBarrier, ClusterBarrier)
    return any(w is not asking.waits_for and not isinstance(w, meets) for w in waits)


def two_places(barrier: NamedBarrier) -> str:
    """ "barrier 0: warps 0-3 stood at FILE:14 while warps 4-7 came to FILE:9"; "" unless all warps
    of a CTA were to meet and came from different lines.
    """
    if not barrier.mixed:
        return ""
    (first, here), (second, there) = list(barrier.mixed.items())[:2]
    name = f"barrier {barrier.number} of CTA {barrier.cta.index}"
    return (
        f"{name}: {_warps(here)} stood at {_at(first)} while {_warps(there)} came to {_at(second)}"
    )


def _warps(warps: list[int]) -> str:
    text = lanes_text(sum(1 << w for w in set(warps)))
    return text.replace("all lanes", "warps 0-31").replace("lane", "warp")


def _left(machine: Machine, barrier: MBarrier) -> Cause | None:
    """A warp that signalled in earlier phases of an mbarrier, and has left. All that did and have
    not yet in this phase must have left.
    """
    if not barrier.arrivals or barrier.tx or not barrier.pending:
        return None
    ctas = barrier.cta.cluster.ctas
    came = barrier.expected - barrier.pending  # at most so many signals are of this phase
    signals = [(who.rank, who.warp, who) for who in barrier.arrivals if who]
    earlier, now = signals[: len(signals) - came], signals[len(signals) - came :]
    by = {who[:2]: who for who in earlier} if came < len(signals) else {}
    for who in now:
        by.pop(who[:2], None)
    if not by or any(ctas[rank].warps[warp].live for rank, warp in by):
        return None
    (rank, warp), (_, _, signal) = next(iter(by.items()))
    state = ctas[rank].warps[warp]
    end = f" at {state.exits[-1][1].loc}" if state.exits and state.exits[-1][1].loc else ""
    how = f"arrived for its earlier phases at {signal.place}"
    if signal.unit:
        how = f"signalled by {signal.unit} in its earlier phases at {signal.place}"
    return Cause(
        f"{shown(barrier)}: warp {warp} of CTA {ctas[rank].index}, which {how}, has left{end}",
        "a role has ended while another still waits for it: they count their rounds differently",
    )
