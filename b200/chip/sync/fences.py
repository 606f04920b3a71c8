"""Fences and grid dependencies.

Memory is sequentially consistent here, prerequisite grids have ended before a launch and every CTA
of a grid is launched, so most of these have no effect; what is checked is that they are legal.
PTX ISA 9.7.13 (fences, griddepcontrol).
"""

from __future__ import annotations

from b200.errors import Unsupported
from b200.program.module import Instr
from b200.registry import Run, warp

SCOPES = ("cta", "cluster", "gpu", "sys")
SEMANTICS = ("sc", "acq_rel", "acquire", "release")
PROXIES = (
    *("alias", "async", "async.global", "async.shared::cta", "async.shared::cluster"),
    "async::generic.acquire.sync_restrict::shared::cluster.cluster",
    "async::generic.release.sync_restrict::shared::cta.cluster",
)
FENCES = {
    *(f"fence.{scope}" for scope in SCOPES),
    *(f"fence.{semantics}.{scope}" for semantics in SEMANTICS for scope in SCOPES),
    *(f"fence.proxy.{proxy}" for proxy in PROXIES),
    "fence.acquire.sync_restrict::shared::cluster.cluster",
    "fence.release.sync_restrict::shared::cta.cluster",
    "fence.mbarrier_init.release.cluster",
    *("membar.cta", "membar.gl", "membar.sys", "membar.proxy.alias"),
}


def no_effect(warp, mask, *operands) -> None:
    """Run function of what changes nothing here."""


@warp("fence", "membar")
def fence(ins: Instr) -> Run:
    """fence{.sem}.scope, fence.proxy.KIND, fence.mbarrier_init, membar"""
    if ins.opcode not in FENCES:
        raise Unsupported(f"{ins.opcode}: not a known fence")
    return no_effect


@warp("griddepcontrol", may_block=True)
def griddepcontrol(ins: Instr) -> Run:
    """griddepcontrol.launch_dependents, griddepcontrol.wait"""
    if ins.mods[1:] == ("launch_dependents",):
        return no_effect
    if ins.mods[1:] != ("wait",):
        raise Unsupported(f"{ins.opcode}: must be .launch_dependents or .wait")

    def run(warp, mask):
        warp.machine.wait_for_grids()

    return run
