"""The order of a run: who takes the next turn, and when asynchronous operations take effect.

A fragment (fragment.py) runs until it must wait or its turn is over. Clusters start in order and
run to their end one after the other. Further clusters join while the resident ones wait or run
long, up to what the GPU holds, so waiting across the grid works, too.

This is the usual order; schedules.py, overlap.py and the clock (clock/timed.py) have others. A
correct kernel gives the same results in all of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, NoReturn

from b200.chip import describe
from b200.chip.fragment import Fragment
from b200.chip.launch import Arguments, Launch
from b200.chip.meeting import let_others_go, never_complete
from b200.chip.operations import Action, Operation
from b200.chip.placement import Placement
from b200.chip.polls import name_polls
from b200.chip.spin import FIRST, LOOK, quiet
from b200.chip.standing_clock import clocks_go_on
from b200.chip.state import Cluster
from b200.errors import EmulatorError, Fault, Unsupported
from b200.program.analysis import EXIT
from b200.program.translated import Translated
from b200.program.writer import Writer
from b200.registry import QUIET, Blocked, Waitable

if TYPE_CHECKING:
    from b200.chip.fragment import WarpState
    from b200.chip.machine import Machine

TURN = 4096  # blocks a fragment executes before others get a turn
PUT_OFF = 256  # turns that a cluster goes on alone before another joins it (abreast/order.py)
CANCEL_FAILS = 4  # of so many requests of cluster launch control one fails early


class InOrder:
    """The usual order: warps take turns as they come, and effects happen at once.

    plain: whether turns come in the order of waking and effects at once; then a cluster that does
    what another has done may run unchecked (checker/following.py). by_thread: whether the copies
    of a warp's cp.async happen apart, one a thread. writer_type, fragment_type: as of a Watcher.
    """

    plain = True
    by_thread = False
    writer_type: type[Writer] | None = None
    fragment_type: type[Fragment] | None = None
    machine: Machine

    def __init__(self) -> None:
        self.turn = TURN
        self.queue: deque[Fragment] = deque()
        self.requests = 0  # of cluster launch control
        self.left = bytearray()  # a byte for each block of the turn: cleared, it ends
        self.gives_way = False  # whether the running fragment ends its turn for others of its CTA

    def attach(self, machine: Machine) -> None:
        """From now on it is the order of this machine."""
        self.machine = machine

    def again(self, dependent: bool) -> InOrder | None:
        """The same order from its beginning, for a launch that is carried out once more; None where
        that cannot be. dependent: whether the launch may overlap with the one before.
        """
        return InOrder()

    # --- a launch ---------------------------------------------------------------------------------
    def launch(
        self, carry_out: Callable[[], Launch], code: Translated, arguments: Arguments
    ) -> Launch:
        """Carry a launch out; what has to happen before and after it happens here."""
        return carry_out()

    def clusters(self, every: Iterator[Cluster]) -> Iterable[Cluster]:
        """Those of a grid's clusters that run."""
        return every

    def run(self, waiting: Iterator[Cluster], launch: Launch) -> None:
        """Run the clusters to their end. Raises EmulatorError."""
        self.queue, self.requests = deque(), 0
        machine, placement = self.machine, Placement()
        machine.next_cluster = next(waiting, None)
        while True:
            if not self.queue or machine.spinning.all_stand():
                started = self.settle() or self.start_next(waiting, launch, placement)
                if started or let_others_go(machine):
                    machine.spinning.progress()
                    continue
                if clocks_go_on(machine) or machine.limits.pass_by(machine):
                    machine.spinning.again()
                    continue
                for cluster in machine.ended():
                    machine.resident.remove(cluster)
                if machine.resident:
                    self.raise_stuck(launch)
                return
            fragment = self.next_fragment()
            fragment.queued = False
            if self.take_turn(fragment, launch):
                self.start_next(waiting, launch, placement)

    def raise_stuck(self, launch: Launch) -> NoReturn:
        """No warp can run, and some have not ended."""
        machine = self.machine
        if (found := never_complete(machine)) is not None:
            raise EmulatorError("fault", describe.fault(machine, launch, *found))
        name_polls(machine)
        if (said := describe.waits_for_host(machine)) is not None:
            raise EmulatorError("unsupported", said)
        raise EmulatorError("deadlock", describe.deadlock(machine, launch))

    def start_next(self, waiting: Iterator[Cluster], launch: Launch, placement: Placement) -> bool:
        """Start the next cluster if there is one and there is room for its CTAs."""
        machine = self.machine
        if any(watcher.starts_first() for watcher in machine.watchers):
            return True
        if machine.next_cluster is None:
            return False
        for cluster in machine.ended():
            machine.resident.remove(cluster)
            placement.release([cta.sm for cta in cluster.ctas], launch)
        if not machine.resident and self.start_several(launch):
            return True
        sms = placement.place(launch)
        if sms is None:
            return False
        for watcher in machine.watchers:
            watcher.admits(machine.next_cluster)
        machine.admit(machine.next_cluster, launch, sms)
        machine.next_cluster = next(waiting, None)
        return True

    def start_several(self, launch: Launch) -> bool:
        """Called where a cluster would start while none runs: whether some have been carried out
        together, from the next one on.
        """
        return False

    # --- turns ------------------------------------------------------------------------------------
    def next_fragment(self) -> Fragment:
        """The fragment that runs next, taken from the queue."""
        return self.queue.popleft()

    def enqueue(self, warp: Fragment) -> None:
        """A fragment can run."""
        if not warp.queued:
            warp.queued = True
            self.queue.append(warp)

    def wake(self, warp: Fragment, waitable: Waitable) -> None:
        """Let a fragment run again: `waitable`, for which it waited, has happened."""
        self.enqueue(warp)

    def wait_passed(self, warp: Fragment) -> None:
        """A fragment need not wait for an mbarrier, or not any more. Where all warps of its CTA
        come, those that can run go on first: copies take no time here, so the first warp of a loop
        that all run could pass its waits two phases ahead of the others, which then hang.
        """
        common = self.machine.code.common
        if any(f.cta is warp.cta for f in self.queue) and warp.pc in common:
            self.left.clear()
            self.gives_way = True

    def take_turn(self, warp: Fragment, launch: Launch) -> bool:
        """Run a fragment until it waits, gives way or ends (False) or its turn is over (True)."""
        watchers = self.machine.watchers
        if not watchers:
            return self._turn(warp, launch)
        for watcher in watchers:
            watcher.turns(warp)
        try:
            return self._turn(warp, launch)
        except BaseException as error:
            if not any(watcher.interrupted(error) for watcher in watchers):
                raise
            return False

    def _turn(self, warp: Fragment, launch: Launch) -> bool:
        machine = self.machine
        spinning = machine.spinning
        if spinning.stands(warp):
            self.enqueue(warp)
            return True
        before = warp.spin = warp.spin or QUIET
        self.gives_way = False
        try:
            pc = self.run_blocks(warp)
        except Blocked as blocked:
            spinning.progress()
            machine.hits[warp.pc] -= warp.counted
            if blocked.waitable is None:
                self.enqueue(warp)
                return False
            warp.waits_for = blocked.waitable
            blocked.waitable.waiters.append(warp)
            return False
        except EmulatorError:
            raise
        except Exception as error:
            self.raise_failed(warp, launch, error)
        if not quiet(warp, before):
            spinning.progress()
        if pc is None:
            spinning.joins[warp.state] += 1
            return False
        warp.pc = pc
        self.enqueue(warp)
        return not self.gives_way

    def raise_failed(self, warp: Fragment, launch: Launch, error: Exception) -> NoReturn:
        """An instruction has failed."""
        machine = self.machine
        if not isinstance(error, Fault):
            said = describe.internal(machine, launch, warp, error)
            raise EmulatorError("internal", said) from error
        kind = "unsupported" if isinstance(error, Unsupported) else "fault"
        said = describe.fault(machine, launch, warp, error) + machine.limits.told()
        raise EmulatorError(kind, said) from None

    def run_blocks(self, warp: Fragment) -> int | None:
        """Run blocks of a fragment. Returns the block that it goes on with in its next turn; None
        if it has ended or another fragment of its warp goes on.
        """
        spinning, pc, before = self.machine.spinning, warp.pc, warp.spin
        count = spinning.before_look(warp)
        idle = left = self.turn
        while True:
            count = min(count, left)
            pc = self.run_some(warp, pc, count)
            left -= count
            if pc is None or not left or self.gives_way:
                return pc
            if quiet(warp, before):
                warp.pc = pc
                pc = spinning.look(warp)
                if pc is None or self.gives_way or spinning.stands(warp):
                    return pc
                left = max(0, left - LOOK)
            if warp.spin is not None:
                break
            spinning.progress()  # it has changed something, and may poll from here on
            before = warp.spin = QUIET
            count, idle = FIRST, left
        pc = self.run_some(warp, pc, left)
        if pc is not None and quiet(warp, before):
            warp.pc = pc
            return spinning.went_on(warp, idle)
        return pc

    def run_some(self, warp: Fragment, pc: int, count: int) -> int | None:
        """`count` blocks of run_blocks."""
        blocks, hits, R = self.machine.code.blocks, self.machine.hits, warp.register_file
        self.left = left = bytearray(count)
        for _ in left:
            warp.pc = pc
            hits[pc] += warp.ctas
            pc = blocks[pc](warp, R)
            if pc == EXIT or pc == warp.reconv:
                after = warp.arrive_or_exit(pc)
                if after is None:
                    return None
                pc = after
        return pc

    # --- effects ----------------------------------------------------------------------------------
    def issue(self, operation: Operation, warp: Fragment, apply: Action) -> None:
        """A warp issues an asynchronous operation. `apply` is its effect, to be called once; here
        at once.
        """
        apply()

    def settle(self) -> bool:
        """Called when no warp can run: let one delayed effect happen. False if there is none."""
        return False

    def cancel_next(self) -> Cluster | None:
        """Take the next cluster off the launch, for a warp that asks for its work (cluster launch
        control). Returns None if the request fails: where every cluster has started, and one in
        CANCEL_FAILS before, so that a kernel meets both answers, and clusters that others replace.
        """
        self.requests += 1
        return None if self.requests % CANCEL_FAILS == 0 else self.machine.take_next()

    def forget(self) -> None:
        """Nothing that runs goes on: it starts again (checker/following.py)."""
        self.queue.clear()

    def wait_for_grids(self) -> None:
        """A warp waits for the previous launches (griddepcontrol.wait): raises Blocked while they
        run. Here they have always ended.
        """

    def new_warp(self, state: WarpState) -> None:
        """A warp becomes resident."""

    def exits(self, state: WarpState, lanes: int) -> None:
        """Lanes of a warp have exited."""
