"""The checker itself: one Observer for each launch, fed by instrument.py and checked.py.

The method is happens-before with vector clocks (vector_clocks.py). A warp is an agent. An
asynchronous operation is a step in a sequence of its warp, or in the phases of the mbarrier that it
completes. Synchronisation joins clocks. The rules (shared_memory.py, tensor_memory.py,
global_memory.py, lifetime.py) check each access against the earlier ones that its agent does not
know of. What counts is which accesses are ordered, not which came first in this run. So the checker
also finds a race in a run whose result was right.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

from b200.checker import idle_launch, lifetime, overlapping, pairs
from b200.checker import naming as words
from b200.checker.accesses import ClusterState, Meeting, Record
from b200.checker.arrivals import Arrivals
from b200.checker.cancellations import Cancellations
from b200.checker.coverage import Coverage
from b200.checker.dependent_launch import DependentLaunch
from b200.checker.descriptor_rank import DescriptorRanks
from b200.checker.descriptor_version import DescriptorVersions
from b200.checker.finding import ERROR, NOTE, Finding, Findings
from b200.checker.following import Departed, Following, Left, Remark, Traces
from b200.checker.given import Given
from b200.checker.global_memory import GlobalRules
from b200.checker.mbarriers import Mbarriers
from b200.checker.overflows import Overflows
from b200.checker.overtaken import Overtaken
from b200.checker.products import Products
from b200.checker.quantise import unrounded_scales
from b200.checker.repeats import Repeats
from b200.checker.shadow import SharedShadow
from b200.checker.shared_memory import SharedRules
from b200.checker.stores import Stores
from b200.checker.tensor_memory import TensorRules
from b200.checker.unwritten import Unwritten
from b200.checker.vector_clocks import HB, Agent
from b200.chip.describe import mnemonic
from b200.chip.state import Cluster
from b200.chip.tensors import LiveTensors
from b200.effects import ACQUIRING, RELEASING, FencesTensor
from b200.hardware import OFFSET_MASK
from b200.program.module import Instr

if TYPE_CHECKING:
    from b200.checker.checked import Checker

ALIKE = 3  # findings of one kind about one line


class Observer(Mbarriers):
    """The checker's state of one launch. ins: the instruction that is being executed. findings: the
    findings so far. traces: the steps that its clusters follow, None if they do not.
    """

    def __init__(self, checker: Checker, code, traces: Traces | None = None):
        self.checker = checker
        self.machine = machine = checker.machine
        self.following = None
        if traces is not None:
            self.following = Following(self, machine.memory, traces)
        effects = (op.ins.effect for block in code.structure for op in block.ops)
        self.strict = any(isinstance(effect, FencesTensor) for effect in effects)
        # mbarrier.init of the barriers of which somebody waited for a phase that was completed
        self.exercised: set = set()
        self.ins = None
        self.lane: int | None = None  # the lane that issues an operation; None: not a single lane
        self.findings = Findings()
        self.free: list[SharedShadow] = []  # shadows of CTAs that have ended
        self.alike: Counter = Counter()
        self.given = Given(self)
        self.globals = GlobalRules(self)
        self.replicates = machine.replicates
        self.unwritten = Unwritten(self, machine.memory, checker.whole)
        self.coverage = Coverage(self)
        self.arrivals = Arrivals(self)
        self.overtaken = Overtaken(self)
        self.products = Products(self)
        self.repeats = Repeats(self)
        self.overflows = Overflows(self)
        self.dependence: DependentLaunch | None = None
        self.wrote = False  # whether the launch has written global memory
        self.cancellations = Cancellations(self)
        self.stores = Stores() if checker.keep_stores else None
        self.descriptors = DescriptorRanks(self)
        self.versions = DescriptorVersions(self)
        self.operands: dict[int, str] = {}  # base of an allocation -> name of a tensor there
        self.states: list[ClusterState] = []
        self.cluster: Cluster | None = None  # the cluster of the warp whose turn it is
        # number of a finding that a rule for clusters has made -> of which cluster
        self.remarks: dict[int, Cluster] = {}
        self.of_clusters = 0  # findings before the rules for the launch have looked at all of it
        self.events = 0

    def forget(self) -> None:
        """The launch has ended: let go of all that was kept for it. Rules and clusters refer to one
        another, and what nothing else refers to is garbage from now on.
        """
        vars(self).clear()

    # --- who and where --------------------------------------------------------------------------
    def agent(self, warp) -> Agent:
        """The agent of the warp that a fragment belongs to."""
        state = warp.state
        found = state.agent
        if found is None:
            found = state.agent = Agent(self.state(state.cta).components, state)
        return found

    def state(self, cta) -> ClusterState:
        cluster = cta.cluster
        found = cluster.checked
        if found is None:
            found = cluster.checked = ClusterState(cluster)
        return found

    def shared(self, cta) -> SharedRules:
        found = cta.shared_rules
        if found is None:
            found = cta.shared_rules = SharedRules(
                cta, self.state(cta), self.report, self._shadow(cta.smem.size), self.products
            )
        return found

    def _shadow(self, nbytes: int) -> SharedShadow:
        return self.free.pop() if self.free else SharedShadow(nbytes)

    def tensor(self, cta) -> TensorRules:
        found = cta.tensor_rules
        if found is None:
            found = cta.tensor_rules = TensorRules(
                cta, self.state(cta), self.report, self.coverage, self.products.take_back
            )
        return found

    def operand(self, address: int) -> str:
        """The name of the tensor that a global address belongs to, as the program calls it."""
        region = self.machine.memory.find(address, 1)
        if region is None:
            return "global memory"
        found = self.operands.get(region.base)
        if found is None:
            name = LiveTensors.variable(region.base, region.size)
            found = self.operands[region.base] = name or region.name
        return found

    def report(
        self,
        kind: str,
        diagnosis: str,
        details,
        new: Record | None,
        old: Record | None,
        severity: str = ERROR,
    ) -> None:
        """A rule for clusters reports what record `new` does against record `old`."""
        before = len(self.findings)
        if kind == "race" and severity == ERROR or kind == "uninitialised" and severity != NOTE:
            diagnosis = words.first_cause(new, old) + diagnosis
        self.found(
            kind,
            diagnosis,
            details,
            new.ins if new is not None else self.ins,
            old.ins if old is not None else None,
            severity,
        )
        if len(self.findings) > before and self.cluster is not None:
            self.remarks[before] = self.cluster

    def remarked(self, finding: Finding, cluster: Cluster) -> None:
        """Report again a finding on a cluster of an earlier launch that this
        cluster has followed.
        """
        key = finding.kind, finding.loc, finding.other
        if self.findings.new(*key) and self.alike[key[:2]] < ALIKE:
            self.alike[key[:2]] += 1
            self.remarks[len(self.findings)] = cluster
            self.findings.append(finding)
        self.products.remarked(finding)

    def keeps(self) -> bool:
        """Whether a later launch may follow this one: all findings on its clusters are notes, each
        on one cluster. The notes are then kept, and reported again there. Rules for the whole
        launch find again what they found here.
        """
        following, found = self.following, self.findings[: self.of_clusters]
        if following is None or not following.on or self.findings.dropped:
            return False
        if len(self.remarks) < len(found) or any(f.severity != NOTE for f in found):
            return False
        for number, cluster in self.remarks.items():
            remark = Remark(cluster.index, found[number])
            remarks = following.traces.remarks.setdefault(cluster.trail.node, [])
            if remark not in remarks:
                remarks.append(remark)
        return True

    def found(
        self, kind: str, diagnosis: str, details, ins, other=None, severity: str = ERROR
    ) -> None:
        loc, also = words.line(ins), words.line(other) if other is not None else ""
        key = (kind, loc, also) if ins is not None else (kind, diagnosis)
        if self.following is not None and self.following.follower is not None:
            if key in self.findings.keys:
                return
            raise Departed
        if self.findings.new(*key) and self.alike[kind, loc] < ALIKE:
            self.alike[kind, loc] += 1
            details = (*details, *words.calls(ins, other))
            self.findings.append(Finding(kind, diagnosis, tuple(details), loc, also, severity))

    # --- fences ---------------------------------------------------------------------------------
    def fence_memory(self, agent: Agent, order: str, scope: int) -> None:
        """fence.acq_rel, fence.sc, membar; fence.acquire and fence.release do one half of it."""
        acquires = order in ACQUIRING
        agent.fence_memory(scope, acquires, order in RELEASING)
        if acquires:
            self.globals.order.fenced(agent, scope)

    def fence_async(self, agent: Agent) -> None:
        """fence.proxy.async for shared memory: the async proxy now sees the generic accesses
        before it.
        """
        agent.fence_async()

    def fence_async_global(self, agent: Agent) -> None:
        agent.fence_async_global()
        self.globals.order.fenced_proxy(agent)

    def fence_init(self, agent: Agent) -> None:
        agent.fence_init()

    # --- tensor memory --------------------------------------------------------------------------
    def allocated(self, warp, address, columns: int, pair: bool) -> None:
        """tcgen05.alloc has handed out columns: they are the CTA's latest allocation
        of this size.
        """
        agent, cta = self.agent(warp), warp.cta
        record = Record(
            agent,
            self.ins,
            agent.component,
            0,
            "generic",
            f"allocates {columns} columns of tensor memory",
        )
        record.step = record.epoch
        first = self._slot(warp, agent, address)
        self.state(cta).allocations[cta.rank, first] = record
        if pair:
            pairs.allocated(self, record, first)
        self.tensor(cta).allocated(slice(first, first + columns))

    def _slot(self, warp, agent: Agent, address) -> int:
        """Read the address that tcgen05.alloc has written to shared memory, and
        record that write.
        """
        at = (address if isinstance(address, int) else int(address[0])) & OFFSET_MASK
        record = Record(
            agent, self.ins, agent.component, 0, "generic", "writes the address of tensor memory"
        )
        record.step = record.epoch
        self.state(warp.cta).add(record)
        record.turn = -1  # the instruction itself brings the lanes together
        self.shared(warp.cta).generic_write(record, np.array([at // 4]), at // 4, at // 4, 0)
        return int(warp.cta.smem.u32[at // 4])

    def freed(self, warp, first: int, columns: int, pair: bool) -> None:
        agent, cta = self.agent(warp), warp.cta
        record = Record(
            agent,
            self.ins,
            agent.component,
            0,
            "dealloc",
            f"frees {columns} columns of tensor memory",
        )
        record.step = record.epoch
        self.state(cta).add(record)
        if pair:
            pairs.frees(self, record, first)
        self.tensor(cta).freed(record, slice(first, first + columns))

    def registers_read(self, warp, loads) -> None:
        """An instruction reads registers that tcgen05.ld instructions fill: those loads are
        now complete.
        """
        trail = warp.cta.cluster.trail
        if trail is not None:
            trail.step(("registers", id(loads), warp.cta.rank, warp.index))
            if trail.follows:
                return
        agent = self.agent(warp)
        for load in loads:
            record = agent.loads.get(id(load))
            if record is not None and not agent.knows(HB, record.component, record.step):
                agent.learn(record.component, record.step)

    # --- barriers of a CTA and of a cluster -----------------------------------------------------
    def meeting(self, cta, key) -> Meeting:
        meetings = self.state(cta).meetings
        found = meetings.get(key)
        if found is None:
            found = meetings[key] = Meeting()
            meetings.pop((*key[:-1], key[-1] - 2), None)
        return found

    def reach(self, record: Record, target) -> None:
        """An access reaches another CTA of the cluster, which must have started and must not have
        exited.
        """
        state = self.state(target)
        if target.rank not in record.agent.started:
            lifetime.started(self, record, target)
        if target.rank in state.exits and state.left[target.rank] == len(target.warps):
            lifetime.gone(self, record, target)
            return
        state.reach(record, target)

    # --- the end --------------------------------------------------------------------------------
    def left_by(self, cluster, roles: dict) -> Left:
        """The state that a checked cluster leaves to the rules for the whole launch."""

        def of_cluster(found: list[Any]) -> list[Any]:
            return [entry for entry in found if entry[0].agent.cta.cluster is cluster]

        coverage, state = self.coverage, cluster.checked
        ranks = state.ranks if state is not None else {}
        return Left(roles, of_cluster(coverage.unread), of_cluster(coverage.partly), ranks)

    def tell_left(self, left: Left) -> None:
        """Take over the state of a cluster of an earlier launch, which a cluster has followed to
        its end.
        """
        self.coverage.unread += left.unread
        self.coverage.partly += left.partly
        self.descriptors.tell_left(left.ranks)

    def warp_exited(self, state) -> None:
        lifetime.warp_exited(self, state)

    def finish(self) -> None:
        """The launch has ended."""
        self.conclude()
        self.of_clusters = len(self.findings)
        idle_launch.finish(self, self.machine.code.kernel, self.machine.params)
        self.coverage.finish()
        self.globals.finish()
        self.overflows.finish()
        executed = self._executed()
        self._scales({id(ins) for ins in executed})
        overlapping.finish(self, executed)

    def conclude(self) -> None:
        """Report what can be told only after the whole run; called also if an error
        ends the run.
        """
        self.repeats.finish()
        self.arrivals.finish()
        self.versions.finish()
        self.overtaken.finish()
        self.unwritten.tell("the launch did not come to its end")
        self.products.finish()
        self.findings.tell()

    def _executed(self) -> list[Instr]:
        code, hits = self.machine.code, self.machine.hits
        return [op.ins for b, n in zip(code.structure, hits) if n for op in b.ops]

    def _scales(self, ran: set[int]):
        for element, scale in unrounded_scales(self.machine.code.structure):
            if id(element) in ran and id(scale) in ran:
                self.found(
                    "numerics",
                    "values are quantised with the block scale before its rounding",
                    (
                        f"this conversion: {words.line(element)}: {mnemonic(element)}",
                        f"the scale is rounded at {words.line(scale)}: {mnemonic(scale)}",
                        "missing: the scale converted back (cvt.f16x2 of what is stored) before "
                        "the values are divided by it",
                    ),
                    element,
                    scale,
                    NOTE,
                )
