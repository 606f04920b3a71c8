"""Fragments, the lanes of a warp that execute together: divergence, reconvergence, exit.

A divergent branch splits a fragment; the parts run independently (a lane that waits does not stop
its siblings) and meet again at the branch's post-dominator, as compiled code does, or before it at
an aligned barrier that all of them execute. Lanes that stand where they would meet again go on by
themselves if others of their warp wait for them at an instruction with `.sync` (meeting.py). From
then on they have registers of their own: code after the branch may take registers to be the same in
all lanes of a fragment, and its parts are at different places now.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from b200.chip.meeting import Meeting
from b200.chip.state import CTA, Cluster
from b200.errors import Fault
from b200.hardware import RANK_SHIFT
from b200.program.analysis import EXIT
from b200.program.meeting import Arguments, MeetingPlace
from b200.program.module import Instr
from b200.program.translated import Registers
from b200.registry import Blocked, Clock, Run, Spin, Waitable

if TYPE_CHECKING:
    from b200.chip.machine import Machine


class ClusterBarrier(Waitable):
    """barrier.cluster: all threads of the cluster that have not exited arrive once a phase."""

    __slots__ = ("cluster", "phase", "arrived", "expected")

    def __init__(self, cluster: Cluster, expected: int):
        super().__init__()
        self.cluster, self.phase, self.arrived, self.expected = cluster, 0, 0, expected

    def arrive(self, lanes: int) -> None:
        self.touch()
        self.arrived += lanes
        self.check()

    def drop(self, lanes: int) -> None:
        self.expected -= lanes
        self.check()

    def check(self) -> None:
        if self.expected and self.arrived >= self.expected:
            self.phase, self.arrived = self.phase + 1, 0
            self.notify()

    def describe(self) -> str:
        return (
            f"the cluster barrier, phase {self.phase}: {self.arrived} of {self.expected} threads"
            f" have arrived, {self.expected - self.arrived} are missing"
        )


class WarpState:
    """The state that the fragments of a warp share.

    The clock sets the last attributes, which are times in clk: when each register that a load
    writes is ready, when the latest loads and accesses of tensor memory are done, when the TMA
    takes the warp's next copy, when the warp's latest lanes exited.
    """

    def __init__(
        self, cta: CTA, index: int, lanes: int, registers: Registers, special: dict[str, Any]
    ):
        self.cta, self.index, self.special = cta, index, special
        self.live = (1 << lanes) - 1
        self.register_file = registers.copy()  # arrays are replaced, never written to
        self.fragments: list[Fragment] = []
        self.gathering: list[Gathering] = []  # of parts that wait for the rest
        self.meetings: dict[tuple[object, int], Meeting] = {}  # that are to be carried out
        self.exits: list[tuple[int, Instr]] = []  # lanes that are gone, and where they left
        self.cluster_arrived = 0  # lanes between barrier.cluster.arrive and .wait
        self.cluster_phase = 0
        self.local: np.ndarray | None = None
        self.ready: dict[int, float] = {}
        self.load_done = self.tmem_done = self.tma_free = self.end = 0.0


@dataclass(eq=False)
class Join:
    """A place where diverged lanes meet: `waiting` are due at block `pc`, `arrived` are there. at:
    the block of the branch. pc is EXIT where they meet nowhere; parent_pc: where they meet next.
    """

    at: int
    pc: int
    waiting: int
    arrived: int
    parent: Join | None
    parent_pc: int
    time: float = 0.0  # simulated, of the latest arrival


class Gathering(Waitable):
    """Part of a warp at an aligned instruction: it waits for other lanes that may come there."""

    def __init__(self, warp: Fragment):
        super().__init__()
        self.fragment = warp

    def describe(self) -> str:
        missing = self.fragment.live & ~self.fragment.mask
        return f"lanes {missing:#010x} of its own warp, which have not come to this instruction"


class Fragment:
    """Lanes of a warp that execute together. Units get a fragment as their argument `warp`.

    ctas: for how many CTAs the block that begins counts. counted: for how many the present one has.
    """

    ctas = counted = 1

    __slots__ = tuple(
        """
        state machine cta index special params symbols rank_bits mask pc reconv join spin token
        register_file meeting waits_for queued time
        """.split()
    )

    def __init__(self, machine: Machine, state: WarpState, mask: int, pc: int = 0):
        self.machine, self.state, self.mask, self.pc = machine, state, mask, pc
        self.cta, self.index, self.special = state.cta, state.index, state.special
        self.params, self.symbols = machine.params, machine.symbols
        self.rank_bits = state.cta.rank << RANK_SHIFT
        self.register_file = state.register_file
        self.reconv, self.join = EXIT, None
        self.spin: Spin = None  # see QUIET
        self.token: Any = None
        self.meeting: Meeting | None = None
        self.waits_for: Waitable | None = None
        self.queued = False
        self.time = Clock.now  # simulated time it has reached; only the timing model moves it
        state.fragments.append(self)

    @property
    def live(self) -> int:
        """Lanes of the warp that have not exited."""
        return self.state.live

    def wake(self) -> None:
        """Called by the waitable this fragment waits for."""
        waitable, self.waits_for = self.waits_for, None
        assert waitable is not None
        self.machine.wake(self, waitable)

    def split(self, taken: int, target: int, after: int, meet: int) -> int:
        """Divergent branch: lanes `taken` go to `target`, others to `after`; all meet at `meet`."""
        others = self.mask & ~taken
        join = Join(self.pc, meet, self.mask, 0, self.join, self.reconv)
        self.join = join
        if meet != EXIT:
            self.reconv = meet
        if target == meet != EXIT:
            join.arrived, self.mask = taken, others
            return after
        self.mask = taken
        if after == meet != EXIT:
            join.arrived = others
        else:
            sibling = type(self)(self.machine, self.state, others, after)
            sibling.join, sibling.reconv, sibling.time = join, self.reconv, self.time
            sibling.register_file = self.register_file
            sibling.start(after)
        return target

    def start(self, pc: int) -> None:
        """Begin at a block, at which it may already be due to meet others."""
        after = self.arrive_or_exit(pc) if pc == self.reconv != EXIT else pc
        if after is not None:
            self.pc = after
            self.machine.enqueue(self)

    def gather(self) -> None:
        """Before an aligned instruction is executed: wait for the other lanes of the warp that are
        on their way to it. Raises Blocked while some are missing; returns when all are here or can
        no longer come.

        A compiler may move the place where the lanes meet again past the instruction, if it knows
        that a condition is the same in all lanes. On the chip the barrier itself waits for all
        threads of the warp.
        """
        state, join = self.state, self.join
        missing = self.live & ~self.mask
        if not missing or join is None or missing & ~(join.waiting & ~join.arrived):
            return
        for place in state.gathering:
            other = place.fragment
            if other.pc == self.pc and other.join is join:
                other.mask |= self.mask
                other.time = max(other.time, self.time)
                state.fragments.remove(self)
                state.gathering.remove(place)
                place.notify()
                raise Blocked(place)  # in which nobody waits any more
        state.gathering.append(Gathering(self))
        raise Blocked(state.gathering[-1])

    # --- instructions with .sync ------------------------------------------------------------------
    def meet(self, place: MeetingPlace, mask: int, args: Arguments, run: Run) -> Any:
        """Execute an instruction together with the other lanes that it names. Raises Blocked while
        some of them are missing. Returns its results, those of other lanes included.
        """
        meeting = self.meeting
        if meeting is None:
            groups = place.groups(mask, args)
            if len(groups) > 1:
                self.split(next(iter(groups.values())), self.pc, self.pc, place.meet)
                raise Blocked(None)  # the parts come again
            (members,) = groups
            if not (members & self.live & ~mask):
                return run(self, mask, *args)
            meeting = self._come(place, members, args)
        if not meeting.done:
            self._wait_for_others(meeting)
            if place.masked or not meeting.missing:
                self.state.meetings.pop((place.key, meeting.key), None)
                meeting.carry_out(self, run)
                self.met(meeting.arrived)
            else:  # the instruction says what is wrong
                self.meeting = None
                return run(self, mask, *args)
        self.meeting = None
        return meeting.result

    def _come(self, place: MeetingPlace, members: int, args: Arguments) -> Meeting:
        """Join the others that wait at such an instruction."""
        meetings, key = self.state.meetings, (place.key, members)
        meeting = meetings.get(key)
        if meeting is None:
            meeting = meetings[key] = Meeting(self.state, place, members)
        meeting.come(self, self.mask, args)
        self.meeting, self.spin = meeting, None
        return meeting

    def _wait_for_others(self, meeting: Meeting) -> None:
        """Raise Blocked while lanes are missing that can come."""
        missing = meeting.missing
        if not missing:
            return
        if meeting.place.masked:
            meeting.let_go |= self.let_go(missing)
        elif any(join.arrived & missing for join in self.joins()):
            return
        raise Blocked(meeting)

    def met(self, lanes: int) -> None:
        """Called when these lanes of the warp have executed an instruction together."""

    def joins(self) -> Iterator[Join]:
        """The places where the fragment is to meet others, the next one first."""
        join = self.join
        while join is not None:
            yield join
            join = join.parent

    def let_go(self, lanes: int) -> int:
        """Those of some lanes that stand where they are to meet this fragment go on, and are
        returned.
        """
        found = 0
        for join in self.joins():
            here = join.arrived & lanes
            if here:
                self._send_on(join, here)
                found |= here
        return found

    def _send_on(self, join: Join, lanes: int) -> None:
        """Lanes that stand at a join go on, with registers of their own, and meet nobody later."""
        rest = type(self)(self.machine, self.state, lanes, join.pc)
        rest.register_file, rest.time = self.register_file.copy(), join.time
        join.arrived &= ~lanes
        above: Join | None = join
        while above is not None:
            above.waiting &= ~lanes
            above = above.parent
        self.machine.enqueue(rest)

    @property
    def is_apart(self) -> bool:
        """Whether lanes of the warp have gone on from where they were to meet others."""
        return any(f.register_file is not self.register_file for f in self.state.fragments)

    def _reconsider(self) -> None:
        """Lanes have passed or exited: parts that wait for them look again."""
        gathering, self.state.gathering = self.state.gathering, []
        for place in (*gathering, *self.state.meetings.values()):
            place.notify()

    def arrive_or_exit(self, pc: int) -> int | None:
        """Called at the end of a region or of the kernel. Returns the block that the fragment goes
        on with; None if it ends.
        """
        while True:
            if pc == EXIT:
                self.state.fragments.remove(self)
                self._leave(self.mask)
                return None
            if self.join is None or pc != self.reconv:
                return pc
            join = self._next_meeting()
            join.arrived |= self.mask
            self.time = join.time = max(join.time, self.time)
            if join.arrived != join.waiting:
                self.state.fragments.remove(self)
                self._reconsider()
                return None
            self.mask, self.join, self.reconv = join.waiting, join.parent, join.parent_pc
            if self.reconv != pc:
                return pc

    def _next_meeting(self) -> Join:
        """The join at which the fragment has come to meet others. It leaves the branches within
        whose arms have no place to meet, where others may wait for it.
        """
        for join in self.joins():
            if join.pc == EXIT:
                join.waiting &= ~self.mask
            else:
                if join is not self.join:
                    self.join = join
                    self._reconsider()
                return join
        raise AssertionError("a fragment meets others at a join")

    def _leave(self, lanes: int) -> None:
        """Lanes have exited: nobody waits for them any more."""
        join = self.join
        left = self.machine.code.structure[self.pc if join is None else join.at]
        self.state.exits.append((lanes, left.ops[-1].ins))
        for each in self.joins():
            each.waiting &= ~lanes
        while join is not None:
            if join.waiting and join.waiting == join.arrived:
                rest = type(self)(self.machine, self.state, join.waiting, join.pc)
                rest.register_file = self.register_file
                rest.join, rest.reconv = join.parent, join.parent_pc
                rest.time = max(join.time, self.time)
                join.waiting = 0  # taken over
                rest.start(rest.pc)
                break
            join = join.parent
        self.machine.lanes_exited(self.state, lanes)
        self._reconsider()

    def trap(self) -> NoReturn:
        raise Fault("trap executed")
