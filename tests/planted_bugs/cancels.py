"""Planted bugs of cluster launch control: a CTA does the work of those that have not started."""

from __future__ import annotations

import torch

from tests.planted_bugs.case import PlantedBug, Source

CTAS, THREADS = 12, 64
RESPONSE, BARRIER = 0x400, 0x410


def tiles(drain=False, wait=True, fence=True, flips=True, asked=True) -> Source:
    """out[tile][thread] = its number; a tile is a CTA's own, or a cancelled one's. drain: the last
    response is followed by another request; wait: for a response, before it is read; flips: the
    parity that is waited for does; asked: a response is, before its CTA is taken from it.
    """
    k = Source(".param .u64 out", THREADS)
    k("mov.u32 %r0, %tid.x;")
    k("mov.u32 %r1, dyn;")
    k("ld.param.u64 %rd0, [out];")

    def init():
        k(f"mbarrier.init.shared::cta.b64 [%r1+{BARRIER}], 1;")
        k("fence.mbarrier_init.release.cluster;")

    def request():
        k(f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1+{BARRIER}], 16;")
        k(
            "clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 "
            f"[%r1+{RESPONSE}], [%r1+{BARRIER}];",
            "request",
        )

    k.only(0, init)
    k("bar.sync 0;")
    k("mov.u32 %r2, %ctaid.x;")
    k("mov.u32 %r3, 0;")
    k("TILE: mov.u32 %r9, 0;")
    k.only(0, request)
    k(f"mad.lo.u32 %r4, %r2, {THREADS}, %r0;")
    k("mul.wide.u32 %rd1, %r4, 4;")
    k("add.u64 %rd2, %rd0, %rd1;")
    k("st.global.u32 [%rd2], %r4;")
    if wait:
        k.wait(f"%r1+{BARRIER}", "%r3", "wait")
    k(f"ld.shared.v2.b64 {{%rd3, %rd4}}, [%r1+{RESPONSE}];", "read")
    if not wait:
        k.wait(f"%r1+{BARRIER}", "%r3")
    if flips:
        k("xor.b32 %r3, %r3, 1;")
    k("mov.b128 %rq0, {%rd3, %rd4};")
    k("clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 %p5, %rq0;", "query")
    k("mov.u32 %r2, 0;")
    take = "clusterlaunchcontrol.query_cancel.get_first_ctaid::x.b32.b128 %r2, %rq0;"
    k(f"@%p5 {take}" if asked else take, "take")
    if fence:
        k("fence.proxy.async.shared::cta;")
    k("bar.sync 0;")
    k("@%p5 bra TILE;")
    if drain:
        k.only(0, request)
        k.wait(f"%r1+{BARRIER}", "%r3")
    return k


def planted(name: str, title: str, kind: str, words, marks, schedule=None, **bug) -> PlantedBug:
    return PlantedBug(
        name,
        title,
        lambda guilty: tiles(**(bug if guilty else {})),
        kind,
        words,
        marks,
        lambda: [torch.zeros(CTAS * THREADS, dtype=torch.int32)],
        lambda a: torch.arange(CTAS * THREADS, dtype=torch.int32),
        grid=(CTAS, 1, 1),
        schedule=schedule,
    )


PLANTED = [
    planted(
        "cancel_behind_a_failure",
        "one more request after the response that no cluster is left",
        "protocol",
        ("requested again after a response has said that none is left", "the failure was seen at"),
        ("request", "query"),
        drain=True,
    ),
    planted(
        "response_read_too_early",
        "the response is read in front of the wait for its mbarrier",
        "race",
        ("reads shared memory before the bulk copy into it has landed", "never waited on the"),
        ("read", "request"),
        schedule="late",
        wait=False,
    ),
    planted(
        "response_reused_without_fence",
        "a response is asked for anew with no proxy fence after the read of the one before",
        "proxy",
        ("proxy (portability)", "where the one before was read, with no fence.proxy.async"),
        ("read", "request"),
        fence=False,
    ),
    planted(
        "cta_of_a_failure",
        "a CTA's number is taken from a response before it says that one was cancelled",
        "protocol",
        ("protocol (portability)", "get_first_ctaid of a request that has failed", "is_canceled"),
        ("take",),
        asked=False,
    ),
    planted(
        "response_parity_begins_anew",
        "each tile waits for its response with the parity of the first",
        "deadlock",
        ("likely cause", "waits for mbarrier"),
        ("wait",),
        flips=False,
    ),
]
