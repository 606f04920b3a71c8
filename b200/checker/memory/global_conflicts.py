"""Conflicts in global memory: checks an access against earlier writes, and words the finding."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from b200.checker import words
from b200.checker.agent import Agent
from b200.checker.finding import ERROR, NOTE, PORTABILITY
from b200.checker.memory import lane_release_rule
from b200.checker.memory.global_order import GlobalOrder, Signal
from b200.checker.memory.global_reads import GlobalRead
from b200.checker.memory.lane_sync import lanes_at
from b200.checker.memory.lost_updates import lost_update
from b200.checker.memory.shadow import distinct
from b200.checker.vector_clocks import CTA, FENCED, GLOBAL, GPU, ORDER, distance, scope_of
from b200.chip.describe import mnemonic
from b200.effects import Access, Copies, Loads
from b200.program.module import Instr

if TYPE_CHECKING:
    from b200.checker.observer import Observer
    from b200.chip.global_memory import Region

WEAK, STRONG, ATOMIC, COPY, REDUCTION = "weak", "strong", "atomic", "copy", "reduction"
COPIED = "missing: a wait for the copy (its mbarrier, or its group) that is before the write"
MORAL = (STRONG, ATOMIC)  # no conflict among themselves, within their scopes


class AccessMade(NamedTuple):
    """An access of one allocation that is being made. kind: as in Write. scope: the scope of a
    strong access. same: whether a store has left what was there. lanes: where it matters, those
    that make it.
    """

    agent: Agent
    ins: Instr
    region: Region
    kind: str = WEAK
    scope: int = GPU
    writes: bool = False
    same: bool = False
    lanes: int = 0


class Write:
    """A write that the shadow remembers.

    component, step: the write is complete for a warp whose clock has this step of this component.
    epoch: the writing warp's epoch. fenced: the writing warp's clock at its latest fence before.
    signal: the signal that a strong read receives from the write. lanes: those that write, each for
    itself; 0 if the warp writes as one. issue: which bulk copy it is (repeats.py).
    """

    __slots__ = tuple("agent ins kind scope component step epoch fenced signal lanes issue".split())

    def __init__(
        self,
        agent: Agent,
        ins: Instr,
        kind: str,
        lane: int | None = None,
        issue: tuple[int, tuple] | None = None,
    ):
        self.agent, self.ins, self.kind = agent, ins, kind
        self.scope = scope_of(ins, GPU)
        self.component, self.epoch = agent.component, agent.now()
        self.step, self.fenced = self.epoch, agent.fenced
        self.signal: Signal | None = None
        self.lanes, self.issue = 0, None
        if kind in (COPY, REDUCTION) and is_bulk(ins):
            self.issue = issue
            stream = agent.stream("bulk_write", lane)
            self.component, self.step = stream.component, stream.issued


def is_bulk(ins: Instr) -> bool:
    """Whether an instruction copies through the async proxy."""
    return isinstance(ins.effect, Copies) and ins.effect.bulk


def width(ins: Instr) -> int:
    """Bits of an element that lanes access; 0 for what is no access of lanes."""
    return ins.effect.bits if isinstance(ins.effect, Access) else 0


class GlobalConflicts:
    """Decides what a conflict is, for the rules of one launch (global_memory.py). writes: number ->
    the write that has it; None for no write, or for one that does not count.
    """

    def __init__(self, observer: Observer, order: GlobalOrder, writes: list[Write | None]):
        self.observer, self.order, self.writes = observer, order, writes

    def check(self, cells: np.ndarray, access: AccessMade) -> None:
        """Check an access against the latest writes of its cells."""
        agent = access.agent
        for number in distinct(cells):
            if (old := self.writes[number]) is not None:
                if agent.lane_acquires is not None and access.kind == WEAK:
                    access = access._replace(lanes=lanes_at(cells, number, agent.lanes))
                self._against(old, access)

    def check_widths(self, cells: np.ndarray, access: AccessMade) -> None:
        """Check a strong access, before it receives a signal: strong writes of another width."""
        for number in distinct(cells):
            old = self.writes[number]
            if old is not None and old.kind in MORAL and old.agent is not access.agent:
                if not self._known(old, access):
                    self._mixed(old, access)

    def _known(self, old: Write | GlobalRead, access: AccessMade) -> bool:
        return self.order.known(access.agent, old.agent, old.component, old.step)

    def _mixed(self, old: Write | GlobalRead, access: AccessMade) -> None:
        """Two strong accesses are morally strong only if they overlap completely, and the axioms
        say nothing of a race of mixed size (8.7.1).
        """
        mine, its = width(access.ins), width(old.ins)
        if mine and its and mine != its:
            self._found(
                old,
                access,
                f"strong accesses of {min(mine, its)} and {max(mine, its)} bits meet, and one "
                "covers a part of the other",
                "missing: one width for the flag; PTX orders strong accesses that overlap "
                "completely",
                PORTABILITY,
            )

    def check_adds(self, addresses: np.ndarray, nbytes: int, access: AccessMade) -> None:
        """Check a weak access against all atomics on its places, not the latest alone."""
        if access.kind not in MORAL and self.order.has_adds(access.region.base):
            for old in self.order.adds(addresses, nbytes):
                self._against(old, access)

    def _against(self, old: Write, access: AccessMade) -> None:
        agent, far = access.agent, distance(access.agent.cta, old.agent.cta)
        reach = min(access.scope, old.scope) >= far
        if access.kind in (REDUCTION, ATOMIC) and old.kind in (REDUCTION, ATOMIC):
            if REDUCTION in (access.kind, old.kind):  # relaxed, of GPU scope (9.7.9.25.4.2)
                if not reach and not self._known(old, access):
                    self._narrow(old, access)
                return
        if old.agent is agent and access.writes:
            issue = self.observer.repeats.issue
            if old.ins is access.ins and issue is not None and old.issue == issue:
                return  # all lanes issue one copy (repeats.py)
            if not self._known(old, access):
                self._under_way(old, access)
            else:
                self._through_proxy(old, access)
            return
        strong = access.kind in MORAL and old.kind in MORAL
        if strong and reach:
            return
        if self._known(old, access):
            self._ordered(old, access)
        elif old.kind in MORAL and self.order.observed(agent, old):
            return
        elif strong:
            self._narrow(old, access)
        elif not (access.same and old.ins.effect == access.ins.effect):
            self._conflict(old, access)
        elif far > CTA:  # two warps of a CTA that do are not worth a word (as in shared_memory.py)
            self._found(
                old,
                access,
                "several CTAs store the same value to one address of global memory",
                "it is the same whoever comes last; a guard (one CTA alone) would store it once",
                NOTE,
            )

    def _ordered(self, old: Write, access: AccessMade) -> None:
        """Check what order of memory does not settle: other lanes, proxies, non-coherent loads."""
        agent = access.agent
        self._through_proxy(old, access)
        if access.writes and old.agent.cta is agent.cta:
            return
        unaware = self.order.unaware(agent, access.lanes, old.agent, old.component, old.step)
        if unaware:
            self._unacquired(old, access, unaware)
        if old.lanes and old.agent.lane_releases and old.agent is not agent:
            row = self.order.row(agent, old.agent.state)
            lane_release_rule.of_global(self.observer, old, access, row)
        if isinstance(access.ins.effect, Loads) and access.ins.effect.constant:
            self._non_coherent(old, access)

    def _through_proxy(self, old: Write, access: AccessMade) -> None:
        """Check that the async proxy sees a write of the generic one that is before its access."""
        if access.kind not in (COPY, REDUCTION) or old.kind not in (WEAK, STRONG, ATOMIC):
            return
        agent = access.agent
        if old.agent.cta.cluster is agent.cta.cluster:
            seen = agent.knows(GLOBAL, old.component, old.step)
        else:
            seen = self.order.knows(agent, old.agent.state, old.component, old.step, GLOBAL)
        if not seen:
            verb = "overwrites" if access.writes else "reads"
            self._found(
                old,
                access,
                f"{mnemonic(access.ins)} {verb} global memory that {mnemonic(old.ins)} wrote "
                "through the generic proxy, with no fence.proxy.async in between",
                f"missing: fence.proxy.async (or .global) by {words.name(agent)} after what orders "
                "it after the write, or after the write by its warp",
                PORTABILITY if access.writes else ERROR,
                kind="proxy",
            )

    def against_read(self, read: GlobalRead, access: AccessMade) -> None:
        """Check a write against an earlier read of its places."""
        agent, far = access.agent, distance(access.agent.cta, read.agent.cta)
        if read.agent is agent and not read.by_copy or self._known(read, access):
            return
        if read.strong and access.kind in MORAL and min(read.scope, access.scope) >= far:
            return self._mixed(read, access)
        executed = read.agent.state is agent.state and agent.knows(ORDER, read.component, read.step)
        if not executed and not read.by_copy:
            executed = self.order.received_from(agent, read) is not None
        order = "with nothing to order the two"
        if executed:
            order = "which is over before by the order of execution only"
        who = "another CTA" if read.agent.cta is not agent.cta else "another warp"
        if read.by_copy:
            who = f"{mnemonic(read.ins)} of {'the same warp' if read.agent is agent else who}"
        missing = self._update(access.ins, read.ins)
        missing = missing or (COPIED if read.by_copy else self._between(agent, read))
        self._found(
            read,
            access,
            f"{mnemonic(access.ins)} writes global memory that {who} reads in the same launch, "
            f"{order}",
            missing,
            PORTABILITY if executed else ERROR,
        )

    def _update(self, one: Instr, other: Instr) -> str:
        return lost_update(self.observer.machine.code.kernel.body, one, other)

    def _between(self, agent: Agent, read: GlobalRead) -> str:
        """What would order a write after a read, in words."""
        missing, _ = self.order.missing(agent, read)
        if missing:
            return missing
        if read.agent.cta is agent.cta:
            return words.barrier_between(agent, read)
        return self.order.not_covered(agent, read, "read") or (
            "missing: a second launch, or a flag between the two (st.release or red.release after"
            " the read, ld.acquire before the write)"
        )

    def _conflict(self, old: Write, access: AccessMade) -> None:
        agent, same_cta = access.agent, old.agent.cta is access.agent.cta
        missing, of_reader = self.order.missing(agent, old)
        order, severity = "with nothing to order the two", ERROR
        if missing:
            order = "and the signal between the two does not order them"
            strong = access.kind in MORAL and not access.writes
            severity = PORTABILITY if of_reader and strong else ERROR
        elif old.kind == COPY and same_cta:
            missing = (
                "missing: cp.async.bulk.commit_group and cp.async.bulk.wait_group 0 by the warp "
                "that issued the copy, then a barrier"
            )
        elif update := self._update(access.ins, old.ins):
            missing = update
        elif same_cta:
            missing = words.barrier_between(agent, old)
        elif access.writes:
            missing = (
                "missing: an output tile of its own for each CTA (coordinates, or the number of "
                "CTAs), or a guard at the tensor's edge"
            )
        elif access.kind in MORAL:
            missing = f"missing: .relaxed or .release for the {mnemonic(old.ins)}; or a flag"
            far = distance(agent.cta, old.agent.cta)
            if old.fenced is not None and old.fenced[FENCED + far].any():
                severity = PORTABILITY  # a fence, and then the flag
        else:
            missing = self.order.not_covered(agent, old, "write") or (
                "missing: a second launch, or a flag between the two CTAs (st.release or red "
                "after the write, ld.acquire before the read)"
            )
        if access.writes:
            diagnosis = "two CTAs write the same address of global memory"
            if same_cta:
                diagnosis = "two warps of a CTA write the same address of global memory"
            diagnosis += f", {order}" if order.startswith("and") else ""
        else:
            who = "another warp" if same_cta else "another CTA"
            who = "the same warp" if old.agent is agent else who
            diagnosis = f"global memory is read that {who} writes in the same launch, {order}"
        self._found(old, access, diagnosis, missing, severity)

    def _under_way(self, old: Write, access: AccessMade) -> None:
        self._found(
            old,
            access,
            f"{mnemonic(access.ins)} writes global memory that {mnemonic(old.ins)} of the same "
            "warp may still write",
            "missing: cp.async.bulk.commit_group and cp.async.bulk.wait_group 0 (without .read, "
            "which waits for the source only) between the two",
        )

    def _narrow(self, old: Write, access: AccessMade) -> None:
        weaker = old if old.scope <= access.scope else access
        self._found(
            old,
            access,
            "strong accesses of two CTAs meet, and the scope of one does not reach the other CTA",
            f"missing: .gpu for the {mnemonic(weaker.ins)} at {words.line(weaker.ins)}, by "
            f"{words.name(weaker.agent)}",
        )

    def _non_coherent(self, old: Write, access: AccessMade) -> None:
        """Report ld.global.nc of what the launch has written. Memory that it reads must be
        read-only while the kernel runs (PTX ISA 9.7.9.9): the cache that serves it is not told of
        writes. With L1::no_allocate nothing old is kept there.
        """
        effect = access.ins.effect
        kept = not (isinstance(effect, Loads) and "no_allocate" in effect.policies)
        self._found(
            old,
            access,
            f"a non-coherent load reads what {mnemonic(old.ins)} writes in the same launch",
            "missing: a plain load (no __ldg, no const __restrict__ for memory that the kernel "
            "writes), or another launch",
            ERROR if kept else PORTABILITY,
        )

    def _unacquired(self, old: Write, access: AccessMade, unaware: int) -> None:
        agent = access.agent
        assert agent.lane_acquires is not None  # some lanes have acquired
        who, missing, severity = agent.lane_acquires.words(unaware, agent.in_step)
        verb = "written" if access.writes else "read"
        diagnosis = f"global memory that another warp has written is {verb} {who}"
        self._found(old, access, diagnosis, missing, severity)

    def _found(
        self,
        old: Write | GlobalRead,
        access: AccessMade,
        diagnosis: str,
        missing: str,
        severity: str = ERROR,
        kind: str = "global",
    ) -> None:
        done = "written" if isinstance(old, Write) else "read"
        done += " before" if access.writes else ""
        self.observer.found(
            kind,
            diagnosis,
            f"this access: {words.line(access.ins)}, by {words.name(access.agent)}",
            f"{done}: {words.line(old.ins)}, by {words.name(old.agent)}",
            f"in {self.observer.operand(access.region.base)}",
            missing,
            at=access.ins,
            other=old.ins,
            severity=severity,
        )
