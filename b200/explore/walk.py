"""All orders of a small launch, carried out: a walk through its states, step by step.

Where the values of one run do not tell what another order does (control.py), the launch itself is
carried out again, in every order of its steps (stepping.py). A state that was reached before is not
gone on from again, so loops that poll end. An order is bad if it ends in a fault, or in a state
from which no order leads to the end of the launch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from math import inf
from typing import Any

import numpy as np

from b200.chip.contents import Contents
from b200.chip.fragment import Fragment
from b200.chip.global_memory import Region
from b200.chip.launch import Arguments, Launch
from b200.chip.machine import Machine
from b200.chip.operations import Action, Operation
from b200.chip.order import InOrder
from b200.chip.placement import Placement
from b200.chip.state import Cluster
from b200.effects import WaitsForPhase
from b200.errors import EmulatorError, Fault
from b200.explore.late_stores import LateStores, speak
from b200.explore.races import Race, race
from b200.explore.snapshot import Camera, Snapshot, Unlisted
from b200.explore.states import Standing, State, Taken, bound_of, shortest, way
from b200.explore.stepping import Declined, Pending, Steppable, Steps, steppable
from b200.explore.touches import Touches

LIMIT = 20_000  # states
WARPS = 4  # with more, fewer states: each takes longer
KEPT = 1 << 26  # bytes of an allocation that must stay as it is
SHORTER = 1_000  # states that are looked at after a bad order is found
BYTES = 1 << 18  # of global memory that the launch writes, at most
SHARED = 1 << 22  # bytes of shared memory of all CTAs, at most: each state holds them


@dataclass
class Walked:
    """The result. states: how many were seen. bad: the steps of a bad order, None if there is none.
    fault: what it breaks, "" if it hangs. standing: who waits for ever. race: two accesses of an
    order that does not hang. speaks: whether late stores may matter. declined: why not all orders
    were carried out, "" if they were.
    """

    states: int = 0
    bad: list[Taken] | None = None
    fault: str = ""
    standing: list[Standing] = field(default_factory=list[Standing])
    race: Race | None = None
    speaks: bool = False
    declined: str = ""


@dataclass(eq=False)
class Visit:
    """A state from which steps are tried. now, later: who is to take one (Steps.can). round:
    whether a step has led back to a state that is being visited.
    """

    snapshot: Snapshot
    state: State
    now: list[Fragment | Pending]
    later: list[Fragment | Pending]
    round: bool = False


def walk(
    checked: Machine,
    arguments: Arguments,
    before: list[tuple[Region, np.ndarray]],
    limit: int = LIMIT,
    late: bool = False,
    until: float = inf,
) -> Walked:
    """Carry out all orders of a launch, or as many as `limit` states allow. checked: the machine
    that has carried it out. before: the allocations that it has written, with what they contained.
    late: strong stores may come late (late_stores.py). until: when to stop, by time.monotonic().
    Global memory is as before the call afterwards.
    """
    memory = checked.memory
    if sum(old.size for _, old in before) > BYTES:
        return Walked(declined=f"the launch writes to more than {BYTES:,} bytes of allocations")
    after = Contents(region for region, _ in before)
    rest = [r for r in memory.known() if all(r.base != w.base for w, _ in before)]
    others = Contents(r for r in rest if r.size <= KEPT and not r.behind)
    touches = LateStores() if late else Touches()
    order = _Walk([region.u8 for region, _ in before], limit, until, touches)
    try:
        for region, old in before:
            region.u8[:] = old
        order.cut = steppable(checked.code, touches.writer_type, late)
        machine = Machine(memory, order, (touches,))
        machine.symbols = checked.symbols
        machine.launch(order.cut.code, *arguments)
        if not others.unchanged():
            raise Declined("another order writes memory that the run did not write")
    except Unlisted as found:
        return Walked(order.count, declined=f"{found} is not carried out step by step")
    except (Declined, EmulatorError) as error:
        return Walked(order.count, declined=str(error))
    finally:
        after.put_back()
        others.put_back()
    return order.result()


class _Walk(InOrder):
    """An order that is all orders: it runs a launch by walking through its states."""

    plain = False
    by_thread = True
    cut: Steppable

    def __init__(self, far: list[np.ndarray], limit: int, until: float, touches: Touches):
        super().__init__()
        self.far, self.limit, self.until, self.count = far, limit, until, 0
        self.states: dict[tuple[Any, ...], State] = {}
        self.present: Snapshot | None = None  # of the machine as it is
        self.bound = ""  # what has ended the walk before its end
        self.touches = touches

    # --- what the machine asks --------------------------------------------------------------------
    def enqueue(self, warp: Fragment) -> None:
        if not warp.queued:
            warp.queued = True
            self.steps.queue.append(warp)

    def issue(self, operation: Operation, warp: Fragment, apply: Action) -> None:
        self.steps.issue(operation, warp, apply)

    def wait_passed(self, warp: Fragment) -> None:
        """No turn ends because of it: a turn is a step."""

    # --- the walk ---------------------------------------------------------------------------------
    def run(self, waiting: Iterator[Cluster], launch: Launch) -> None:
        machine = self.machine
        self.steps = Steps(machine, self.cut, self.touches)
        if isinstance(self.touches, LateStores):
            self.touches.steps = self.steps
        placement = Placement()
        machine.next_cluster = next(waiting, None)
        while machine.next_cluster is not None:
            if not self.start_next(waiting, launch, placement):
                raise Declined("not all clusters run at the same time")
        self.here = list(machine.resident)
        ctas = [cta for cluster in self.here for cta in cluster.ctas]
        if sum(cta.smem.size for cta in ctas) > SHARED:
            raise Declined(f"its CTAs have more than {SHARED:,} bytes of shared memory")
        warps = sum(len(cta.warps) for cta in ctas)
        self.limit = self.limit * WARPS // max(WARPS, warps)
        self.camera = Camera(self.far, self._live)
        self._walk()

    def _live(self, warp: Fragment) -> int:
        live = self.cut.code.live
        found = live[warp.pc]
        for join in warp.joins():
            found |= live[join.pc] if join.pc >= 0 else 0
        return found

    def _look(self) -> tuple[Snapshot, State, bool]:
        """The present state, and whether it is a new one."""
        self.machine.spinning.progress()
        snapshot = self.camera.take(self.here, self.steps.queue, self.steps.pending)
        self.present = snapshot
        state = self.states.get(snapshot.key)
        if state is not None:
            return snapshot, state, False
        state = self.states[snapshot.key] = State()
        warps = (w for cluster in self.here for cta in cluster.ctas for w in cta.warps)
        state.ended = not self.steps.pending and not any(w.live for w in warps)
        self.count += 1
        return snapshot, state, True

    def _walk(self) -> None:
        snapshot, self.first, _ = self._look()
        work = [Visit(snapshot, self.first, *self.steps.can())]
        under_way = {self.first}
        while work:
            self.bound = bound_of(self.count, self.limit, self.until)
            if self.bound:
                return
            visit = work[-1]
            state = visit.state
            if not visit.now and (not state.steps or visit.round):
                visit.now, visit.later = visit.later, []
            if self.present is not visit.snapshot:
                visit.snapshot.put_back()
            self.present = None
            if visit.now:
                found = self._step(state, visit.now.pop())
                visit.round |= bool(state.steps) and state.steps[-1][1] in under_way
            elif (found := self._stands(state)) is None:
                work.pop()
                under_way.remove(state)
            if found is not None:
                work.append(Visit(*found, *self.steps.can()))
                under_way.add(found[1])

    def _step(self, state: State, who: Fragment | Pending) -> tuple[Snapshot, State] | None:
        """Take one of the steps that can be taken. Returns a state that is new."""
        taken = self._taken(who)
        self.touches.step = []
        try:
            self.steps.take(who)
        except Fault as fault:
            state.steps.append((taken, State(fault=str(fault))))
            self._enough()
            return None
        return self._goes_on(state, taken._replace(touched=tuple(self.touches.step)))

    def _goes_on(self, state: State, taken: Taken) -> tuple[Snapshot, State] | None:
        snapshot, after, new = self._look()
        if after is state:
            state.polls.append(taken)
        else:
            state.steps.append((taken, after))
        return (snapshot, after) if new else None

    def _stands(self, state: State) -> tuple[Snapshot, State] | None:
        """All steps of a state have been tried. Returns a new state where no step leads on."""
        if state.steps or state.ended:
            return None
        fragments = [f for c in self.here for cta in c.ctas for w in cta.warps for f in w.fragments]
        standing = [Standing(self._taken(f), self._waits(f)) for f in fragments]
        if self.steps.let_others_go():
            return self._goes_on(state, standing[0].at)
        state.standing = standing
        self._enough()
        return None

    def _enough(self) -> None:
        """A bad order is found: look for a shorter one, but not for long."""
        self.limit = min(self.limit, self.count + SHORTER)

    # --- words ------------------------------------------------------------------------------------
    def _taken(self, who: Fragment | Pending) -> Taken:
        if isinstance(who, Pending):
            f, name, ins, quiet, near = who.fragment, who.name, who.ins, False, False
        else:
            f, name, quiet = who, "", self.steps.is_quiet(who)
            near = quiet or f.pc not in self.cut.far
            ins = self.cut.code.structure[f.pc].ops[0].ins
        return Taken(f.cta.cluster, f.cta.index, f.index, f.mask, name, ins, quiet, near)

    def _waits(self, warp: Fragment) -> str:
        if warp.waits_for is not None:
            return getattr(warp.waits_for, "describe", lambda: "others")()
        effect = self.cut.code.structure[warp.pc].ops[0].ins.effect
        phase = isinstance(effect, WaitsForPhase)
        return "the phase of an mbarrier, which is not over" if phase else "what it reads to change"

    # --- the result -------------------------------------------------------------------------------
    def result(self) -> Walked:
        came = shortest(self.first)
        last = next((s for s in came if s.fault or s.standing), None)
        if last is None and not self.bound:
            ends = self._lead_to_the_end(came)
            last = next((s for s in came if id(s) not in ends), None)
        if last is not None:
            return Walked(self.count, way(came, last), last.fault, last.standing)
        speaks = speak(taken for state in came for taken, _ in state.steps)
        return Walked(self.count, race=race(self.first), speaks=speaks, declined=self.bound)

    @staticmethod
    def _lead_to_the_end(states: Iterable[State]) -> set[int]:
        """id() of the states from which some order leads to the end."""
        behind: dict[int, list[State]] = {}
        work = [state for state in states if state.ended]
        for state in states:
            for _, after in state.steps:
                behind.setdefault(id(after), []).append(state)
        found = set(map(id, work))
        while work:
            for state in behind.get(id(work.pop()), ()):
                if id(state) not in found:
                    found.add(id(state))
                    work.append(state)
        return found
