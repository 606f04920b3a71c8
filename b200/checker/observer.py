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
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from b200.checker import words
from b200.checker.accesses import ClusterState, Record
from b200.checker.agent import Agent
from b200.checker.barriers.arrivals import Arrivals
from b200.checker.barriers.cancellations import Cancellations
from b200.checker.barriers.mbarriers import Mbarriers
from b200.checker.barriers.phases import Overtaken
from b200.checker.barriers.signals import Signals
from b200.checker.finding import ERROR, LIMIT, NOTE, Finding, Findings
from b200.checker.following import Departed, Following, Remark, Traces, Trail
from b200.checker.given_tensors import Given
from b200.checker.launches import ended
from b200.checker.launches.dependent_launch import DependentLaunch
from b200.checker.memory.coverage import Coverage
from b200.checker.memory.global_memory import GlobalRules
from b200.checker.memory.last_writers import LaunchStores
from b200.checker.memory.shadow import SharedShadow
from b200.checker.memory.shared_memory import SharedRules
from b200.checker.memory.unwritten import Unwritten
from b200.checker.operations.asynchronous import Operations
from b200.checker.operations.repeats import Repeats
from b200.checker.products import kernel_text
from b200.checker.products.descriptors import DescriptorRanks, DescriptorVersions
from b200.checker.products.overflows import Overflows
from b200.checker.products.products import Products
from b200.checker.tensor import pairs
from b200.checker.tensor.tensor_memory import TensorRules
from b200.chip.fragment import Fragment, WarpState
from b200.chip.hang_cause import two_places
from b200.chip.state import CTA, Cluster
from b200.chip.tensors import LiveTensors
from b200.effects import FencesTensor
from b200.program.module import Instr
from b200.registry import FULL

if TYPE_CHECKING:
    from b200.checker.checked import Checker
    from b200.program.translated import Translated

Detail = str | Callable[[], str]  # a line of a finding; a function where only the end tells
ALIKE = 3  # findings of one kind and severity about one line


