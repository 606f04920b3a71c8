"""What may look at a run: the events that a machine tells its watchers.

A watcher changes no result. The checker is one (checker/checked.py), the explorer of all orders
another (explore/verdict.py). A machine tells its watchers each event in their order. The order of
simulated time, which has no checker, tells nobody of clusters that start. What watchers want to
know of single instructions they add when a kernel is translated (`writer_type`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from b200.chip.fragment import Fragment, WarpState
from b200.chip.launch import Arguments, Launch
from b200.chip.operations import Action, Operation
from b200.chip.state import Cluster
from b200.chip.sync.barrier_record import BarrierHistory, SlippedWait
from b200.chip.sync.mbarrier import MBarrier
from b200.errors import EmulatorError
from b200.program.module import Instr
from b200.program.translated import Translated
from b200.program.writer import Writer

if TYPE_CHECKING:
    from b200.chip.abreast.writer import AbreastWriter
    from b200.chip.machine import Machine


class Abreast:
    """A watcher's view of CTAs abreast (chip/abreast), for one run of theirs. This one looks at
    nothing.

    writer_type: translates a kernel for several CTAs so that the watcher sees its instructions;
    None: as without the watcher.
    in_place: bases of the allocations that the clusters before have read and written.
    """

    writer_type: type[AbreastWriter] | None = None
    in_place: frozenset[int] = frozenset()

    def begins(self, machine: Any) -> None:
        """The machine of n CTAs is about to run."""

    def issued(self, operation: Operation, warp: Fragment) -> None:
        """One of the CTAs issues an asynchronous operation."""

    def exits(self, state: WarpState, lanes: int) -> None:
        """Lanes of a warp have exited."""

    def updated(
        self, number: int, cta: int, seat: Fragment, lanes: int, address: Any, found: Any
    ) -> None:
        """One of the CTAs has carried out the atomic that was kept to the end as the `number`th.
        seat: its fragment. found: the values before.
        """

    def differ(self) -> bool:
        """The run was dropped, as CTAs differ: whether the watcher's next view allows that."""
        return False

    def ends(self) -> None:
        """All CTAs have come to their end. Raises NotAbreast if it must not count."""

    def drops(self) -> None:
        """The run does not count, and may not have come to its end."""


class Watcher:
    """A watcher that looks at nothing: each event may be overridden.

    writer_type: translates a kernel so that the watcher sees its instructions. fragment_type: of
    the warps of a watched launch. None: as without the watcher.
    """

    writer_type: type[Writer] | None = None
    fragment_type: type[Fragment] | None = None
    machine: Machine

    def attach(self, machine: Machine) -> None:
        """From now on it watches this machine."""
        self.machine = machine

    @property
    def repeatable(self) -> bool:
        """Whether a launch that is like an earlier one in all that it reads may be left out."""
        return True

    # --- a launch ---------------------------------------------------------------------------------
    def begins(self, code: Translated, arguments: Arguments) -> None:
        """A launch begins. arguments: the others of Machine.launch."""

    def ends(self, launch: Launch, code: Translated, arguments: Arguments) -> None:
        """The launch has come to its end; its report may be added to."""

    def fails(self, error: EmulatorError) -> EmulatorError:
        """The launch has not: the error, or one that says more."""
        return error

    def over(self) -> None:
        """The launch is over, well or not: called after `fails`, and before `ends`."""

    # --- clusters and turns -----------------------------------------------------------------------
    def admits(self, cluster: Cluster) -> None:
        """A cluster is about to become resident."""

    def starts_first(self) -> bool:
        """Called where the next cluster would start: whether the watcher has started one again."""
        return False

    def abreast(self) -> Abreast | None:
        """Its view of the next CTAs, if they may run abreast; None if they may not."""
        return None

    def turns(self, warp: Fragment) -> None:
        """A fragment's turn begins."""

    def interrupted(self, error: BaseException) -> bool:
        """The turn has ended by an error; whether the watcher has seen to it."""
        return False

    def exits(self, state: WarpState, lanes: int) -> None:
        """Lanes of a warp have exited."""

    # --- instructions -----------------------------------------------------------------------------
    def issued(self, operation: Operation, warp: Fragment, apply: Action) -> Action:
        """A warp issues an asynchronous operation: its effect, or one that is watched."""
        return apply

    def undefined(self, what: str, missing: str, ins: Instr | None, nobodys: str) -> None:
        """As Machine.undefined, of the instruction `ins`; None: the running one."""

    # --- what it knows ----------------------------------------------------------------------------
    def barrier_history(self, mbarrier: MBarrier) -> BarrierHistory | None:
        """The recorded history of an mbarrier."""
        return None

    def slipped_waits(self) -> list[SlippedWait]:
        """Warps whose waits do not go with the phases of an mbarrier."""
        return []
