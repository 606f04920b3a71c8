"""Why nothing moves: the likely cause of a deadlock, and what last happened at its barriers.

Reads the state of the machine, which may also know the history of its mbarriers
(`Machine.barrier_history`).
"""

from __future__ import annotations

import numpy as np

from b200.chip.fragment import ClusterBarrier
from b200.chip.memory.loads_stores import space_of
from b200.chip.polls import Poll
from b200.chip.sync.barriers import NamedBarrier
from b200.chip.sync.mbarrier import MBarrier
from b200.chip.sync.registers import RegisterPool
from b200.chip.tensor.tmem_alloc import Pool
from b200.hardware import SM_COUNT
from b200.program.analysis import EXIT

LAST = 8  # events shown of a barrier
SHOWN = 8  # barriers explained


def explain(machine) -> tuple[list[str], list[str]]:
    """Lines of a deadlock report: likely causes; the timeline of each barrier waited on."""
    waits = _waits(machine)
    alike: dict = {}  # waits of several CTAs that have one cause
    for waitable, fragments in sorted(waits.items(), key=lambda item: _rank(item[0])):
        alike.setdefault(_likeness(machine, waitable, fragments), []).append(waitable)
    groups = list(alike.values())[:SHOWN]
    waits = {group[0]: waits[group[0]] for group in groups}
    twice = [
        (str(found), ": its phase is not flipped between the two, or was once too often before")
        for found in machine.waited_twice()
    ]
    causes = _merged(twice[:SHOWN]) + _merged(
        (f"{name} (alike {len(group) - 1} more times)" if len(group) > 1 else name, why)
        for group in groups
        for name, why in _cause(machine, group[0], waits[group[0]])
    )
    history = [line for waitable in waits for line in _timeline(machine, waitable)]
    lines = [f"  {'or' if i else 'likely cause'}: {cause}" for i, cause in enumerate(causes)]
    timeline = ["timeline of the barriers:", *history] if history else []
    return lines + (_exited(machine) if causes else []), timeline


def headline(machine) -> str:
    """The cause of a deadlock where it is known, to stand in its first line; else ""."""
    twice = machine.waited_twice()
    others = f" (and {len(twice) - 1} more)" if len(twice) > 1 else ""
    return f"; {twice[0]}{others}" if twice else ""


def _waits(machine) -> dict:
    """What is waited for, with the fragments that do."""
    waits: dict = {}
    for cluster in machine.resident:
        for cta in cluster.ctas:
            for warp in cta.warps:
                for fragment in warp.fragments:
                    if fragment.waits_for is not None:
                        waits.setdefault(fragment.waits_for, []).append(fragment)
    return waits


def _merged(causes) -> list[str]:
    """A line for each reason, with all that it is a reason for."""
    found: dict[str, list[str]] = {}
    for name, why in causes:
        found.setdefault(why, []).append(name)
    return [f"{'; '.join(names)}{why}" for why, names in found.items()]


def _likeness(machine, waitable, fragments) -> object:
    """Equal for the barriers of several CTAs that hang alike."""
    where = _where(machine, fragments[0])
    if isinstance(waitable, MBarrier):
        return MBarrier, waitable.offset, waitable.pending, waitable.tx, where
    if isinstance(waitable, NamedBarrier):
        return NamedBarrier, waitable.number, waitable.arrived, where
    if isinstance(waitable, Poll):
        return Poll, id(waitable.ins), waitable.test
    return type(waitable), where


def _rank(waitable) -> int:
    """Rank of a waitable as a cause: a wrong count is one, a CTA barrier mostly suffers."""
    if isinstance(waitable, MBarrier):
        if waitable.pending == 0 or waitable.pending < waitable.expected or waitable.tx < 0:
            return 0
        return 3 if waitable.arrivals else 2
    if isinstance(waitable, Poll):
        return 2
    return 4 if isinstance(waitable, NamedBarrier) else 1


def _exited(machine) -> list[str]:
    """Warps that are gone while others of their cluster wait."""
    gone = [
        (w, cta)
        for cluster in machine.resident
        for cta in cluster.ctas
        for w in cta.warps
        if not w.live
    ]
    text = ", ".join(f"warp {w.index} of CTA {cta.index}" for w, cta in gone[:SHOWN])
    return [f"  have exited already: {text}"] if gone else []


def _cause(machine, waitable, fragments) -> list[tuple[str, str]]:
    """(what is waited for, why it may never come), nothing where nothing can be said."""
    if isinstance(waitable, MBarrier):
        return [_mbarrier(machine, waitable, fragments)]
    if isinstance(waitable, NamedBarrier):
        return [(_named(machine, waitable, fragments), "")]
    if isinstance(waitable, Pool):
        why = (
            ": an allocation is not freed (tcgen05.dealloc), or the peer CTA does not allocate "
            "with cta_group::2"
        )
        return [(f"tensor memory: {waitable.describe()}", why)]
    if isinstance(waitable, Poll):
        return [_poll(machine, waitable, fragments)]
    if isinstance(waitable, RegisterPool):
        return [_registers(machine, waitable, fragments)]
    if isinstance(waitable, ClusterBarrier):
        return [(_cluster(machine, waitable, fragments), "")]
    return []


