"""The schedule "pdl": a dependent launch really overlaps with the previous launch.

All that the dependent launch does before its griddepcontrol.wait happens before the previous launch
has done anything. This is one extreme of what hardware may do; the usual order is the other. The
emulator gets launches one after the other. So it restores memory to what it was before the previous
launch, starts the dependent launch, and carries the previous launch out once more when no warp of
the dependent launch can go on without it or has more to do. It does so only if the previous launch
lets its dependents start (griddepcontrol.launch_dependents) and nobody has changed memory in
between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from b200.chip.contents import Contents
from b200.chip.launch import Arguments, Launch
from b200.chip.machine import Machine
from b200.chip.order import InOrder
from b200.effects import OrdersGrids
from b200.program.translate import translate
from b200.program.translated import Translated
from b200.registry import Blocked, Waitable

if TYPE_CHECKING:
    from b200.chip.placement import Placement
    from b200.chip.state import Cluster


class Before(NamedTuple):
    """A previous launch that lets its dependents start: its code, the other arguments of
    Machine.launch, the variables of its module, and memory before and after the launch.
    """

    code: Translated
    arguments: Arguments
    symbols: dict[str, int]
    before: Contents
    after: Contents


class Gate(Waitable):
    """Holds the warps of a dependent launch that wait for the previous launch."""

    def describe(self) -> str:
        return "the launch before (griddepcontrol.wait)"


class Overlapping(InOrder):
    """The usual order, but a dependent launch overlaps with the previous one."""

    def __init__(self) -> None:
        super().__init__()
        self.earlier: Before | None = None
        self.pending: Before | None = None  # to be carried out for the launch that runs
        self.gate = Gate()

    def again(self, dependent: bool) -> InOrder | None:
        return None if dependent else InOrder()

    def launch(
        self, carry_out: Callable[[], Launch], code: Translated, arguments: Arguments
    ) -> Launch:
        machine = self.machine
        earlier, self.earlier = self.earlier, None
        # All launches before this one have happened here; below, the latest is taken back.
        before = Contents(machine.memory.allocations()) if lets_start(code) else None
        if arguments[0].dependent and earlier is not None and earlier.after.unchanged():
            earlier.before.put_back()
            self.pending, self.gate = earlier, Gate()
        try:
            launch = carry_out()
        finally:
            self._carry_out()
        if before is not None:
            after = Contents(machine.memory.allocations())
            self.earlier = Before(code, arguments, machine.symbols, before, after)
        return launch

    def forget(self) -> None:
        super().forget()
        self.gate.waiters.clear()

    def wait_for_grids(self) -> None:
        if self.pending is not None:
            raise Blocked(self.gate)

    def start_next(self, waiting: Iterator[Cluster], launch: Launch, placement: Placement) -> bool:
        """The launch before happens when nothing of this one can start or go on without it."""
        if super().start_next(waiting, launch, placement):
            return True
        idle = not self.queue or self.machine.spinning.all_stand()
        return idle and bool(self.gate.waiters) and self._carry_out()

    def _carry_out(self) -> bool:
        """The launch before happens, if it is still to."""
        pending, self.pending = self.pending, None
        if pending is None:
            return False
        machine = Machine(self.machine.memory)
        machine.symbols = pending.symbols
        code = translate(pending.code.program, pending.code.kernel)
        machine.launch(code, *pending.arguments)
        self.gate.notify()
        return True


def lets_start(code: Translated) -> bool:
    """Whether a kernel lets launches that depend on it start (griddepcontrol.launch_dependents)."""
    effects = (op.ins.effect for block in code.structure for op in block.ops)
    return any(isinstance(effect, OrdersGrids) and not effect.waits for effect in effects)
