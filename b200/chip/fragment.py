"""Fragments, the lanes of a warp that execute together: divergence, reconvergence, exit.

A divergent branch splits a fragment; the parts run independently (a lane that waits does not stop
its siblings) and meet again at the branch's post-dominator, as compiled code does, or before it at
an aligned barrier that all of them execute.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from b200.chip.state import CTA, Cluster
from b200.errors import Fault
from b200.hardware import RANK_SHIFT
from b200.program.analysis import EXIT
from b200.registry import Blocked, Clock, Waitable

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

    agent: attached by the checker. The clock sets the last attributes, which are times in clk: when
    each register that a load writes is ready, when the latest loads and accesses of tensor memory
    are done, when the TMA takes the warp's next copy, when the warp's latest lanes exited.
    """

    def __init__(self, cta: CTA, index: int, lanes: int, registers: list, special: dict):
        self.cta, self.index, self.special = cta, index, special
        self.live = (1 << lanes) - 1
        self.R = registers.copy()  # arrays are replaced, never written to
        self.fragments: list[Fragment] = []
        self.gathering: list[Gathering] = []  # of parts that wait for the rest
        self.cluster_arrived = 0  # lanes between barrier.cluster.arrive and .wait
        self.cluster_phase = 0
        self.local: np.ndarray | None = None
        self.agent: Any = None
        self.ready: dict[int, float] = {}
        self.load_done = self.tmem_done = self.tma_free = self.end = 0.0


@dataclass(eq=False)
class Join:
    """A place where diverged lanes meet: `waiting` are due at block `pc`, `arrived` are there."""

    pc: int
    waiting: int
    arrived: int
    parent: Join | None
    parent_pc: int
    time: float = 0.0  # simulated, of the latest arrival


class Gathering(Waitable):
    """Part of a warp at an aligned instruction: it waits for other lanes that may come there."""

    def __init__(self, fragment: Fragment):
        super().__init__()
        self.fragment = fragment

    def describe(self) -> str:
        missing = self.fragment.live & ~self.fragment.mask
        return f"lanes {missing:#010x} of its own warp, which have not come to this instruction"


class Fragment:
    """Lanes of a warp that execute together. Units get a fragment as their argument `warp`."""

    __slots__ = tuple(
        """
        state machine cta index special params symbols rank_bits mask pc reconv join spin token
        waits_for queued time
        """.split()
    )

    def __init__(self, machine: Machine, state: WarpState, mask: int, pc: int = 0):
        self.machine, self.state, self.mask, self.pc = machine, state, mask, pc
        self.cta, self.index, self.special = state.cta, state.index, state.special
        self.params, self.symbols = machine.params, machine.symbols
        self.rank_bits = state.cta.rank << RANK_SHIFT
        self.reconv, self.join = EXIT, None
        self.spin: tuple | None = None  # see QUIET
        self.token: Any = None
        self.waits_for: Waitable | None = None
        self.queued = False
        self.time = Clock.now  # simulated time it has reached; only the timing model moves it
        state.fragments.append(self)

    @property
    def R(self) -> list:
        return self.state.R

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
        join = Join(meet, self.mask, 0, self.join, self.reconv)
        self.join, self.reconv = join, meet
        if target == meet != EXIT:
            join.arrived, self.mask = taken, others
            return after
        self.mask = taken
        if after == meet != EXIT:
            join.arrived = others
        else:
            sibling = type(self)(self.machine, self.state, others, after)
            sibling.join, sibling.reconv, sibling.time = join, meet, self.time
            self.machine.enqueue(sibling)
        return target

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

    def _reconsider(self):
        """Lanes have passed or exited: parts that wait for them look again."""
        gathering, self.state.gathering = self.state.gathering, []
        for place in gathering:
            place.notify()

    def retire(self, lanes: int) -> None:
        """Some lanes exit; the fragment goes on with the others."""
        self.mask &= ~lanes
        self._leave(lanes)

    def arrive_or_exit(self, pc: int) -> int | None:
        """Called at the end of a region or of the kernel. Returns the block that the fragment goes
        on with; None if it ends.
        """
        while True:
            if pc == EXIT:
                self.state.fragments.remove(self)
                self._leave(self.mask)
                return None
            join = self.join
            if join is None or pc != self.reconv:
                return pc
            join.arrived |= self.mask
            self.time = join.time = max(join.time, self.time)
            if join.arrived != join.waiting:
                self.state.fragments.remove(self)
                self._reconsider()
                return None
            self.mask, self.join, self.reconv = join.waiting, join.parent, join.parent_pc
            if self.reconv != pc:
                return pc

    def _leave(self, lanes: int):
        """Lanes have exited: nobody waits for them any more."""
        join = self.join
        while join is not None:
            join.waiting &= ~lanes
            if join.waiting and join.waiting == join.arrived:
                rest = type(self)(self.machine, self.state, join.waiting, join.pc)
                rest.join, rest.reconv, rest.time = (
                    join.parent,
                    join.parent_pc,
                    max(join.time, self.time),
                )
                join.waiting = 0  # taken over
                pc = rest.arrive_or_exit(rest.pc) if rest.reconv == rest.pc else rest.pc
                if pc is not None:
                    rest.pc = pc
                    self.machine.enqueue(rest)
                break
            join = join.parent
        self.machine.lanes_exited(self.state, lanes)
        self._reconsider()

    def trap(self) -> NoReturn:
        raise Fault("trap executed")