class Observer:
    """The checker's state of one launch. ins: the instruction that is being executed. findings: the
    findings so far. traces: the steps that its clusters follow, None if they do not.
    """

    def __init__(self, checker: Checker, code: Translated, traces: Traces | None = None):
        self.checker = checker
        self.machine = machine = checker.machine
        self.following = None
        if traces is not None:
            self.following = Following(self, machine.memory, traces)
        effects = (op.ins.effect for block in code.structure for op in block.ops)
        self.strict = any(isinstance(effect, FencesTensor) for effect in effects)
        self.ins: Instr | None = None
        self.lane: int | None = None  # the lane that issues an operation; None: not a single lane
        self.findings = Findings()
        self.free: list[SharedShadow] = []  # shadows of CTAs that have ended
        self.alike: Counter = Counter()
        self.given = Given(self)
        self.globals = GlobalRules(self)
        self.replicates, self.looks = code.program.replicates, code.program.looks
        self.unwritten = Unwritten(self, machine.memory, checker.whole)
        self.coverage = Coverage(self)
        self.arrivals = Arrivals(self)
        self.overtaken = Overtaken(self)
        self.products = Products(self)
        self.repeats = Repeats(self)
        self.overflows = Overflows(self)
        self.dependence: DependentLaunch | None = None
        # key of a finding -> memory that nobody has written, on which a result may depend
        self.undecided: dict[tuple[str, str, str], str] = {}
        self.not_judged: list[str] = []  # where that could not be found out
        self.wrote = False  # whether the launch has written global memory
        self.cancellations = Cancellations(self)
        self.stores = LaunchStores() if checker.keep_stores else None
        self.descriptors = DescriptorRanks(self)
        self.versions = DescriptorVersions(self)
        self.mbarriers = Mbarriers(self, self.arrivals, self.overtaken)
        signals = Signals(self, self.mbarriers, self.arrivals)
        self.operations = Operations(self, signals)
        self.operands: dict[int, str] = {}  # base of an allocation -> name of a tensor there
        # Of the clusters that run, their CTAs and warps:
        self.clusters: dict[Cluster, ClusterState] = {}
        self.mixed = ""  # two places from which warps have met at a barrier, in words
        self.agents: dict[WarpState, Agent] = {}
        self.shared_rules: dict[CTA, SharedRules] = {}
        self.tensor_rules: dict[CTA, TensorRules] = {}
        self.cluster: Cluster | None = None  # the cluster of the warp whose turn it is
        self.trail: Trail | None = None  # its steps; None where no cluster follows another
        # number of a finding that a rule for clusters has made -> of which cluster
        self.remarks: dict[int, Trail] = {}
        self.of_clusters = 0  # findings before the rules for the launch have looked at all of it

    @property
    def executed(self) -> Instr:
        """The instruction that is being executed: whoever asks is called by an observed one."""
        assert self.ins is not None
        return self.ins

    def forget(self) -> None:
        """The launch has ended: let go of all that was kept for it. Rules and clusters refer to one
        another, and what nothing else refers to is garbage from now on.
        """
        vars(self).clear()

    # --- who and where --------------------------------------------------------------------------
    def agent(self, warp: Fragment) -> Agent:
        """The agent of the warp that a fragment belongs to."""
        try:  # in most cases it is there
            return self.agents[warp.state]
        except KeyError:
            state = self.state(warp.cta)
            found = self.agents[warp.state] = Agent(state, warp.state)
            state.agents[warp.cta.rank, warp.index] = found
            return found

    def lanes(self) -> int:
        """The lanes that issue an operation."""
        return FULL if self.lane is None else 1 << self.lane

    def state(self, cta: CTA) -> ClusterState:
        """The state of a CTA's cluster."""
        found = self.clusters.get(cta.cluster)
        if found is None:
            found = self.clusters[cta.cluster] = ClusterState(cta.cluster)
        return found

    def shared(self, cta: CTA) -> SharedRules:
        """The rules for a CTA's shared memory."""
        try:
            return self.shared_rules[cta]
        except KeyError:
            shadow = self.free.pop() if self.free else SharedShadow(cta.smem.size)
            found = self.shared_rules[cta] = SharedRules(self, cta, shadow)
            return found

    def tensor(self, cta: CTA) -> TensorRules:
        """The rules for a CTA's tensor memory."""
        try:
            return self.tensor_rules[cta]
        except KeyError:
            found = self.tensor_rules[cta] = TensorRules(self, cta)
            return found

    def turn_of(self, cluster: Cluster) -> None:
        if cluster is not self.cluster:
            self.cluster = cluster
            if self.following is not None:
                self.trail = self.following.trails.get(cluster)

    def take_back(self, cluster: Cluster) -> None:
        """A cluster starts again: nothing of its first run counts."""
        self.globals.forget(cluster)
        self.let_go(cluster)

    def let_go(self, cluster: Cluster) -> None:
        """Let go of what is kept of a cluster that runs no more. What rules for the whole launch
        ask of it later, the agents of its warps have.
        """
        self._note_mixed_barriers(cluster)
        for cta in cluster.ctas:
            for warp in cta.warps:
                self.agents.pop(warp, None)
            if (rules := self.shared_rules.pop(cta, None)) is not None:
                rules.shadow.clear()
                self.free.append(rules.shadow)
            self.tensor_rules.pop(cta, None)
        self.clusters.pop(cluster, None)
        if self.following is not None:
            self.following.trails.pop(cluster, None)

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
        *details: Detail,
        of: tuple[Record, Record | None],
        severity: str = ERROR,
        nobodys: str = "",
    ) -> None:
        """A rule for clusters reports what a record does, against another one if there is one.
        nobodys: memory without a value of the program's that it reads (NAMES of checked.py); then
        the severity is that which holds if nobody can find out whether a result depends on it.
        """
        before, (new, old) = len(self.findings), of
        if nobodys:
            self.undecided[kind, words.line(new.ins), words.line(old.ins) if old else ""] = nobodys
        if kind == "race" and severity == ERROR or kind == "uninitialised" and severity != NOTE:
            diagnosis = words.first_cause(new, old) + diagnosis
        other = old.ins if old is not None else None
        self.found(kind, diagnosis, *details, at=new.ins, other=other, severity=severity)
        if len(self.findings) > before and self.trail is not None:
            self.remarks[before] = self.trail

    def read_unwritten(self, reads: Iterable[tuple[Record, bool]]) -> None:
        """Whether a result depends on what asynchronous operations have read is found out where
        nobody has written it at any time: each read of an instruction has found the same then.
        """
        for read, written_since in reads:
            key = "uninitialised", words.line(read.ins), ""
            if written_since:
                self.undecided[key] = ""
            else:
                self.undecided.setdefault(key, "shared")

    def remarked(self, finding: Finding, trail: Trail) -> None:
        """Report again a finding on a cluster of an earlier launch that this trail has followed."""
        key = finding.kind, finding.loc, finding.other
        alike = finding.kind, finding.loc, finding.severity
        if self.findings.new(*key) and self.alike[alike] < ALIKE:
            self.alike[alike] += 1
            self.remarks[len(self.findings)] = trail
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
        for number, trail in self.remarks.items():
            remark = Remark(trail.cluster.index, found[number])
            remarks = following.traces.remarks.setdefault(trail.node, [])
            if remark not in remarks:
                remarks.append(remark)
        return True

    def of_the_author(self) -> list[Finding]:
        """The findings so far, but for those that are about the compiler's code."""
        looks = self.looks
        return [f for f in self.findings if looks is None or not looks.is_compilers(f)]

    def found(
        self,
        kind: str,
        diagnosis: str,
        *details: Detail,
        at: Instr | None,
        other: Instr | None = None,
        severity: str = ERROR,
    ) -> None:
        """A rule has found something (finding.py). at, other: the access, and one it meets."""
        loc, also = words.line(at), words.line(other) if other is not None else ""
        key = (kind, loc, also) if at is not None else (kind, diagnosis)
        lesser = self.findings.graver(key, severity)
        if self.following is not None and self.following.follower is not None:
            if key in self.findings.keys and lesser is None:
                return
            raise Departed
        lines: tuple = (*details, *words.calls(at, other))
        found = Finding(kind, diagnosis, lines, loc, also, severity)
        if lesser is not None:
            self.findings[lesser] = found
        elif self.findings.new(*key):
            if self.alike[kind, loc, severity] < ALIKE:
                self.alike[kind, loc, severity] += 1
                self.findings.append(found)
            else:
                self.findings.keys[key] = LIMIT

    # --- the end --------------------------------------------------------------------------------
    def finish(self) -> None:
        self.conclude()
        self.of_clusters = len(self.findings)
        ended.idle(self, self.machine.code.kernel, self.machine.params)
        pairs.groups(self, self.machine.code.groups)
        self.coverage.finish()
        self.globals.finish()
        self.overflows.finish()
        kernel_text.finish(self, self._executed())

    def conclude(self) -> None:
        """Report what can be told only after the whole run, also if an error ends it."""
        self.repeats.finish()
        self.arrivals.finish()
        self.versions.finish()
        self.overtaken.finish()
        self.unwritten.tell("the launch did not come to its end")
        self.products.finish()
        self.findings.tell()
        self._tell_of_mixed_barriers()

    def _tell_of_mixed_barriers(self) -> None:
        """A race for want of a barrier, where warps have met at two of them: say so."""
        for cluster in self.clusters:
            self._note_mixed_barriers(cluster)
        for i, found in enumerate(self.findings):
            lacks = any(detail.startswith("missing: a barrier") for detail in found.details)
            if self.mixed and found.kind == "race" and lacks:
                details = *found.details, f"there is one: {self.mixed}"
                self.findings[i] = replace(found, details=details)

    def _note_mixed_barriers(self, cluster: Cluster) -> None:
        """Note the first barrier at which warps of a CTA have met from several lines."""
        barriers = (b for cta in cluster.ctas for b in cta.named_barriers.values())
        self.mixed = self.mixed or next(filter(None, map(two_places, barriers)), "")

    def _executed(self) -> list[Instr]:
        code, hits = self.machine.code, self.machine.hits
        return [op.ins for b, n in zip(code.structure, hits) if n for op in b.ops]
