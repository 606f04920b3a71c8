"""Conflicts in global memory: checks an access against earlier writes, and words the finding."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from b200.checker import words
from b200.checker.agent import Agent
from b200.checker.finding import ERROR, NOTE, PORTABILITY
from b200.checker.memory import lane_release_rule
from b200.checker.memory.global_order import GlobalOrder, Signal
from b200.checker.memory.global_reads import Read
from b200.checker.memory.lane_sync import lanes_at
from b200.checker.memory.lost_updates import lost_update
from b200.checker.memory.shadow import distinct
from b200.checker.scopes import GPU, distance, scope_of
from b200.checker.vector_clocks import FENCED, GLOBAL, ORDER
from b200.chip.describe import mnemonic
from b200.effects import Access as EachAccess
from b200.effects import Copies, Loads
from b200.program.module import Instr

if TYPE_CHECKING:
    from b200.checker.observer import Observer
    from b200.chip.global_memory import Region

WEAK, STRONG, ATOMIC, COPY, REDUCTION = "weak", "strong", "atomic", "copy", "reduction"
COPIED = "missing: a wait for the copy (its mbarrier, or its group) that is before the write"
MORAL = (STRONG, ATOMIC)  # no conflict among themselves, within their scopes


class Access(NamedTuple):
    """An access that is being made. kind: as in Write. scope: the scope of a strong access. same:
    whether a store has left what was there. lanes: where it matters, those that make it.
    """

    ins: Instr
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
    return ins.effect.bits if isinstance(ins.effect, EachAccess) else 0


class GlobalConflicts:
    """Decides what a conflict is, for the rules of one launch (global_memory.py). writes: number ->
    the write that has it; None for no write, or for one that does not count.
    """

    def __init__(self, observer: Observer, order: GlobalOrder, writes: list[Write | None]):
        self.observer, self.order, self.writes = observer, order, writes

    def check(self, agent: Agent, cells: np.ndarray, access: Access, region: Region) -> None:
        """Check an access against the latest writes of its cells."""
        for number in distinct(cells):
            if (old := self.writes[number]) is not None:
                if agent.lane_acquires is not None and access.kind == WEAK:
                    access = access._replace(lanes=lanes_at(cells, number, agent.lanes))
                self._against(agent, old, access, region)

    def check_widths(self, agent: Agent, cells: np.ndarray, access: Access, region: Region) -> None:
        """Check a strong access, before it receives a signal: strong writes of another width."""
        for number in distinct(cells):
            old = self.writes[number]
            if old is not None and old.kind in MORAL and old.agent is not agent:
                if not self.order.known(agent, old.agent, old.component, old.step):
                    self._mixed(agent, old, access, region)

    def _mixed(self, agent: Agent, old: Write | Read, access: Access, region: Region):
        """Two strong accesses are morally strong only if they overlap completely, and the axioms
        say nothing of a race of mixed size (8.7.1).
        """
        mine, its = width(access.ins), width(old.ins)
        if mine and its and mine != its:
            self._found(
                "global",
                f"strong accesses of {min(mine, its)} and {max(mine, its)} bits meet, and one "
                "covers a part of the other",
                agent,
                old,
                access,
                region,
                "missing: one width for the flag; PTX orders strong accesses that overlap "
                "completely",
                PORTABILITY,
            )

    def check_adds(
        self, agent: Agent, addresses: np.ndarray, nbytes: int, access: Access, region: Region
    ) -> None:
        """Check an access that is not strong against the atomics on its places: each of them must
        be before it, not the latest alone.
        """
        if access.kind not in MORAL and self.order.has_adds(region.base):
            for old in self.order.adds(addresses, nbytes):
                self._against(agent, old, access, region)

    def _against(self, agent: Agent, old: Write, access: Access, region: Region):
        if access.kind in (REDUCTION, ATOMIC) and old.kind in (REDUCTION, ATOMIC):
            if REDUCTION in (access.kind, old.kind):  # relaxed, of GPU scope (9.7.9.25.4.2)
                far = distance(agent.cta, old.agent.cta)
                known = self.order.known(agent, old.agent, old.component, old.step)
                if min(access.scope, old.scope) < far and not known:
                    self._narrow(agent, old, access, region)
                return
        if old.agent is agent and access.writes:
            issue = self.observer.repeats.issue
            if old.ins is access.ins and issue is not None and old.issue == issue:
                return  # all lanes issue one copy (repeats.py)
            if not self.order.known(agent, agent, old.component, old.step):
                self._under_way(agent, old, access, region)
            else:
                self._through_proxy(agent, old, access, region)
            return
        far = distance(agent.cta, old.agent.cta)
        strong = access.kind in MORAL and old.kind in MORAL
        if strong and min(access.scope, old.scope) >= far:
            return
        if self.order.known(agent, old.agent, old.component, old.step):
            self._ordered(agent, old, access, region)
        elif old.kind in MORAL and self.order.observed(agent, old):
            return
        elif strong:
            self._narrow(agent, old, access, region)
        elif not (access.same and old.ins.effect == access.ins.effect):
            self._conflict(agent, old, access, region)
        elif old.agent.cta is not agent.cta:
            self._same_values(agent, old, access, region)

    def _ordered(self, agent: Agent, old: Write, access: Access, region: Region):
        """Check what order of memory does not settle: other lanes, proxies, non-coherent loads."""
        self._through_proxy(agent, old, access, region)
        if access.writes and old.agent.cta is agent.cta:
            return
        unaware = self.order.unaware(agent, access.lanes, old.agent, old.component, old.step)
        if unaware:
            self._unacquired(agent, old, access, region, unaware)
        if old.lanes and old.agent.lane_releases and old.agent is not agent:
            row = self.order.row(agent, old.agent.state)
            lane_release_rule.of_global(self, agent, old, access, region, row)
        if isinstance(access.ins.effect, Loads) and access.ins.effect.constant:
            self._non_coherent(agent, old, access, region)

    def _through_proxy(self, agent: Agent, old: Write, access: Access, region: Region):
        """Check that the async proxy sees a write of the generic one that is before its access."""
        if access.kind not in (COPY, REDUCTION) or old.kind not in (WEAK, STRONG, ATOMIC):
            return
        if not (
            agent.knows(GLOBAL, old.component, old.step)
            if old.agent.cta.cluster is agent.cta.cluster
            else self.order.knows(agent, old.agent.state, old.component, old.step, GLOBAL)
        ):
            self._proxy(agent, old, access, region)

    def _same_values(self, agent: Agent, old: Write, access: Access, region):
        """Two CTAs have stored the same by the same instruction: no result depends on their order.
        Two warps of a CTA that do are not worth a word (as in shared_memory.py).
        """
        self._found(
            "global",
            "several CTAs store the same value to one address of global memory",
            agent,
            old,
            access,
            region,
            "it is the same whoever comes last; a guard (one CTA alone) would store it once",
            NOTE,
        )

    def against_read(self, agent: Agent, read: Read, access: Access, region: Region) -> None:
        """Check a write against an earlier read of its places."""
        far = distance(agent.cta, read.agent.cta)
        if read.agent is agent and not read.by_copy:
            return
        if self.order.known(agent, read.agent, read.component, read.step):
            return
        if read.strong and access.kind in MORAL and min(read.scope, access.scope) >= far:
            return self._mixed(agent, read, access, region)
        executed = read.agent.state is agent.state and agent.knows(ORDER, read.component, read.step)
        executed = (
            executed or not read.by_copy and self.order.received_from(agent, read) is not None
        )
        order = (
            "which is over before by the order of execution only"
            if executed
            else "with nothing to order the two"
        )
        who = "another CTA" if read.agent.cta is not agent.cta else "another warp"
        if read.by_copy:
            who = f"{mnemonic(read.ins)} of {'the same warp' if read.agent is agent else who}"
        self.observer.found(
            "global",
            f"{mnemonic(access.ins)} writes global memory that {who} reads in the same launch, "
            f"{order}",
            f"this access: {words.line(access.ins)}, by {words.name(agent)}",
            f"read before: {words.line(read.ins)}, by {words.name(read.agent)}",
            f"in {self.observer.operand(region.base)}",
            self._update(access.ins, read.ins)
            or (COPIED if read.by_copy else self._between(agent, read)),
            at=access.ins,
            other=read.ins,
            severity=PORTABILITY if executed else ERROR,
        )

    def _update(self, one: Instr, other: Instr) -> str:
        return lost_update(self.observer.machine.code.kernel.body, one, other)

    def _between(self, agent: Agent, read: Read) -> str:
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

    def _conflict(self, agent: Agent, old: Write, access: Access, region: Region):
        missing, of_reader = self.order.missing(agent, old)
        who = "another CTA" if old.agent.cta is not agent.cta else "another warp"
        if old.agent is agent:
            who = "the same warp"
        order = "with nothing to order the two"
        severity = ERROR
        if missing:
            order = "and the signal between the two does not order them"
            strong = access.kind in MORAL and not access.writes
            severity = PORTABILITY if of_reader and strong else ERROR
        elif old.kind == COPY and old.agent.cta is agent.cta:
            missing = (
                "missing: cp.async.bulk.commit_group and cp.async.bulk.wait_group 0 by the warp "
                "that issued the copy, then a barrier"
            )
        elif update := self._update(access.ins, old.ins):
            missing = update
        elif old.agent.cta is agent.cta:
            missing = words.barrier_between(agent, old)
        elif access.writes:
            missing = (
                "missing: an output tile of its own for each CTA (coordinates, or the number of "
                "CTAs), or a guard at the tensor's edge"
            )
        else:
            missing = (
                "missing: a second launch, or a flag between the two CTAs (st.release or red "
                "after the write, ld.acquire before the read)"
            )
            missing = self.order.not_covered(agent, old, "write") or missing
            far = distance(agent.cta, old.agent.cta)
            if access.kind in MORAL and old.fenced is not None and old.fenced[FENCED + far].any():
                severity = PORTABILITY  # a fence, and then the flag
            if access.kind in MORAL:
                missing = f"missing: .relaxed or .release for the {mnemonic(old.ins)}; or a flag"
        if access.writes:
            diagnosis = "two CTAs write the same address of global memory"
            if old.agent.cta is agent.cta:
                diagnosis = "two warps of a CTA write the same address of global memory"
            if order.startswith("and"):
                diagnosis += f", {order}"
        else:
            diagnosis = f"global memory is read that {who} writes in the same launch, {order}"
        self._found("global", diagnosis, agent, old, access, region, missing, severity)

    def _under_way(self, agent: Agent, old: Write, access: Access, region):
        self._found(
            "global",
            f"{mnemonic(access.ins)} writes global memory that {mnemonic(old.ins)} of the same "
            "warp may still write",
            agent,
            old,
            access,
            region,
            "missing: cp.async.bulk.commit_group and cp.async.bulk.wait_group 0 (without .read, "
            "which waits for the source only) between the two",
        )

    def _narrow(self, agent: Agent, old: Write, access: Access, region):
        ins, whose = (old.ins, old.agent) if old.scope <= access.scope else (access.ins, agent)
        self._found(
            "global",
            "strong accesses of two CTAs meet, and the scope of one does not reach the other CTA",
            agent,
            old,
            access,
            region,
            f"missing: .gpu for the {mnemonic(ins)} at {words.line(ins)}, by {words.name(whose)}",
        )

    def _non_coherent(self, agent: Agent, old: Write, access: Access, region):
        """Report ld.global.nc of what the launch has written. Memory that it reads must be
        read-only while the kernel runs (PTX ISA 9.7.9.9): the cache that serves it is not told of
        writes. With L1::no_allocate nothing old is kept there.
        """
        effect = access.ins.effect
        kept = not (isinstance(effect, Loads) and "no_allocate" in effect.policies)
        self._found(
            "global",
            f"a non-coherent load reads what {mnemonic(old.ins)} writes in the same launch",
            agent,
            old,
            access,
            region,
            "missing: a plain load (no __ldg, no const __restrict__ for memory that the kernel "
            "writes), or another launch",
            ERROR if kept else PORTABILITY,
        )

    def _unacquired(self, agent: Agent, old: Write, access: Access, region, unaware: int):
        assert agent.lane_acquires is not None  # some lanes have acquired
        who, missing, severity = agent.lane_acquires.words(unaware, agent.in_step)
        verb = "written" if access.writes else "read"
        diagnosis = f"global memory that another warp has written is {verb} {who}"
        self._found("global", diagnosis, agent, old, access, region, missing, severity)

    def _proxy(self, agent: Agent, old: Write, access: Access, region):
        verb = "overwrites" if access.writes else "reads"
        self._found(
            "proxy",
            f"{mnemonic(access.ins)} {verb} global memory that {mnemonic(old.ins)} wrote through "
            "the generic proxy, with no fence.proxy.async in between",
            agent,
            old,
            access,
            region,
            f"missing: fence.proxy.async (or .global) by {words.name(agent)} after what orders it "
            "after the write, or after the write by its warp",
            PORTABILITY if access.writes else ERROR,
        )

    def _found(
        self,
        kind: str,
        diagnosis: str,
        agent: Agent,
        old: Write | Read,
        access: Access,
        region: Region,
        missing: str,
        severity: str = ERROR,
    ):
        done = "written" if isinstance(old, Write) else "read"
        done += " before" if access.writes else ""
        self.observer.found(
            kind,
            diagnosis,
            f"this access: {words.line(access.ins)}, by {words.name(agent)}",
            f"{done}: {words.line(old.ins)}, by {words.name(old.agent)}",
            f"in {self.observer.operand(region.base)}",
            missing,
            at=access.ins,
            other=old.ins,
            severity=severity,
        )
