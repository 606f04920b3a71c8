"""Records the synchronisation of a launch: a watcher that notes each step as it is taken.

The recorder stands in front of the checker: run functions of synchronising instructions get a
recorder around them, and `issue` notes the signals of asynchronous operations. The run itself does
not change.
"""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

from b200.checker.agent import Agent
from b200.checker.checked import CheckedFragment, Checker
from b200.checker.words import line
from b200.chip import operations as ops
from b200.chip.fragment import Fragment, WarpState
from b200.chip.launch import Arguments
from b200.chip.machine import Machine
from b200.chip.state import CTA, Cluster
from b200.chip.watcher import Watcher
from b200.explore import kinds
from b200.explore.instructions import RecordingWriter
from b200.explore.trace import EVERY, Place, Step, Trace
from b200.explore.words import WordsSeen
from b200.program.module import Instr
from b200.program.translated import Translated
from b200.registry import active

LANDINGS = (ops.BulkLoad, ops.TryCancel)  # bytes on the mbarriers of `places`
# Bytes on the mbarrier of one `place`.
TO_PEER = (ops.BulkToPeer, ops.BulkReduceToPeer, ops.StAsync, ops.RedAsync)


class Peek(NamedTuple):
    """A look that decides whether the wait after it is left out. over: it found the phase over."""

    step: Step
    ins: Instr
    lanes: int
    over: bool


class StepRecorder:
    """The steps of a launch, cluster by cluster."""

    def __init__(self, deciding: frozenset[int] = frozenset()) -> None:
        self.words = WordsSeen(deciding)
        self.traces: dict[Cluster, Trace] = {}
        # (CTA rank, warp) -> the checker's agent, of each cluster
        self.agents: dict[Cluster, dict[tuple[int, int], Agent]] = {}
        # for each lane of a warp: the steps that its next step directly comes after
        self.last: dict[WarpState, list[tuple[int, ...]]] = {}
        self.commits: dict[tuple[WarpState, CTA], int] = {}
        # MEET steps whose end is still to come, of a fragment (a warp at the cluster's barrier)
        self.met: dict[tuple[Fragment | WarpState, Place], list[int]] = {}
        self.allocated: dict[tuple[CTA, int], int] = {}  # first column -> step
        self.looks: dict[WarpState, list[Peek]] = {}  # looks whose wait is still to come

    def trace(self, cta: CTA) -> Trace:
        found = self.traces.get(cta.cluster)
        if found is None:
            ctas = cta.cluster.ctas
            found = Trace(cta.threads, len(cta.warps), len(ctas), agents=self.agents[cta.cluster])
            self.traces[cta.cluster] = found
        return found

    def behind(self, state: WarpState, mask: int) -> tuple[int, ...]:
        """The numbers of the steps that the next step of some lanes directly comes after."""
        last = self.last.setdefault(state, [()] * 32)
        return tuple(sorted({number for lane in active(mask) for number in last[lane]}))

    def converged(self, state: WarpState, mask: int) -> None:
        """Lanes go on together: the next step of each comes after the last steps of all of them."""
        self._set(state, mask, self.behind(state, mask))

    def _set(self, state: WarpState, mask: int, numbers: tuple[int, ...]) -> None:
        last = self.last.setdefault(state, [()] * 32)
        for lane in active(mask):
            last[lane] = numbers

    def step(
        self,
        warp: Fragment,
        kind: str,
        place: Place,
        ins: Instr,
        mask: int | None = None,
        **what: Any,
    ) -> Step:
        """Record a step of some lanes of a warp, None: of a fragment's."""
        return self.step_of(
            warp.state, warp.mask if mask is None else mask, kind, place, ins, **what
        )

    def step_of(
        self, state: WarpState, mask: int, kind: str, place: Place, ins: Instr | None, **what: Any
    ) -> Step:
        before, actor = self.behind(state, mask), (state.cta.rank, state.index, "")
        step = self._add(state.cta, kind, place, before, actor, ins, what)
        self._set(state, mask, (step.number,))
        return step

    def _add(
        self,
        cta: CTA,
        kind: str,
        place: Place,
        before: tuple[int, ...],
        actor: tuple[int, int, str],
        ins: Instr | None,
        what: dict[str, Any],
    ) -> Step:
        """what: other fields of the step."""
        trace = self.trace(cta)
        step = Step(len(trace.steps), kind, place, before, actor, ins, **what)
        trace.steps.append(step)
        return step

    def signal(
        self, warp: Fragment, kind: str, place: Place, ins: Instr | None, name: str, **what: Any
    ) -> Step:
        """Record a signal of an asynchronous operation, which comes some time after its issue."""
        before = what.pop("before", ()) + self.behind(warp.state, warp.mask)
        actor = (warp.cta.rank, warp.index, name)
        return self._add(warp.cta, kind, place, before, actor, ins, what)

    # --- looks that leave out a wait --------------------------------------------------------------
    def looks_at(self, warp: Fragment, place: Place, parity: int, ins: Instr, over: bool) -> None:
        """Record a look that leaves out the wait after it if the phase is over. over: it is."""
        earlier = self.looks.setdefault(warp.state, [])
        for peek in [p for p in earlier if p.ins is ins and p.lanes & warp.mask]:
            self.not_waited_for(warp.cta, peek)
            earlier.remove(peek)
        step = self.step(warp, kinds.LOOK, place, ins, parity=parity)
        earlier.append(Peek(step, ins, warp.mask, over))

    def look_before(
        self, warp: Fragment, looks: frozenset[int], place: Place, parity: int
    ) -> Peek | None:
        """The look that may leave out a wait, or None. looks: id() of those that decide over it."""
        pending = self.looks.get(warp.state, ())
        here = [p for p in pending if id(p.ins) in looks and p.lanes & warp.mask]
        for peek in here:
            alike = (peek.step.place, peek.step.parity, peek.lanes) == (place, parity, warp.mask)
            if not alike or len(here) > 1:
                self.not_waited_for(warp.cta, peek)
        return here[-1] if here else None

    def not_waited_for(self, cta: CTA, peek: Peek) -> None:
        """The wait for a look's phase does not follow the look: other orders are unknown."""
        trace = self.trace(cta)
        text = (
            f"{line(peek.ins)}: what a look has found decides over something else than whether the "
            "wait for the same phase is left out"
        )
        if text not in trace.not_followed:
            trace.not_followed.append(text)

    def one_more(self, warp: Fragment, kind: str, place: Place, ins: Instr) -> Step | None:
        """The step of this instruction's lane before, if there is one: lanes make one step."""
        steps = self.trace(warp.cta).steps
        if not steps:
            return None
        last = steps[-1]
        same = last.kind == kind and last.place == place and last.ins is ins
        here = last.actor == (warp.cta.rank, warp.index, "")
        at_once = self.behind(warp.state, warp.mask) == (last.number,)
        return last if same and here and at_once else None

    # --- what asynchronous operations signal ------------------------------------------------------
    def issued(self, operation: ops.Operation, warp: Fragment, ins: Instr | None) -> None:
        if self.words.deciding:
            self.words.issued(operation, warp, ins)
        name = type(operation).__name__
        if isinstance(operation, (ops.TmaLoad, *LANDINGS, *TO_PEER)):
            tma = isinstance(operation, ops.TmaLoad)
            nbytes = operation.access.tx_bytes if tma else operation.nbytes
            one = isinstance(operation, TO_PEER)
            for place in (operation.place,) if one else operation.places:
                where = Place("mbarrier", place.signal.rank, place.mbarrier)
                self.signal(warp, kinds.COMPLETE, where, ins, name, tx=nbytes)
        elif isinstance(operation, ops.CpAsyncArrive):
            place = Place("mbarrier", operation.cta.rank, operation.offset)
            self.signal(warp, kinds.ARRIVE, place, ins, name, count=1)
        elif isinstance(operation, ops.Commit):
            for target in operation.targets:
                key = warp.state, target
                before = (self.commits[key],) if key in self.commits else ()
                place = Place("mbarrier", target.rank, operation.offset)
                step = self.signal(warp, kinds.ARRIVE, place, ins, name, before=before, count=1)
                self.commits[key] = step.number