def instruction(machine, fragment):
    """The instruction that a fragment waits in, or is about to execute."""
    if isinstance(fragment.waits_for, Poll):
        return fragment.waits_for.ins
    return machine.code.structure[fragment.pc].ops[0].ins


def _where(machine, fragment) -> str:
    ins = instruction(machine, fragment)
    if ins.loc is None:
        return ins.opcode
    frames = [str(frame) for frame in ins.loc.chain()]
    return frames[0] + (f" (called at {frames[1]})" if len(frames) > 1 else "")


def _mbarrier(machine, b: MBarrier, fragments) -> tuple[str, str]:
    named = b.name or b.row()[1] > 1
    name = b.place() if named else f"mbarrier at {b.offset:#x}"
    name += f", waited for at {_where(machine, fragments[0])}"
    if b.pending == 0 and b.tx > 0:
        return name, (
            ": more bytes were announced by expect_tx than the copies of the phase bring, "
            f"{b.tx} too many" + _bytes(machine, b)
        )
    if b.pending == 0 and b.tx < 0:
        return name, (
            f": the copies of the phase bring more bytes than expect_tx announced, {-b.tx} "
            "too many" + _bytes(machine, b)
        )
    if b.tx < 0 and b.pending == b.expected:
        return name, (
            f": copies have brought {-b.tx} bytes that no expect_tx announced in this "
            "phase: an expect_tx is missing or too small, so an earlier phase ended before all "
            "its bytes were there" + _bytes(machine, b)
        )
    if b.init_by and b.init_by[2]:
        name += f" (initialised with count {b.expected} at {b.init_by[2]})"
    if 0 < b.pending < b.expected:
        return name, (
            f": {b.expected - b.pending} of {b.expected} arrivals have come: the "
            "count of its initialisation is too high, or a warp that should arrive does not get "
            "there"
        )
    if not b.arrivals:
        return name, (
            ": nobody has ever arrived on it: an arrive, an expect_tx with its load, "
            "or a tcgen05.commit is missing or names another barrier; or the wait is a phase off "
            "(the first wait of a producer for a free stage must pass: parity 1)"
        )
    return name, (
        ": earlier phases were completed, for this one nobody has arrived: whoever "
        "arrives there "
        f"({_arrivers(b)}) stopped or is stuck, or the wait is a phase off"
    )


def _arrivers(b: MBarrier) -> str:
    found = dict.fromkeys(str(who[2] or who[1]) for who in b.arrivals if who)
    return ", ".join(list(found)[-3:]) or "unknown"


def _bytes(machine, b: MBarrier) -> str:
    history = machine.barrier_history(b)
    if history is None:
        return ""
    announced = ", ".join(f"{n} at {ins.loc}" for ins, n in history.announced[-4:])
    brought = ", ".join(f"{n} by {ins.loc}" for ins, n in history.brought[-4:])
    return f"; announced: {announced or 'nothing'}; brought: {brought or 'nothing'}"


def _named(machine, bar: NamedBarrier, fragments) -> str:
    here = {f.state for f in fragments}
    away = [w for w in bar.cta.warps if w not in here]
    gone = [w.index for w in away if not w.live]
    busy = [
        f"warp {w.index} is at {_where(machine, w.fragments[0])}"
        for w in away
        if w.live and w.fragments
    ]
    needed = bar.expected or 32 * sum(1 for w in bar.cta.warps if w.live)
    text = (
        f"barrier {bar.number} of CTA {bar.cta.index} at {_where(machine, fragments[0])}: "
        f"{bar.arrived} of {needed} threads"
    )
    if gone and needed > 32 * (len(bar.cta.warps) - len(gone)):
        text += f"; warps {gone} have exited before it: they left early, or its count is too high"
    elif needed > 32 * len(bar.cta.warps):
        text += f"; its count is higher than the CTA's {32 * len(bar.cta.warps)} threads"
    return text + (f"; {'; '.join(busy[:4])}" if busy else "")


def _poll(machine, poll: Poll, fragments) -> tuple[str, str]:
    """A loop that reads memory, and who could still write what it reads."""
    f = fragments[0]
    more = f" and {len(fragments) - 1} more" if len(fragments) > 1 else ""
    name = f"warp {f.index} of CTA {f.cta.index}{more}"
    if poll.read is None:
        return f"{name} waits at {_where(machine, f)} for {poll.describe()}", ""
    name += f" polls {poll.place}: {poll.finds()}, read at {_where(machine, f)}"
    writers = [
        (block.index, op.ins)
        for block in machine.code.structure
        for op in block.ops
        if writes(op.ins, poll.read.space)
    ]
    if machine.next_cluster is not None and writers:
        return name, _not_started(machine, f.cta)
    could = _could_write(machine, poll, writers)
    if could:
        return name, f": it could still be written {'; '.join(could[:4])}"
    return name, f": no other warp that is left comes to a write of {poll.read.space} memory"


