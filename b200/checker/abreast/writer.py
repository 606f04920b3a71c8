"""Writes a kernel for clusters that follow abreast, with the step of each instruction in front."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from b200.checker.instrument import WRAPPERS
from b200.checker.memory import generic
from b200.checker.products.overflows import watched
from b200.checker.steps import look_of
from b200.chip.abreast.accesses import AccessPlace
from b200.chip.abreast.dropped import NotAbreast
from b200.chip.abreast.forms import flat_kinds, form_of
from b200.chip.abreast.writer import AbreastWriter
from b200.chip.fragment import Fragment
from b200.effects import Access, Copies, MeetsInCta, MeetsInWarp, Stores
from b200.program.analysis import Op
from b200.program.module import Instr
from b200.registry import Run

if TYPE_CHECKING:
    from b200.checker.abreast.follow import FollowAbreast
    from b200.checker.checked import CheckedFragment


class CheckedAbreastWriter(AbreastWriter):
    """Writes a kernel for several clusters, with the step of each instruction in front of it."""

    def form(self, op: Op) -> Run:
        ins = op.ins
        make = WRAPPERS.get(type(ins.effect))
        if make in (generic.access, generic.atomic):
            assert isinstance(ins.effect, Access)
            return form_of(op, None if ins.effect.private else self._seen(op))
        run = form_of(op)
        if isinstance(ins.effect, Copies):
            return partial(_issue, ins, run)
        look = look_of(make, ins) if make is not None else None
        return run if look is None else self._stepping(op, run, make is generic.matrix_access)

    def _seen(self, op: Op) -> Callable[..., None]:
        ins = op.ins
        address = ins.operands[0 if isinstance(ins.effect, Stores) or ins.mods[0] == "red" else 1]
        varies = self.alone.operand_varies(address)

        def seen(warp: Fragment, mask: int, place: AccessPlace, values: tuple) -> None:
            view_of(warp).access(ins, warp, mask, place, values, varies)

        return seen

    def _stepping(self, op: Op, run: Run, address_only: bool) -> Run:
        """The run function with the step in front. address_only: the step has the first operand."""
        ins, kinds = op.ins, flat_kinds(op)
        operands = op.arguments
        count = 1 if address_only else len(operands)
        uniform = [not self.alone.operand_varies(o) for o in operands[:count]]

        def step(warp: CheckedFragment, mask: int, *args: Any):
            view_of(warp).takes(ins, warp, mask, list(zip(kinds, args, uniform)))
            return run(warp, mask, *args)

        if isinstance(ins.effect, MeetsInCta) and ins.effect.waits:
            return partial(_wait, step)
        return partial(_meet, step) if isinstance(ins.effect, MeetsInWarp) else step

    def _vector(self, group: list[Op], args: list[str], mask: str) -> str:
        made = group[0].made
        if made.narrows is None:
            return super()._vector(group, args, mask)
        function = self._constant(watched([op.ins for op in group], made, _overflows))
        return f"{function}(w, {mask}, {', '.join(args)})"


def _wait(run: Run, warp: Fragment, mask: int, number: int, *rest: Any) -> None:
    """Execute a barrier of the CTA, which orders what comes before and after it."""
    if warp.token is None:
        view_of(warp).waits(warp, number)
    run(warp, mask, number, *rest)
    view_of(warp).passes(warp)


def _meet(run: Run, warp: Fragment, mask: int, *args: Any) -> None:
    """Execute bar.warp.sync, which does so for the lanes of a warp."""
    run(warp, mask, *args)
    view_of(warp).together(warp, mask)


def _issue(ins: Instr, run: Run, warp: Fragment, mask: int, *args: Any) -> None:
    """Execute an instruction; behind it are the steps of what each CTA has issued."""
    run(warp, mask, *args)
    view_of(warp).has_issued(ins, warp, mask)


def view_of(warp: Fragment) -> FollowAbreast:
    machine: Any = warp.machine
    return machine.view


def _overflows(*_: Any) -> None:
    raise NotAbreast("a conversion makes infinities")