class RecordedFragment(CheckedFragment):
    """A fragment that tells the recorder where lanes meet again."""

    __slots__ = ("recorder",)

    def __init__(self, machine: Machine, state: WarpState, mask: int, pc: int = 0):
        super().__init__(machine, state, mask, pc)
        recording = machine.watcher(StepRecording)
        assert recording is not None
        self.recorder = recording.recorder
        self.recorder.agents[state.cta.cluster] = self.observer.state(state.cta).agents
        self.recorder.converged(state, mask)

    def met(self, lanes: int) -> None:
        self.recorder.converged(self.state, lanes)

    def arrive_or_exit(self, pc: int) -> int | None:
        before = self.mask
        pc_after = super().arrive_or_exit(pc)
        if pc_after is not None and self.mask != before:
            self.recorder.converged(self.state, self.mask)
        return pc_after


class StepRecording(Watcher):
    """Records the steps of launches that `checker` checks, which watches before it and must not
    follow. recorder: the steps of the present or latest launch.
    """

    fragment_type = RecordedFragment
    writer_type = RecordingWriter

    def __init__(self, checker: Checker):
        self.checker, self.recorder = checker, StepRecorder()

    def attach(self, machine: Machine) -> None:
        """ValueError if the checker does not watch the machine before it."""
        if self.checker not in itertools.takewhile(lambda each: each is not self, machine.watchers):
            raise ValueError(f"{type(self).__name__} must stand behind its checker in a machine")
        super().attach(machine)

    def begins(self, code: Translated, arguments: Arguments) -> None:
        self.recorder = StepRecorder(code.deciding)

    def issued(self, operation: ops.Operation, warp: Fragment, apply: ops.Action) -> ops.Action:
        self.recorder.issued(operation, warp, self.checker.observer.ins)
        return apply

    def exits(self, state: WarpState, lanes: int) -> None:
        recorder = self.recorder
        cluster = Place("cluster")
        recorder.step_of(state, lanes, kinds.EXIT, cluster, None, count=lanes.bit_count())
        for peek in recorder.looks.get(state, ()):
            if peek.lanes & lanes:
                recorder.not_waited_for(state.cta, peek)
        if state.live == 0:
            every = (1 << 32) - 1
            recorder.converged(state, every)
            place = Place("barrier", state.cta.rank, EVERY)
            recorder.step_of(state, every, kinds.EXIT, place, None, count=1)
