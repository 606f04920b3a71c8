"""Explains a deadlock: its likely causes, and the latest events at its barriers.

It reads the machine's state, and the history of the mbarriers where the machine keeps one
(`Machine.barrier_history`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from b200.chip.fragment import ClusterBarrier
from b200.chip.hang_bytes import announced_and_brought, wrong_bytes
from b200.chip.hang_cause import Cause, instruction, shown, sure_cause, two_places, where
from b200.chip.hang_order import holders, not_arrived, rank
from b200.chip.memory.loads_stores import space_of
from b200.chip.polls import Poll
from b200.chip.sync.barriers import NamedBarrier
from b200.chip.sync.mbarrier import MBarrier
from b200.chip.sync.registers import RegisterPool
from b200.chip.tensor.tmem_alloc import TmemPool, group_of
from b200.hardware import SM_COUNT
from b200.program.analysis import reachable
from b200.registry import Waitable

if TYPE_CHECKING:
    from b200.chip.fragment import Fragment
    from b200.chip.machine import Machine
    from b200.chip.state import CTA
    from b200.program.module import Instr

LAST = 8  # events shown of a barrier
SHOWN = 8  # barriers explained
WAITED_FOR = "waited for at"
NEVER = "nobody has ever arrived on it"


def explain(machine: Machine) -> tuple[list[str], list[str]]:
    """Lines of a deadlock report: (likely causes, timeline of each barrier that is waited on)."""
    waits = _waits(machine)
    held = holders(machine, waits)
    alike: dict[object, list[Waitable]] = {}  # waits of several CTAs that have one cause
    for waitable, fragments in sorted(waits.items(), key=lambda x: (held[x[0]], rank(x[0]))):
        alike.setdefault(_likeness(machine, waitable, fragments), []).append(waitable)
    groups = list(alike.values())[:SHOWN]
    waits = {group[0]: waits[group[0]] for group in groups}
    causes = [Cause(str(found), found.why) for found in machine.slipped_waits()][:SHOWN]
    held_up: list[Cause] = []
    for group in groups:
        cause = _cause(machine, group[0], waits[group[0]])
        if cause is not None:
            behind = held_up if held[group[0]] and causes else causes
            behind.append(_of_several(cause, group))
    history = [line for waitable in waits for line in _timeline(machine, waitable)]
    timeline = ["timeline of the barriers:", *history] if history else []
    lines = [*_lines(causes), *map(_held_up, held_up), *(_exited(machine) if causes else [])]
    return lines, timeline


def headline(machine: Machine) -> str:
    """The cause of a deadlock, for the first line of the report; "" if it is unknown."""
    sure = [str(slipped) for slipped in machine.slipped_waits()]
    sure += [cause.what for thing in _waits(machine) if (cause := sure_cause(machine, thing))]
    others = f" (and {len(sure) - 1} more)" if len(sure) > 1 else ""
    return f"; {sure[0]}{others}" if sure else ""


def _waits(machine: Machine) -> dict[Waitable, list[Fragment]]:
    """What is waited for, with the fragments that do."""
    waits: dict[Waitable, list[Fragment]] = {}
    for warp in machine.fragments():
        if warp.waits_for is not None:
            waits.setdefault(warp.waits_for, []).append(warp)
    return waits


def _of_several(cause: Cause, group: list[Waitable]) -> Cause:
    """The cause with how many others hang alike."""
    more = len(group) - 1
    if not more:
        return cause
    barrier = isinstance(group[0], (MBarrier, NamedBarrier))
    others = f"the same in {more} more CTA(s)" if barrier else f"{more} more wait alike"
    return cause._replace(facts=(*cause.facts, others))


def _lines(causes: list[Cause]) -> list[str]:
    """An entry for each reason, with all that it is a reason for, a thought a line."""
    reasons: dict[str, list[Cause]] = {}
    for cause in causes:
        reasons.setdefault(cause.why, []).append(cause)
    lines: list[str] = []
    for why, (first, *others) in reasons.items():
        lead = "or" if lines else "likely cause"
        lines.append(f"  {lead}: {first.what}{f': {why}' if why else ''}")
        lines += [f"    {fact}" for fact in first.facts]
        for other in others:
            lines.append(f"    the same of {other.what}")
            lines += [f"      {fact}" for fact in other.facts]
        lines += [f"    look for: {hint}" for hint in first.hints]
        elsewhere = (c for w, found in reasons.items() if w != why for c in found)
        if why == NEVER and any(cause.what.startswith("mbarrier") for cause in elsewhere):
            lines.append("    look for: a warp that should arrive and is stuck at another mbarrier")
    return lines


def _held_up(cause: Cause) -> str:
    where = next((f", {fact}" for fact in cause.facts if fact.startswith(WAITED_FOR)), "")
    return f"  held up by the above: {cause.what}{where}"


def _likeness(machine: Machine, waitable: Waitable, fragments: list[Fragment]) -> object:
    """Equal for the barriers of several CTAs that hang alike."""
    at = where(machine, fragments[0])
    if isinstance(waitable, MBarrier):
        return MBarrier, waitable.offset, waitable.pending, waitable.tx, at
    if isinstance(waitable, NamedBarrier):
        return NamedBarrier, waitable.number, waitable.arrived, at
    if isinstance(waitable, Poll):
        return Poll, id(waitable.ins), waitable.test
    return type(waitable), at


def _exited(machine: Machine) -> list[str]:
    """Warps that are gone while others of their cluster wait."""
    gone = [w for w in machine.warps() if not w.live]
    text = ", ".join(f"warp {w.index} of CTA {w.cta.index}" for w in gone[:SHOWN])
    return [f"  have exited already: {text}"] if gone else []


def _cause(machine: Machine, waitable: Waitable, fragments: list[Fragment]) -> Cause | None:
    """Why what is waited for may never come, None where nothing can be said."""
    if (sure := sure_cause(machine, waitable)) is not None:
        return sure
    explained = _CAUSES.get(type(waitable))
    return explained(machine, waitable, fragments) if explained is not None else None


def _mbarrier(machine: Machine, b: MBarrier, fragments: list[Fragment]) -> Cause:
    name = shown(b)
    facts = (f"{WAITED_FOR} {where(machine, fragments[0])}",)
    if b.pending == 0 and b.tx != 0 or b.tx < 0 and b.pending == b.expected:
        return Cause(name, wrong_bytes(b), (*facts, *announced_and_brought(machine, b)))
    if b.init_by:
        facts += (f"initialised with count {b.expected} at {b.init_by.place}",)
    if 0 < b.pending < b.expected:
        why = f"{b.expected - b.pending} of {b.expected} arrivals have come"
        hints = (
            "a count of its initialisation that is too high",
            "a warp that should arrive and does not get there",
        )
        return Cause(name, why, facts, hints)
    if not b.arrivals:
        hints = (
            "an arrive, an expect_tx with its load, or a tcgen05.commit that is missing or names "
            "another barrier",
            "a wait that is a phase off (the first wait of a producer for a free stage must pass: "
            "parity 1)",
        )
        return Cause(name, NEVER, facts, hints)
    facts += (f"earlier phases were completed from {_arrivers(b)}",)
    hints = (
        "a warp there that has stopped or is stuck",
        "an arrive or a tcgen05.commit that went to another barrier",
        "a wait that is a phase off",
    )
    return Cause(name, "nobody has arrived for this phase", facts, hints)


def _arrivers(b: MBarrier) -> str:
    found = dict.fromkeys(who.place for who in b.arrivals if who)
    return ", ".join(list(found)[-3:]) or "unknown"


def _named(machine: Machine, bar: NamedBarrier, fragments: list[Fragment]) -> Cause:
    here = {f.state for f in fragments}
    away = [w for w in bar.cta.warps if w not in here]
    gone = [w.index for w in away if not w.live]
    busy = Counter(where(machine, w.fragments[0]) for w in away if w.live and w.fragments)
    name = f"barrier {bar.number} of CTA {bar.cta.index} at {where(machine, fragments[0])}"
    facts: tuple[str, ...] = tuple(
        f"not arrived: {count} warp(s) at {where}" for where, count in busy.most_common(4)
    )
    if gone and bar.needed > 32 * (len(bar.cta.warps) - len(gone)):
        facts = (f"warps {gone} have exited before it: they left early, or its count is too high",)
    elif bar.needed > 32 * len(bar.cta.warps):
        facts = (f"its count is higher than the CTA's {32 * len(bar.cta.warps)} threads",)
    if mixed := two_places(bar):
        facts += (f"before that, {mixed}",)
    return Cause(name, f"{bar.arrived} of {bar.needed} threads have arrived", facts)


def _tensor_memory(machine: Machine, pool: TmemPool, fragments: list[Fragment]) -> Cause:
    alone = group_of(instruction(machine, fragments[0])) == 1
    peer = "" if alone else ", or the peer CTA does not allocate with cta_group::2"
    why = f"an allocation is not freed (tcgen05.dealloc){peer}"
    return Cause(f"tensor memory: {pool.describe()}", why)


def _poll(machine: Machine, poll: Poll, fragments: list[Fragment]) -> Cause:
    """A loop that reads memory, and who could still write what it reads."""
    f, name = fragments[0], _several(fragments)
    if poll.read is None:
        return Cause(f"{name} waits at {where(machine, f)} for {poll.describe()}")
    name += f" polls {poll.place}: {poll.finds()}, read at {where(machine, f)}"
    writers = [
        (block.index, op.ins)
        for block in machine.code.structure
        for op in block.ops
        if writes(op.ins, poll.read.space)
    ]
    if machine.next_cluster is not None and writers:
        return _not_started(machine, f.cta, name)
    if could := _could_write(machine, poll, writers):
        return Cause(name, facts=tuple(f"it could still be written {text}" for text in could[:4]))
    return Cause(name, f"no other warp that is left comes to a write of {poll.read.space} memory")


def _not_started(machine: Machine, cta: CTA, name: str) -> Cause:
    """Why those that wait for the rest of the grid wait for ever."""
    ctas = len(cta.cluster.ctas)
    total = int(np.prod(cta.cluster.grid.grid))
    running = sum(len(c.ctas) for c in machine.resident)
    return Cause(
        name,
        f"{total - machine.started * ctas} of the grid's {total} CTAs have not started",
        (
            f"the {running} that run fill the chip ({SM_COUNT} SMs; a CTA takes {cta.threads} "
            f"threads, {cta.cluster.grid.smem_bytes:,} bytes of an SM's shared memory)",
            "none of them ends before the others start",
        ),
        (f"a grid of at most {running} CTAs, or CTAs that take less of an SM",),
    )


def writes(ins: Instr, space: str) -> bool:
    """Whether an instruction may write a state space."""
    if ins.mods[0] in ("st", "atom", "red"):
        return space_of(ins).split("::")[0] in (space, "generic") or ins.has("async")
    if ins.mods[0] != "cp":
        return False
    target = next((m for m in ins.mods if m.split("::")[0] in ("global", "shared")), "")
    return target.split("::")[0] == space


def _could_write(machine: Machine, poll: Poll, writers: Sequence[tuple[int, Instr]]) -> list[str]:
    """Other warps that are left and may come to one of some instructions, and what keeps them."""
    found: dict[str, list[Fragment]] = {}
    for f in machine.fragments():
        if f.waits_for is poll:
            continue
        inside = f.waits_for.visited if isinstance(f.waits_for, Poll) else frozenset[int]()
        reach = reachable(machine.code.structure, f.pc)
        ins = next((i for b, i in writers if b in reach and b not in inside), None)
        if ins is None:
            continue
        text = f"at {ins.loc or ins.opcode} by {{}}, which {_kept(machine, f)}"
        found.setdefault(text, []).append(f)
    return [text.format(_several(fragments)) for text, fragments in found.items()]


def _kept(machine: Machine, warp: Fragment) -> str:
    """What a warp does that does not come to a write."""
    if isinstance(warp.waits_for, Poll):
        return f"polls {warp.waits_for.place or 'nothing'} at {where(machine, warp)}"
    if warp.waits_for is None:
        return f"waits for lanes of its own warp at {where(machine, warp)}"
    known: dict[type[Waitable], str] = {
        MBarrier: "an mbarrier",
        NamedBarrier: "a barrier",
        ClusterBarrier: "its cluster",
    }
    what = known.get(type(warp.waits_for), "something")
    return f"waits for {what} at {where(machine, warp)}"


def _several(fragments: Sequence[Fragment]) -> str:
    more = f" and {len(fragments) - 1} more" if len(fragments) > 1 else ""
    return f"warp {fragments[0].index} of CTA {fragments[0].cta.index}{more}"


def _registers(machine: Machine, pool: RegisterPool, fragments: Sequence[Fragment]) -> Cause:
    warps = sorted({f.index for f in fragments})
    wanted = ", ".join(str(n) for n in sorted({pool.wanted[w] for w in warps}))
    missing = sum(32 * (pool.wanted[w] - pool.of(w)) for w in warps)
    gave = {w: n for w, n in pool.held.items() if n < pool.entry}
    back = ", ".join(f"warp {w} keeps {n}" for w, n in sorted(gave.items()))
    return Cause(
        f"registers: {len(warps)} warp(s) of CTA {pool.cta.index} wait in setmaxnreg.inc at "
        f"{where(machine, fragments[0])} for {wanted} a thread",
        f"they need {missing:,} more, and {pool.free:,} are free in the CTA's pool",
        (
            f"each thread starts with {pool.entry}",
            f"given back by setmaxnreg.dec: {back or 'nothing'}",
        ),
        ("a setmaxnreg.dec of the other warps for all that is taken, or smaller values",),
    )


def _cluster(machine: Machine, barrier: ClusterBarrier, fragments: Sequence[Fragment]) -> Cause:
    away = [
        f"not arrived: warp {w.index} of CTA {w.cta.index} is at {where(machine, w.fragments[0])}"
        for w in not_arrived(barrier)
        if w.fragments
    ]
    return Cause(
        f"the cluster barrier at {where(machine, fragments[0])}",
        f"{barrier.arrived} of {barrier.expected} threads have arrived",
        tuple(away[:6]),
        ("warps that execute different numbers of barrier.cluster.arrive",) if away else (),
    )


_CAUSES: dict[type[Waitable], Callable[..., Cause]] = {
    MBarrier: _mbarrier,
    NamedBarrier: _named,
    ClusterBarrier: _cluster,
    TmemPool: _tensor_memory,
    RegisterPool: _registers,
    Poll: _poll,
}


def _timeline(machine: Machine, waitable: Waitable) -> list[str]:
    history = machine.barrier_history(waitable) if isinstance(waitable, MBarrier) else None
    if history is None or not history.events:
        return []
    latest = history.events[-LAST:]
    each = (f"event {e.number}, phase {e.phase}: {e.who}: {e.what}, at {e.at}" for e in latest)
    return [f"  {history.name}:", *(f"    {text}" for text in each)]