def _not_started(machine, cta) -> str:
    """Why those that wait for the rest of the grid wait for ever."""
    ctas = len(cta.cluster.ctas)
    total = int(np.prod(cta.cluster.grid.grid))
    running = sum(len(c.ctas) for c in machine.resident)
    return (
        f": {total - machine.started * ctas} of the grid's {total} CTAs have not started, since "
        f"the {running} that run fill the chip ({SM_COUNT} SMs; a CTA takes {cta.threads} threads, "
        f"{cta.cluster.grid.smem_bytes:,} bytes of an SM's shared memory) and none of them ends "
        f"before; missing: a grid of at most {running} CTAs, or CTAs that take less of an SM"
    )


def writes(ins, space: str) -> bool:
    """Whether an instruction may write a state space."""
    if ins.mods[0] in ("st", "atom", "red"):
        return space_of(ins).split("::")[0] in (space, "generic") or ins.has("async")
    if ins.mods[0] != "cp":
        return False
    target = next((m for m in ins.mods if m.split("::")[0] in ("global", "shared")), "")
    return target.split("::")[0] == space


def _could_write(machine, poll: Poll, writers) -> list[str]:
    """Other warps that are left and may come to one of some instructions, and what keeps them."""
    found = {}
    for cluster in machine.resident:
        for warp in (w for cta in cluster.ctas for w in cta.warps):
            for f in warp.fragments:
                if f.waits_for is poll:
                    continue
                inside = f.waits_for.visited if isinstance(f.waits_for, Poll) else frozenset()
                reach = _reachable(machine.code.structure, f.pc)
                ins = next((i for b, i in writers if b in reach and b not in inside), None)
                if ins is None:
                    continue
                text = f"at {ins.loc or ins.opcode} by {{}}, which {_kept(machine, f)}"
                found.setdefault(text, []).append(f)
    return [text.format(_several(fragments)) for text, fragments in found.items()]


def _kept(machine, f) -> str:
    """What a warp does that does not come to a write."""
    if isinstance(f.waits_for, Poll):
        return f"polls {f.waits_for.place or 'nothing'} at {_where(machine, f)}"
    if f.waits_for is None:
        return f"waits for lanes of its own warp at {_where(machine, f)}"
    what = type(f.waits_for).__name__
    known = {
        "MBarrier": "an mbarrier",
        "NamedBarrier": "a barrier",
        "ClusterBarrier": "its cluster",
    }
    return f"waits for {known.get(what, 'something')} at {_where(machine, f)}"


def _several(fragments) -> str:
    more = f" and {len(fragments) - 1} more" if len(fragments) > 1 else ""
    return f"warp {fragments[0].index} of CTA {fragments[0].cta.index}{more}"


def _reachable(blocks, start: int) -> set[int]:
    """Blocks that control may come to."""
    seen, work = set(), [start]
    while work:
        block = work.pop()
        if block != EXIT and block not in seen:
            seen.add(block)
            work += blocks[block].successors
    return seen


def _registers(machine, pool: RegisterPool, fragments) -> tuple[str, str]:
    warps = sorted({f.index for f in fragments})
    wanted = ", ".join(str(n) for n in sorted({pool.wanted[w] for w in warps}))
    missing = sum(32 * (pool.wanted[w] - pool.of(w)) for w in warps)
    gave = {w: n for w, n in pool.held.items() if n < pool.entry}
    back = ", ".join(f"warp {w} keeps {n}" for w, n in sorted(gave.items()))
    name = (
        f"registers: {len(warps)} warp(s) of CTA {pool.cta.index} wait in setmaxnreg.inc at "
        f"{_where(machine, fragments[0])} for {wanted} a thread"
    )
    return name, (
        f": each thread starts with {pool.entry}, so they need {missing:,} more, and {pool.free:,} "
        f"are free in the CTA's pool; given back by setmaxnreg.dec: {back or 'nothing'}; missing: "
        "a setmaxnreg.dec of the other warps for all that is taken, or smaller values"
    )


def _cluster(machine, barrier, fragments) -> str:
    away = []
    for cta in barrier.cluster.ctas:
        late = [w for w in cta.warps if w.live and not w.cluster_arrived]
        away += [
            f"warp {w.index} of CTA {cta.index} is at {_where(machine, w.fragments[0])}"
            for w in late
            if w.fragments
        ]
    text = (
        f"the cluster barrier at {_where(machine, fragments[0])}: {barrier.arrived} of "
        f"{barrier.expected} threads arrived"
    )
    if away:
        text += (
            f"; not arrived: {'; '.join(away[:6])}: warps execute different numbers of "
            "barrier.cluster.arrive"
        )
    return text


def _timeline(machine, waitable) -> list[str]:
    history = machine.barrier_history(waitable) if isinstance(waitable, MBarrier) else None
    if history is None or not history.events:
        return []
    lines = [f"  {history.name}:"]
    for e in history.events[-LAST:]:
        lines.append(f"    event {e.number}, phase {e.phase}: {e.who}: {e.what}, at {e.at}")
    return lines
