"""Cluster launch control: a CTA asks for the work of a cluster that has not started.

Source: PTX ISA 9.7.13.16. The machine decides whether a request succeeds (`Machine.cancel_next`). A
response is opaque on the chip. Here a failure is all zeros; a success has the index of the
cancelled cluster's first CTA in words 0 to 2 and a one in word 3.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from b200.chip.memory.addressing import issuer, resolver
from b200.chip.operations import StorePlace, TryCancel
from b200.chip.sync.mbarrier import mbarrier_at
from b200.effects import ReadsRequest, RequestsWork
from b200.program.module import Instr
from b200.registry import Run, lane

if TYPE_CHECKING:
    from b200.chip.fragment import Fragment
    from b200.chip.state import Cluster

RESPONSE = 16  # bytes
WORD = (1 << 32) - 1
FAILED = (1 << 96) - 1  # what get_first_ctaid finds in the response of a failure


@lane("clusterlaunchcontrol.try_cancel", states=RequestsWork())
def try_cancel(ins: Instr) -> Run:
    """clusterlaunchcontrol.try_cancel.async{.shared::cta}.mbarrier::complete_tx::bytes
    {.multicast::cluster::all}.b128 [addr], [mbar]
    """
    locate = resolver("shared::cta" if ins.has("shared::cta") else "generic")
    everywhere = ins.has("multicast::cluster::all")

    def run(warp: Fragment, lane: int, address: int, mbar: int) -> None:
        cta, at = locate(warp, address, RESPONSE, RESPONSE)
        _, barrier = locate(warp, mbar, 8, 8)
        ctas = cta.cluster.ctas if everywhere else [cta]
        for each in ctas:
            mbarrier_at(each, barrier)
        who = issuer(warp, ins, "cluster launch control")

        def apply() -> None:
            response = response_of(warp.machine.cancel_next())
            for each in ctas:
                each.smem.mem[at : at + RESPONSE] = response
                mbarrier_at(each, barrier).complete_tx(RESPONSE, who)

        places = tuple(StorePlace(each, at, each, barrier) for each in ctas)
        warp.machine.issue(TryCancel(RESPONSE, places), warp, apply)

    return run


def response_of(cluster: Cluster | None) -> bytes:
    """The response that names a cancelled cluster; for None, the response of a failure."""
    if cluster is None:
        return bytes(RESPONSE)
    first = (index * size for index, size in zip(cluster.index, cluster.shape))
    return struct.pack("<4I", *first, 1)


@lane("clusterlaunchcontrol.query_cancel.is_canceled", states=ReadsRequest(success=True), out=1)
def is_canceled(ins: Instr) -> Run:
    """clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 p, response"""

    def is_canceled(warp: Fragment, lane: int, response: int) -> bool:
        return response != 0

    return is_canceled


FIRST_CTA = "clusterlaunchcontrol.query_cancel.get_first_ctaid"


@lane(
    *(f"{FIRST_CTA}{part}" for part in ("", "::x", "::y", "::z")),
    states=ReadsRequest(success=False),
    out=1,
)
def get_first_ctaid(ins: Instr) -> Run:
    """clusterlaunchcontrol.query_cancel.get_first_ctaid{::x|::y|::z}.b32.b128 d, response; .v4 form

    Undefined for a failed request: all ones.
    """
    axis = next(("xyz".index(m[-1]) for m in ins.mods if m.startswith("get_first_ctaid::")), 0)

    def run(warp: Fragment, lane: int, response: int):
        if not response:
            warp.machine.undefined(
                "get_first_ctaid of a request that has failed",
                "a look at query_cancel.is_canceled first, and get_first_ctaid only where it says"
                " that a cluster was cancelled",
                ins,
            )
            response = FAILED
        words = [response >> 32 * i & WORD for i in range(3)]
        return (*words, 0) if ins.has("v4") else words[axis]

    return run
