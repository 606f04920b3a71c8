"""Rules of CTA pairs. In tensor memory, each CTA allocates and frees for both (PTX ISA 9.7.16.7).

`tcgen05.alloc.cta_group::2` reaches into the peer CTA, so the warp that issues it must know that
the peer has been launched. The odd CTA's alloc waits for the even CTA's alloc, but not the other
way round. So the even CTA's dealloc must be ordered after the odd CTA's alloc (CUTLASS #3435:
otherwise the launch fails on a B300). Order of execution, without memory, is enough for both.
What the peer's warps load and store in tensor memory must come before, too: they have stopped when
either CTA frees (9.7.16.7; CUTLASS and the DSL let the CTAs meet there). No chip was asked.

All tcgen05 instructions of a kernel have the same .cta_group (9.7.16.5). ptxas refuses a kernel
with both, whether it executes them or not, so no chip can load it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from b200.checker import words
from b200.checker.accesses import Record, issued_before
from b200.checker.agent import Agent
from b200.checker.finding import PORTABILITY
from b200.checker.memory.shadow import distinct
from b200.checker.tensor.tensor_shadow import ALL
from b200.checker.vector_clocks import ORDER
from b200.chip.state import CTA
from b200.program.module import Instr, Kernel

if TYPE_CHECKING:
    from b200.checker.observer import Observer
    from b200.checker.tensor.tensor_memory import TensorRules

GROUPS = "cta_group::1", "cta_group::2"
MOVES = ("load", "store")  # kinds of records: tcgen05.ld and tcgen05.st


def peer_of(cta: CTA) -> CTA:
    even, odd = cta.pair
    return odd if cta is even else even


def runs(agent: Agent, cta: CTA) -> bool:
    """Whether a warp knows that another CTA of its cluster has started."""
    return any(agent.knows(ORDER, other.component, 1) for other in agent.state.agents_of(cta))


def allocates(observer: Observer, agent: Agent) -> None:
    """A warp is about to execute tcgen05.alloc.cta_group::2."""
    peer = peer_of(agent.cta)
    if runs(agent, peer):
        return
    observer.found(
        "protocol",
        "tensor memory is allocated for a CTA pair before the peer CTA is known to run",
        f"this access: {words.line(observer.ins)}, by {words.name(agent)}; the peer is rank "
        f"{peer.rank}",
        "missing: barrier.cluster.arrive (.relaxed will do) and barrier.cluster.wait before "
        "tcgen05.alloc.cta_group::2, which reaches into the peer CTA",
        at=observer.ins,
    )


def allocated(record: Record, first: int) -> None:
    """A CTA has done its part of a pair's allocation; the odd CTA's has waited for the even's."""
    cta, allocations = record.agent.cta, record.agent.state.pairs
    mine = allocations.setdefault((cta.rank, first), [])
    mine.append(record)
    even, odd = cta.pair
    if cta is odd:
        other = allocations[even.rank, first][len(mine) - 1]
        record.agent.learn_order(other.component, other.step)


def frees(observer: Observer, record: Record, first: int) -> None:
    """A warp is about to free a pair's columns: the peer must have allocated them before."""
    agent = record.agent
    peer, allocations = peer_of(agent.cta), agent.state.pairs
    turn = len(allocations.get((agent.cta.rank, first), ())) - 1
    of_peer = allocations.get((peer.rank, first), ())
    other = of_peer[turn] if 0 <= turn < len(of_peer) else None
    if other is not None and agent.knows(ORDER, other.component, other.step):
        return
    done = words.act(other) if other is not None else "not executed yet"
    observer.found(
        "lifetime",
        "tensor memory of a CTA pair is deallocated before the peer CTA is known to have allocated "
        "it",
        f"this access: {words.act(record)}",
        f"the peer's tcgen05.alloc, in CTA rank {peer.rank}: {done}",
        "missing: barrier.cluster.arrive and barrier.cluster.wait between the peer's alloc and "
        "this dealloc (the alloc of one CTA does not wait for the other's)",
        at=record.ins,
        other=other.ins if other is not None else None,
    )


def uses(observer: Observer, record: Record, columns: slice) -> None:
    """A warp frees a pair's columns: the peer's warps must have used them before."""
    rules = observer.tensor(peer_of(record.agent.cta))
    shadow, records = rules.shadow, rules.state.records
    written = shadow.writers(ALL, columns)
    numbers = {*distinct(written), *distinct(shadow.loaded[:, :, columns])}
    for old in (records[number] for number in numbers if number):
        if old.kind in MOVES and not issued_before(record.agent, old):
            frees_in_use(rules, record, old, columns)
    freed = shadow.freed[columns]
    freed[freed == 0] = record.number


def frees_in_use(rules: TensorRules, new: Record, old: Record, columns: slice) -> None:
    """Report dealloc `new` of a pair, not known to come after the peer's load or store."""
    rules.report(
        "lifetime",
        f"tensor memory of a CTA pair is deallocated before {words.thing(old)} of the peer CTA is "
        "known to have used it",
        f"this access: {words.act(new)}",
        f"used by: {words.act(old)}",
        f"in {rules.place(columns)}",
        "missing: barrier.cluster.arrive and barrier.cluster.wait, or a wait for an arrival of "
        "the peer's warps, before this dealloc",
        of=(new, old),
        severity=PORTABILITY,
    )


def groups_of(kernel: Kernel) -> dict[str, Instr]:
    """.cta_group -> the first tcgen05 instruction of it in a kernel's text."""
    found: dict[str, Instr] = {}
    for part in kernel.body:
        if isinstance(part, Instr) and part.mods[0] == "tcgen05":
            for group in GROUPS:
                if group in part.mods:
                    found.setdefault(group, part)
    return found


def groups(observer: Observer, found: dict[str, Instr]) -> None:
    """A launch has ended of a kernel with these groups."""
    if len(found) < len(GROUPS):
        return
    one, two = (found[group] for group in GROUPS)
    observer.found(
        "protocol",
        "a kernel has tcgen05 instructions of cta_group::1 and of cta_group::2",
        f"{words.line(one)}: {one.opcode}",
        f"{words.line(two)}: {two.opcode}",
        "ptxas refuses such a kernel",
        "missing: the same .cta_group for all of them, or a kernel for each",
        at=one,
        other=two,
    )
