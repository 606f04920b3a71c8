"""Deadlocks of rare orders: the usual ones end well, with nothing found; `--schedule all` finds
them.

Each has a chain of warps that wake one another, and somebody who is to be quicker than all of it,
which nothing but luck sees to.
"""

from __future__ import annotations

import torch

from tests.planted_bugs.case import PlantedBug, Source
from tests.planted_bugs.clusters import PAIR, cluster_start, cluster_sync, mbarriers, store_ranked
from tests.planted_bugs.cta import ints, start, store_own

HOPS = 10  # warps of the chain
LINKS = 1024  # shared-memory offset of its mbarriers, one in front of each of its warps
BEGIN, LAST = f"%r1+{LINKS}", f"%r1+{LINKS + 8 * HOPS}"  # who waits for LAST is after all of it
SHARED = 2048  # offset of the mbarrier that it is about
ANSWER = SHARED + 8
ALLOC = "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32"


def chain(k: Source, first: int):
    """HOPS warps, the last of them `first`, each of which wakes the next."""
    for hop in range(HOPS):
        thread = 32 * (first + HOPS - 1 - hop)

        def relay(hop=hop):
            k.wait(f"%r1+{LINKS + 8 * hop}", 0)
            k(f"mbarrier.arrive.shared::cta.b64 _, [%r1+{LINKS + 8 * hop + 8}];")

        k.only(thread, relay)


def all_mbarriers(k: Source):
    mbarriers(k, 1, *(LINKS + 8 * hop for hop in range(HOPS + 1)), SHARED, ANSWER)


def memory_first(bug: bool) -> Source:
    """Warp 0 takes all tensor memory, after the chain, and holds it until the last warp arrives,
    which needs all of it before.
    """
    k = start(32 * (HOPS + 3))
    all_mbarriers(k)
    k("bar.sync 0;")
    begins, other = 32 * (HOPS + 1), 32 * (HOPS + 2)

    def hold():
        k.wait(LAST, 0)
        if not bug:
            k.wait(f"%r1+{SHARED}", 0)
        k(f"{ALLOC} [%r1+3072], 512;", "hold")
        k("ld.shared.b32 %r4, [%r1+3072];")
        if bug:
            k.wait(f"%r1+{SHARED}", 0, "wait")
        k("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r4, 512;")

    def use():
        k(f"{ALLOC} [%r1+3076], 512;", "use")
        k("ld.shared.b32 %r4, [%r1+3076];")
        k("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r4, 512;")
        k.only(other, lambda: k(f"mbarrier.arrive.shared::cta.b64 _, [%r1+{SHARED}];", "arrive"))

    chain(k, 1)
    k.only(begins, lambda: k(f"mbarrier.arrive.shared::cta.b64 _, [{BEGIN}];"))
    k.only(0, hold, 31)
    k.only(other, use, other + 31)
    store_own(k, "%r0")
    return k


def overtaken(bug: bool, leads: bool = False) -> Source:
    """Warp 0 waits for a phase of a barrier that warp 1 completes. The end of the chain that warp 1
    begins then completes the next phase: after warp 0's answer, or as soon as it is there. leads:
    it has waited for the first phase, too.
    """
    k = start(32 * (HOPS + 3))
    all_mbarriers(k)
    k("bar.sync 0;")

    def looks():
        k.wait(f"%r1+{SHARED}", 0, "wait")
        k(f"mbarrier.arrive.shared::cta.b64 _, [%r1+{ANSWER}];")

    def first():
        k(f"mbarrier.arrive.shared::cta.b64 _, [%r1+{SHARED}];", "first")
        k(f"mbarrier.arrive.shared::cta.b64 _, [{BEGIN}];")

    def second():
        if leads:
            k.wait(f"%r1+{SHARED}", 0)
        k.wait(LAST, 0)
        if not bug:
            k.wait(f"%r1+{ANSWER}", 0)
        k(f"mbarrier.arrive.shared::cta.b64 _, [%r1+{SHARED}];", "second")

    k.only(0, looks)
    k.only(32, first)
    k.only(64, second)
    chain(k, 3)
    store_own(k, "%r0")
    return k


def overtaken_in_the_peer(bug: bool) -> Source:
    """As `overtaken`, the barrier and who waits for it in the other CTA of a cluster."""
    k = cluster_start(32 * (HOPS + 3))
    all_mbarriers(k)
    cluster_sync(k)
    k(f"add.u32 %r60, %r1, {SHARED};")
    k("mapa.shared::cluster.u32 %r61, %r60, %r51;")
    k("setp.eq.u32 %p10, %r50, 0;")

    def looks():
        k("@!%p10 bra NOT_HERE;")
        k.wait(f"%r1+{SHARED}", 0, "wait")
        k("add.u32 %r63, %r61, 8;")
        k("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r63];")
        k("NOT_HERE: mov.u32 %r62, 0;")

    def first():
        k("@%p10 bra NOT_FIRST;")
        k("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r61];", "first")
        k(f"mbarrier.arrive.shared::cta.b64 _, [{BEGIN}];")
        k("NOT_FIRST: mov.u32 %r62, 0;")

    def second():
        k("@%p10 bra NOT_SECOND;")
        k.wait(LAST, 0)
        if not bug:
            k.wait(f"%r1+{ANSWER}", 0)
        k("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r61];", "second")
        k("NOT_SECOND: mov.u32 %r62, 0;")

    k.only(0, looks)
    k.only(32 * (HOPS + 2), first)
    k.only(32, second)
    k("@%p10 bra NO_CHAIN;")
    chain(k, 2)
    k("NO_CHAIN: mov.u32 %r62, 0;")
    cluster_sync(k)
    store_ranked(k, "%r53")
    return k


def numbers(n: int):
    return lambda args: torch.arange(n, dtype=torch.int32)


THREADS = 32 * (HOPS + 3)
PLANTED = [
    PlantedBug(
        "memory_held_by_the_one_who_waits",
        "a warp that holds all tensor memory waits for one that needs some",
        memory_first,
        "deadlock",
        ("another order of the warps hangs", "512 columns of tensor memory", "shortest"),
        ("hold", "use", "wait"),
        ints(THREADS),
        numbers(THREADS),
        schedule="all",
    ),
    PlantedBug(
        "phase_overtaken",
        "the phase after the one that a warp waits for may be over before it looks",
        overtaken,
        "deadlock",
        ("another order of the warps hangs", "the phase after the one waited for"),
        ("wait", "first", "second"),
        ints(THREADS),
        numbers(THREADS),
        schedule="all",
    ),
    PlantedBug(
        "phase_overtaken_in_the_peer",
        "likewise, the barrier lies in another CTA of the cluster",
        overtaken_in_the_peer,
        "deadlock",
        ("another order of the warps hangs", "of CTA rank 0"),
        ("wait", "first", "second"),
        ints(2 * THREADS),
        numbers(2 * THREADS),
        **{**PAIR, "schedule": "all"},
    ),
]
