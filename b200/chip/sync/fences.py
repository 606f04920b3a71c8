"""Fences and grid dependencies.

Source: PTX ISA 9.7.13. Memory is sequentially consistent here, the grids that a launch depends on
have ended before it starts, and every CTA of a grid is launched. So most of these instructions have
no effect; they are only checked to be legal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from b200.chip.memory.loads_stores import memory_scope, order_of
from b200.effects import Effect, FencesInits, FencesMemory, FencesProxy, OrdersGrids
from b200.program.module import Instr
from b200.registry import Run, no_effect, warp

if TYPE_CHECKING:
    from b200.chip.fragment import Fragment


def _fences(ins: Instr) -> Effect:
    if ins.mods[:2] == ("membar", "proxy") or ins.mods[:3] == ("fence", "proxy", "alias"):
        return FencesProxy(shared=False, far=False)
    if ins.mods[0] == "membar":
        return FencesMemory(order="sc", scope=memory_scope(ins))
    if ins.has("async::generic"):
        return FencesProxy(shared=True, far=False, order=order_of(ins, ""))
    if ins.has("proxy"):
        shared = not ins.has("global")
        own = ins.has("shared::cta")
        far = not (own or ins.has("shared::cluster"))
        return FencesProxy(shared=shared, far=far, own=own)
    if ins.has("mbarrier_init"):
        return FencesInits()
    return FencesMemory(order=order_of(ins, "acq_rel"), scope=memory_scope(ins))


@warp("fence", "membar", states=_fences)
def fence(ins: Instr) -> Run:
    """fence{.sem}.scope, fence.proxy.KIND, fence.mbarrier_init, membar"""
    return no_effect


@warp(
    "griddepcontrol",
    states=lambda ins: OrdersGrids(pipe="hint", waits=ins.has("wait")),
    may_block=True,
)
def griddepcontrol(ins: Instr) -> Run:
    """griddepcontrol.launch_dependents, griddepcontrol.wait"""
    if ins.mods[1:] == ("launch_dependents",):
        return no_effect

    def run(warp: Fragment, mask: int) -> None:
        warp.machine.wait_for_grids()

    return run
