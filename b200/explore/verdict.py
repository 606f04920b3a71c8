"""The verdict of `--schedule all` on a launch, and its text."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from math import inf

from b200.checker import words
from b200.checker.finding import ERROR, Finding, Findings
from b200.checker.words import line
from b200.chip.launch import Arguments, Launch
from b200.explore import kinds, walked_words
from b200.explore.control import RunShown, unknown
from b200.explore.courses import Why
from b200.explore.record import StepRecording
from b200.explore.search import LIMIT, Search, Stuck
from b200.explore.settle import Settled, settle
from b200.explore.trace import Place, Step, Trace
from b200.explore.walk import LIMIT as WALKED
from b200.explore.walk import Walked, walk
from b200.program.translated import Translated
from b200.time_budget import TimeBudget

FREE, DEADLOCK, INCOMPLETE = VERDICTS = ("deadlock-free", "deadlock", "incomplete")
UNORDERED = ("race", "proxy", "uninitialised", "global", "order")  # findings that unorder reads


@dataclass
class Orders:
    """The verdict over all orders of a launch.

    kind: one of VERDICTS. clusters: number of clusters of the launch. distinct: number of those
    that differ in what they do. steps, states: recorded steps and explored states, of the distinct
    clusters. seconds: time of the exploration. reasons: why the verdict is incomplete.
    """

    kind: str = FREE
    clusters: int = 0
    distinct: int = 0
    steps: int = 0
    states: int = 0
    seconds: float = 0.0
    reasons: list[str] = field(default_factory=list[str])

    def __str__(self) -> str:
        alike = f", {self.distinct} different" if self.distinct < self.clusters else ""
        size = (
            f"{self.clusters} cluster(s){alike}, {self.steps:,} steps, {self.states:,} states in "
            f"{self.seconds:.2f} s"
        )
        return f"all orders: {self.kind} ({size})"


class Explorer(StepRecording):
    """A watcher behind the checker. It explores each launch over all orders of its steps, and
    reports a deadlock of another order as a finding. `launch.orders` has the verdict.
    """

    limit = LIMIT

    def over(self) -> None:
        unwritten = self.checker.observer.unwritten
        self.before = list(unwritten.before.values())
        self.unkept = unwritten.unknown

    def ends(self, launch: Launch, code: Translated, arguments: Arguments) -> None:
        start = time.perf_counter()
        launch.orders = self._judge(launch, arguments)
        launch.orders.seconds = time.perf_counter() - start
        launch.incomplete += [f"all orders: {reason}" for reason in launch.orders.reasons]

    def _judge(self, launch: Launch, arguments: Arguments) -> Orders:
        findings = launch.findings
        assert isinstance(findings, Findings)  # the checker's
        errors = [f for f in findings if f.severity == ERROR]
        racy = any(f.kind in UNORDERED for f in errors) or bool(findings.dropped)
        words = self.recorder.words
        run = RunShown(tuple(self.machine.hits), racy, words.mixed(), words.flows())
        orders = Orders(reasons=unknown(self.machine.code.structure, run))
        different: dict[tuple[object, ...], Trace] = {}
        for trace in self.recorder.traces.values():
            orders.clusters += 1
            different.setdefault(trace.alike(), trace)
        orders.distinct = len(different)
        for trace in different.values():
            orders.reasons += trace.not_followed
            orders.reasons += self._tokens(trace)
        found: list[Finding] = []
        if orders.reasons:
            found = self._carry_out(orders, racy, arguments)
        else:
            found = [f for trace in different.values() if (f := self._explore(trace, orders))]
        for finding in found:
            if finding.kind not in UNORDERED:
                orders.kind = DEADLOCK
            if findings.new(finding.kind, finding.loc, finding.other):
                findings.append(finding)
        findings.arrange()
        if orders.reasons and orders.kind == FREE:
            orders.kind = INCOMPLETE
        return orders

    def _carry_out(self, orders: Orders, racy: bool, arguments: Arguments) -> list[Finding]:
        """Carry the launch out in all orders, where one run does not tell what another order does.
        Returns what was found; the reasons stay if that is no answer.
        """
        if self.unkept:
            orders.reasons.append("memory as before the launch is not known")
            return []
        walked = self._walk(orders, arguments)
        if walked.bad is not None:
            orders.reasons.clear()
            return [walked_words.finding(walked)]
        found: list[Finding] = []
        if walked.race is not None and not racy:
            found.append(walked_words.racing(walked.race))
            racy = True
        elif walked.speaks and not racy and not walked.declined:
            walked = self._walk(orders, arguments, late=True)
            if walked.bad is not None:
                orders.reasons.append(walked_words.late(walked))
                return []
            if walked.race is not None:
                found.append(walked_words.racing(walked.race))
                racy = True
        if walked.declined:
            orders.reasons.append(f"its orders are not carried out one by one: {walked.declined}")
        elif not racy:
            orders.reasons.clear()
        if racy:
            orders.reasons.append("the findings of this launch come first: they unorder its reads")
        return found

    def _walk(self, orders: Orders, arguments: Arguments, late: bool = False) -> Walked:
        machine = self.machine
        limit = min(self.limit, WALKED)
        walked = walk(machine, arguments, self.before, limit, late, self._until())
        orders.states += walked.states
        return walked

    def _until(self) -> float:
        """When the budget of the launch is over, by time.monotonic()."""
        budget = self.machine.watcher(TimeBudget)
        return inf if budget is None else budget.until

    @staticmethod
    def _tokens(trace: Trace) -> list[str]:
        """Waits by the state of an arrive, which another order may change."""
        if not any(step.token for step in trace.steps):
            return []
        settled = settle(trace)
        telling = StepNames(trace, settled)
        return [
            f"{telling.place(step.place)} is waited for by the state of an arrive at "
            f"{line(step.ins)}, which another order changes"
            for step in trace.steps
            if step.token and step.place in settled.open_places
        ]

    def _explore(self, trace: Trace, orders: Orders) -> Finding | None:
        """Explore one cluster. Returns the finding of a deadlock, None if there is none."""
        settled = settle(trace)
        telling = StepNames(trace, settled)
        searched = Search(trace, settled, self.limit, self._until()).run()
        orders.steps += len(trace.steps)
        orders.states += searched.states
        if searched.bound:
            orders.reasons.append(
                f"{searched.bound}; in any order arrive: "
                f"{', '.join(telling.place(place) for place in settled.open_places)}"
            )
        if searched.stuck is None:
            return None
        return telling.finding(searched.stuck, not searched.bound)


class StepNames:
    """Names the steps of one cluster in findings."""

    def __init__(self, trace: Trace, settled: Settled):
        self.trace, self.open_places = trace, settled.open_places
        self.offsets = {s.place for s in trace.steps if s.place.kind == "mbarrier"}

    # --- names ------------------------------------------------------------------------------------
    def place(self, place: Place) -> str:
        of = f" of CTA rank {place.rank}" if self.trace.ctas > 1 else ""
        if place.kind == "mbarrier":
            first = last = place.number
            while Place("mbarrier", place.rank, first - 8) in self.offsets:
                first -= 8
            while Place("mbarrier", place.rank, last + 8) in self.offsets:
                last += 8
            row = (last - first) // 8 + 1
            number = f" {(place.number - first) // 8} of {row} in a row" if row > 1 else ""
            return f"mbarrier{number} at {place.number:#x}{of}"
        if place.kind == "barrier":
            return f"barrier {place.number} of the CTA{of}"
        names = {"cluster": "the cluster barrier", "tmem": f"tensor memory{of}"}
        return names.get(place.kind, f"the registers{of}")

    def actor(self, step: Step) -> str:
        rank, warp, operation = step.actor
        agent = self.trace.agents.get((rank, warp))
        name = words.name(agent) if agent is not None else f"warp {warp}"
        return f"the {operation} of {name}" if operation else name

    def act(self, step: Step) -> str:
        """A step in words: who does what, and where."""
        at = self.place(step.place)
        lanes = f" by {step.times} lanes" if step.times > 1 else ""
        done = {
            kinds.INIT: f"initialises {at} with count {step.count}",
            kinds.INVAL: f"makes {at} invalid",
            kinds.ARRIVE: f"arrives on {at}{lanes}"
            + (f" and announces {step.tx} bytes" if step.tx else ""),
            kinds.EXPECT: f"announces {step.tx} bytes on {at}",
            kinds.COMPLETE: f"brings {step.tx} bytes to {at}",
            kinds.EXPECT_ARRIVAL: f"announces an arrival on {at}",
            kinds.WAIT: f"passes its wait for parity {step.parity} of {at}",
            kinds.LOOK: f"looks whether parity {step.parity} of {at} is over",
            kinds.MEET: f"arrives at {at}",
            kinds.PASS: f"goes on after {at}",
            kinds.EXIT: "exits",
            kinds.ALLOC: f"allocates {step.count} columns of tensor memory",
            kinds.ALLOC_PAIR: f"allocates {step.count} columns of tensor memory for its pair",
            kinds.JOIN_PAIR: f"gets {step.count} columns of tensor memory with its pair",
            kinds.DEALLOC: f"frees {step.count} columns of tensor memory",
            kinds.RELINQUISH: "allocates no more tensor memory",
            kinds.GIVE: f"gives back {step.count:,} registers",
            kinds.TAKE: f"takes {step.count:,} registers",
        }[step.kind]
        return f"{self.actor(step)} {done}" + (f", at {line(step.ins)}" if step.ins else "")

    def wish(self, step: Step) -> str:
        """The thing that a blocked step waits for, in words."""
        at = self.place(step.place)
        return {
            kinds.WAIT: f"parity {step.parity} of {at}",
            kinds.PASS: f"the others at {at}",
            kinds.TAKE: f"{step.count:,} registers",
        }.get(step.kind, f"{step.count} columns of tensor memory")

    # --- a deadlock -------------------------------------------------------------------------------
    def finding(self, stuck: Stuck, complete: bool) -> Finding:
        step, reason = min(stuck.blocked, key=lambda b: b[0].place not in self.open_places)
        if stuck.broken:
            diagnosis = f"another order of the warps breaks a rule: {self.actor(step)}: {reason}"
        else:
            diagnosis = (
                f"another order of the warps hangs: {self.actor(step)} waits for ever for "
                f"{self.wish(step)}"
            )
        why = self.open_places.get(step.place)
        details = [f"missing: {self._missing(why)}"] if why is not None else []
        details += self._order(stuck, complete)
        details += [f"then: {self.act(step)}: {reason}"] if stuck.broken else self._waits(stuck)
        other = why.other or why.step if why is not None else None
        at = line(step.ins)
        also = line(other.ins) if other is not None and other is not step else ""
        kind = "protocol" if stuck.broken else "deadlock"
        return Finding(kind, diagnosis, tuple(details), at, also)

    def _waits(self, stuck: Stuck) -> list[str]:
        """The warps that wait for ever, and what each waits for: a line for each kind."""
        alike: dict[str, list[str]] = {}
        for step, text in stuck.blocked:
            what = f"for {self.wish(step)}, at {line(step.ins)}" + (f": {text}" if text else "")
            alike.setdefault(what, []).append(self.actor(step))
        return [
            f"then for ever: {actors[0]}"
            + (f" and {len(actors) - 1} more wait" if len(actors) > 1 else " waits")
            + f" {what}"
            for what, actors in alike.items()
        ]

    def _order(self, stuck: Stuck, complete: bool) -> list[str]:
        """The decisive steps of the order: those at unsettled places, and looks there."""
        open_places, steps = self.open_places, stuck.order
        deciding = [s for s in steps if s.place in open_places and s.kind != kinds.INIT]
        n = len(steps) - len(deciding)
        left_out = f" ({n} that decide nothing are left out)" if n else ""
        which = "an order" if stuck.broken else "the shortest order"
        which += "" if complete else " found"
        acts = list(map(self.act, deciding))
        return walked_words.listed(len(steps), which, left_out, acts, "ones")

    def _missing(self, why: Why) -> str:
        """The change that would settle a place, in words."""
        step, other = why.step, why.other
        if step is None:
            return why.text
        if other is None:
            return f"an order: {why.text}: {self.act(step)}"
        return f"an order: {why.text}: {self.act(step)}; {self.act(other)}"
