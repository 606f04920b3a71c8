"""Causes of a deadlock that are sure: what is waited for cannot come, and it is known why."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from b200.chip.meeting import Meeting
from b200.chip.polls import Poll
from b200.chip.sync.barriers import NamedBarrier
from b200.chip.sync.mbarrier import MBarrier
from b200.chip.tensor.tmem_alloc import Pool
from b200.program.module import Instr
from b200.registry import lanes_text


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


def instruction(machine, fragment) -> Instr:
    """The instruction that a fragment waits in, or is about to execute."""
    if isinstance(fragment.waits_for, Poll):
        return fragment.waits_for.ins
    return machine.code.structure[fragment.pc].ops[0].ins


def where(machine, fragment) -> str:
    ins = instruction(machine, fragment)
    if ins.loc is None:
        return ins.opcode
    frames = [str(frame) for frame in ins.loc.chain()]
    return frames[0] + (f" (called at {frames[1]})" if len(frames) > 1 else "")


# --- causes ---------------------------------------------------------------------------------------


def sure_cause(machine, waitable) -> Cause | None:
    """Why what is waited for cannot come, if that is sure."""
    if isinstance(waitable, Meeting):
        return _membermask(machine, waitable)
    if isinstance(waitable, Pool):
        return _allocations(machine, waitable)
    return _left(machine, waitable) if isinstance(waitable, MBarrier) else None


def _membermask(machine, meeting: Meeting) -> Cause | None:
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


def _allocations(machine, pool: Pool) -> Cause | None:
    """Several warps of one CTA that execute one tcgen05.alloc."""
    waiting = [f for f in _fragments(machine) if f.waits_for is pool]
    for fragment in waiting:
        ins = instruction(machine, fragment)
        alike = {
            f.index for f in waiting if f.cta is fragment.cta and instruction(machine, f) is ins
        }
        alike |= {warp for warp, by in pool.allocated if by is ins and warp is not None}
        if len(alike) > 1:
            return Cause(
                f"{len(alike)} warps of CTA {fragment.cta.index} allocate tensor memory at "
                f"{where(machine, fragment)}",
                "each of them allocates for itself, and the first has taken what the others ask "
                "for: one warp of a CTA allocates",
                (pool.describe(),),
                ("a branch around tcgen05.alloc that one warp takes",),
            )
    return None


def two_places(barrier: NamedBarrier) -> str:
    """ "barrier 0: warps 0-3 stood at FILE:14 while warps 4-7 came to FILE:9"; "" unless all warps
    of a CTA were to meet and came from different lines.
    """
    if not barrier.mixed:
        return ""
    (first, here), (second, there) = list(barrier.mixed.items())[:2]
    name = f"barrier {barrier.number} of CTA {barrier.cta.index}"
    return f"{name}: {_warps(here)} stood at {first} while {_warps(there)} came to {second}"


def _warps(warps: list[int]) -> str:
    text = lanes_text(sum(1 << w for w in set(warps)))
    return text.replace("all lanes", "warps 0-31").replace("lane", "warp")


def _left(machine, barrier: MBarrier) -> Cause | None:
    """A warp that arrived for earlier phases of an mbarrier, and has left."""
    if not barrier.arrivals or barrier.tx or barrier.pending != barrier.expected:
        return None
    ctas = barrier.cta.cluster.ctas
    by = {who[:2]: who[2] for who in barrier.arrivals if who and isinstance(who[1], int)}
    gone = {key: at for key, at in by.items() if not ctas[key[0]].warps[key[1]].live}
    if not gone or len(gone) < len(by):
        return None
    (rank, warp), at = next(iter(gone.items()))
    state = ctas[rank].warps[warp]
    end = f" at {state.exits[-1][1].loc}" if state.exits and state.exits[-1][1].loc else ""
    named = barrier.name or barrier.row()[1] > 1
    name = barrier.place() if named else f"mbarrier at {barrier.offset:#x}"
    return Cause(
        f"{name}: warp {warp} of CTA {ctas[rank].index}, which arrived for its earlier phases at "
        f"{at}, has left{end}",
        "a role has ended while another still waits for it: they count their rounds differently",
    )


def _fragments(machine) -> Iterator:
    for cluster in machine.resident:
        for cta in cluster.ctas:
            for warp in cta.warps:
                yield from warp.fragments
