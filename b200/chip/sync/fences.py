"""Fences, grid dependencies, cluster launch control.

Memory is sequentially consistent here, prerequisite grids have ended before a launch and every CTA
of a grid is launched, so most of these have no effect; what is checked is that they are legal.
PTX ISA 9.7.13 (fences, griddepcontrol, clusterlaunchcontrol).
"""

from __future__ import annotations

from b200.chip.memory.addressing import resolver
from b200.chip.operations import Place, TryCancel
from b200.chip.sync.mbarrier import complete_tx_at, mbarrier_at
from b200.contract import lane, warp
from b200.errors import Unsupported
from b200.program.module import Instr

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
    *("griddepcontrol.launch_dependents", "griddepcontrol.wait"),
}
RESPONSE = 16  # bytes of a cluster launch control response


def no_effect(warp, mask, *operands):
    """Run function of what changes nothing here."""


@warp("fence", "membar", "griddepcontrol")
def fence(ins: Instr):
    """fence{.sem}.scope, fence.proxy.KIND, fence.mbarrier_init, membar, griddepcontrol"""
    if ins.opcode not in FENCES:
        raise Unsupported(f"{ins.opcode}: not a known fence")
    return no_effect


@lane("clusterlaunchcontrol.try_cancel")
def try_cancel(ins: Instr):
    """clusterlaunchcontrol.try_cancel.async{.shared::cta}.mbarrier::complete_tx::bytes
    {.multicast::cluster::all}.b128 [addr], [mbar]

    No launch is ever cancelled: the response is always the one of a failure, all zeros here.
    """
    locate = resolver("shared::cta" if ins.has("shared::cta") else "generic")
    everywhere = ins.has("multicast::cluster::all")

    def run(warp, lane, address, mbar):
        warp.spin = None
        cta, at = locate(warp, address, RESPONSE, RESPONSE)
        _, barrier = locate(warp, mbar, 8, 8)
        ctas = cta.cluster.ctas if everywhere else [cta]
        for each in ctas:
            mbarrier_at(each, barrier)
        who = (warp.cta.rank, "cluster launch control", ins.loc)

        def apply():
            for each in ctas:
                each.smem.u8[at : at + RESPONSE] = 0
                complete_tx_at(each, barrier, RESPONSE, who)

        places = tuple(Place(each, at, each, barrier) for each in ctas)
        warp.machine.issue(TryCancel(RESPONSE, places), warp, apply)

    return run


@lane("clusterlaunchcontrol.query_cancel.is_canceled", out=1)
def is_canceled(ins: Instr):
    """clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 p, response"""
    return lambda warp, lane, response: response != 0


@lane(
    *(
        f"clusterlaunchcontrol.query_cancel.get_first_ctaid{part}"
        for part in ("", "::x", "::y", "::z")
    ),
    out=1,
)
def get_first_ctaid(ins: Instr):
    """clusterlaunchcontrol.query_cancel.get_first_ctaid{::x|::y|::z}.b32.b128 d, response; .v4 form

    Undefined for a failed request, the only kind here: zeros.
    """
    return lambda warp, lane, response: (0, 0, 0, 0) if ins.has("v4") else 0
