"""Planted bugs in a cluster: distributed shared memory, cluster barriers, CTA pairs."""

from __future__ import annotations

import torch

from tests.planted_bugs.case import PlantedBug, Source
from tests.planted_bugs.cta import OUT, ints, start

PAIR = {"grid": (2, 1, 1), "cluster": (2, 1, 1)}


def cluster_start(threads: int = 32, params: str = OUT) -> Source:
    k = start(threads, params)
    k("mov.u32 %r50, %cluster_ctarank;")
    k("xor.b32 %r51, %r50, 1;")
    k("mapa.shared::cluster.u32 %r52, %r3, %r51;")
    k("mov.u32 %r54, %ntid.x;")
    k("mad.lo.u32 %r53, %r50, %r54, %r0;")
    return k


def cluster_sync(k: Source, mark: str | None = None, relaxed: bool = False):
    k(
        "barrier.cluster.arrive.relaxed.aligned;" if relaxed else "barrier.cluster.arrive.aligned;",
        mark,
    )
    k("barrier.cluster.wait.aligned;")


def mbarriers(k: Source, count: int, *offsets: int):
    """Thread 0 initialises mbarriers of shared memory; marked `init`."""

    def init():
        for at in offsets:
            k(f"mbarrier.init.shared::cta.b64 [%r1+{at}], {count};", "init")
        k("fence.mbarrier_init.release.cluster;")

    k.only(0, init)


def store_ranked(k: Source, register: str):
    """out[rank * threads + thread] = register"""
    k("mul.wide.u32 %rd8, %r53, 4;")
    k("add.u64 %rd9, %rd0, %rd8;")
    k(f"st.global.u32 [%rd9], {register};", "store")


def exchange(first=True, last=True, relaxed=False) -> Source:
    """Each CTA stores its numbers in the other's shared memory and writes what it got."""
    k = cluster_start()
    if first:
        cluster_sync(k)
    k("st.shared::cluster.u32 [%r52], %r53;", "remote store")
    cluster_sync(k, "hand over", relaxed)
    k("ld.shared.u32 %r5, [%r3];", "read")
    store_ranked(k, "%r5")
    if last:
        cluster_sync(k)
    return k


def sent_on(fence: str, other: str = "", strong: str = "") -> Source:
    """Each CTA stores its numbers in the other's shared memory; that one sends them to global memory
    by a bulk store. fence: behind the stores; other: by the other CTA, behind the cluster barrier.
    """
    k = cluster_start()
    cluster_sync(k)
    k(f"st{strong}.shared::cluster.u32 [%r52], %r53;", "remote store")
    if fence:
        k(f"fence.proxy.async{fence};")
    cluster_sync(k)
    if other:
        k(f"fence.proxy.async{other};")
        k("bar.warp.sync -1;")
    k("mul.wide.u32 %rd8, %r50, 128;")
    k("add.u64 %rd9, %rd0, %rd8;")

    def send():
        k("cp.async.bulk.global.shared::cta.bulk_group [%rd9], [%r1], 128;", "send")
        k("cp.async.bulk.commit_group;")
        k("cp.async.bulk.wait_group 0;")

    k.only(0, send)
    return k


def unseen(name: str, title: str, bug: dict, twin: dict) -> PlantedBug:
    return PlantedBug(
        name,
        title,
        lambda guilty: sent_on(**(bug if guilty else twin)),
        "proxy",
        ("with no fence.proxy.async in between", "missing: fence.proxy.async.shared::cluster"),
        ("send", "remote store"),
        ints(64),
        _swapped,
        **PAIR,
    )


def _swapped(args):
    return torch.arange(64, dtype=torch.int32).reshape(2, 32).flip(0).reshape(-1)


def remote_read(last: bool) -> Source:
    """Each CTA reads the other's shared memory; the last barrier keeps the other from exiting."""
    k = cluster_start()
    k("st.shared.u32 [%r3], %r53;", "write")
    cluster_sync(k)
    k("ld.shared::cluster.u32 %r5, [%r52];", "remote read")
    store_ranked(k, "%r5")
    if last:
        cluster_sync(k)
    return k


def mismatched(bug: bool) -> Source:
    """CTA 0 signals after a cluster barrier at which CTA 1 arrives only after the signal."""
    k = cluster_start()

    mbarriers(k, 1, 1024)
    cluster_sync(k)
    k("setp.ne.u32 %p4, %r50, 0;")
    k("@%p4 bra PEER;")
    cluster_sync(k, "second")
    k("mapa.shared::cluster.u32 %r55, %r1, 1;")
    k.only(
        0,
        lambda: k(
            "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r55+1024];", "remote arrive"
        ),
    )
    k("bra DONE;")
    k("PEER: mov.u32 %r6, 0;")
    if not bug:
        cluster_sync(k)
    k.wait("%r1+1024", 0, "wait")
    if bug:
        cluster_sync(k)
    k("DONE: mov.u32 %r6, 0;")
    store_ranked(k, "%r53")
    cluster_sync(k)
    return k


def remote_arrive(sync: bool, last: bool) -> Source:
    """CTA 0 waits for an arrive of CTA 1 on its mbarrier."""
    k = cluster_start()

    mbarriers(k, 1, 1024)
    if sync:
        cluster_sync(k)
    k("setp.eq.u32 %p4, %r50, 0;")
    k("@%p4 bra WAIT;")
    k("mapa.shared::cluster.u32 %r55, %r1, 0;")
    k.only(
        0,
        lambda: k(
            "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r55+1024];", "remote arrive"
        ),
    )
    k("bra DONE;")
    k("WAIT: mov.u32 %r6, 0;")
    k.wait("%r1+1024", 0, "wait")
    k("DONE: mov.u32 %r6, 0;")
    store_ranked(k, "%r53")
    if last:
        cluster_sync(k)
    return k


def multicast_commits(bug: bool) -> Source:
    """Two rounds of commits by both CTAs onto the mbarriers of both. A CTA waits for a round on its
    own mbarrier only: no data of the peer tells it that the peer's has completed the phase, too.
    """
    k = cluster_start()

    mbarriers(k, 2, 1024)
    cluster_sync(k)
    k("add.u32 %r12, %r1, 1024;")
    k("mov.b16 %h1, 3;")
    for parity in (1 if bug else 0), 1:
        k.only(
            0,
            lambda: k(
                "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster"
                ".multicast::cluster.b64 [%r12], %h1;",
                "commit",
            ),
        )
        k.wait("%r12", parity, "wait")
    store_ranked(k, "%r53")
    cluster_sync(k)
    return k


def commit_masks(bug: bool) -> Source:
    """Each CTA of a cluster commits onto its own mbarrier; the bug's mask names rank 0 in all."""
    k = cluster_start()
    mbarriers(k, 1, 1024)
    cluster_sync(k)
    k("add.u32 %r12, %r1, 1024;")
    k("mov.b32 %r13, 1;")
    k("mov.b32 %r13, 1;" if bug else "shl.b32 %r13, %r13, %r50;")
    k("cvt.u16.u32 %h1, %r13;")
    k.only(
        0,
        lambda: k(
            "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster"
            ".multicast::cluster.b64 [%r12], %h1;",
            "commit",
        ),
    )
    k.wait("%r12", 0, "wait")
    store_ranked(k, "%r53")
    cluster_sync(k)
    return k


def commits_to_a_peer(seen: int) -> Source:
    """CTA 0 commits to two mbarriers of CTA 1, which waits for `seen` of them."""
    k = cluster_start()

    def commit():
        k("mov.b16 %h1, 2;")
        for at in (1032, 1024):
            k(f"add.u32 %r12, %r1, {at};")
            k(
                "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster"
                ".multicast::cluster.b64 [%r12], %h1;",
                f"commit {at}",
            )

    mbarriers(k, 1, 1024, 1032)
    cluster_sync(k)
    k("setp.ne.u32 %p4, %r50, 0;")
    k("@%p4 bra WAIT;")
    k.only(0, commit)
    k("bra DONE;")
    k("WAIT: mov.u32 %r6, 0;")
    for at in (1024, 1032)[:seen]:
        k.wait(f"%r1+{at}", 0)
    k("DONE: mov.u32 %r6, 0;")
    store_ranked(k, "%r53")
    cluster_sync(k)
    return k


# --- a CTA pair ---------------------------------------------------------------------------------

A_ROWS, N = 64, 32
IDESC_PAIR = 1 << 4 | N // 8 << 17 | 128 // 16 << 24


def pair_operands(k: Source, b_of: int = 2):
    """Ones by generic stores: A's 64 rows and 16 of B's in each CTA; B in the first `b_of` CTAs."""
    k(f"setp.lt.u32 %p6, %r50, {b_of};")
    for i in range(24):  # 64 rows of A and 16 of B, 32 bytes each
        k(f"{'' if i < 16 else '@%p6 '}st.shared.u32 [%r3+{128 * i}], 0x3c003c00;", "operands")


def pair_multiply(k: Source, mask: int):
    """One thread multiplies, M = 128, N = 32, and commits to the CTAs of `mask` at offset 8200."""
    k("add.u32 %r12, %r1, 8200;")
    for at, rows, r in ((0, A_ROWS, 20), (2048, N // 2, 22)):
        k(f"add.u32 %r11, %r1, {at};")
        k("shr.u32 %r11, %r11, 4;")
        k("cvt.u64.u32 %rd11, %r11;")
        k(f"or.b64 %rd{r}, %rd11, {rows * 16 >> 4 << 16 | 128 >> 4 << 32 | 1 << 46};")
    k("setp.ne.u32 %p5, 0, 0;")
    k(f"tcgen05.mma.cta_group::2.kind::f16 [%r4], %rd20, %rd22, {IDESC_PAIR}, %p5;", "mma")
    k(f"mov.b16 %h1, {mask};")
    k(
        "tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster"
        ".multicast::cluster.b64 [%r12], %h1;"
    )


def pair_alloc(k: Source):
    k("tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [%r1+8192], 32;", "alloc")


def pair_dealloc(k: Source):
    k("tcgen05.dealloc.cta_group::2.sync.aligned.b32 %r4, 32;", "dealloc")


def pair_mma(last: bool, b_of: int = 2) -> Source:
    """tcgen05.mma over two CTAs; D is not read. last: the barrier before the CTAs free and exit."""
    k = cluster_start(32)
    cluster_sync(k, relaxed=True)
    pair_alloc(k)
    pair_operands(k, b_of)
    mbarriers(k, 1, 8200)
    k("fence.proxy.async.shared::cta;")
    cluster_sync(k)
    k("ld.shared.b32 %r4, [%r1+8192];")
    k("setp.ne.u32 %p4, %r50, 0;")
    k("@%p4 bra PEER;")
    k.only(0, lambda: pair_multiply(k, 3 if last else 1))
    k("PEER: mov.u32 %r6, 0;")
    if not last:
        k("@%p4 bra FREE;")
    k.wait("%r1+8200", 0)
    k("FREE: mov.u32 %r6, 0;")
    if last:
        cluster_sync(k)
    pair_dealloc(k)
    store_ranked(k, "%r53")
    return k


PLANTED = [
    PlantedBug(
        "commit_mask_of_another_cta",
        "the multicast mask of tcgen05.commit names rank 0 in every CTA",
        commit_masks,
        "protocol",
        (
            "missing: the issuer's own CTAs in the multicast mask",
            "names rank 0",
            "rank 1 issues",
            "got 2 commits and no wait",
        ),
        ("commit",),
        ints(64),
        lambda a: torch.arange(64, dtype=torch.int32),
        **PAIR,
    ),
    PlantedBug(
        "remote_store_to_a_cta_that_may_not_run",
        "a store into a CTA of the cluster before anything says that it has started",
        lambda bug: exchange(first=not bug),
        "lifetime",
        ("st reaches another CTA of the cluster, which is not known to have started", "rank 1"),
        ("remote store",),
        ints(64),
        _swapped,
        **PAIR,
    ),
    unseen(
        "narrow_proxy_fence",
        "stores into another CTA, and a proxy fence of the storing CTA's own shared memory",
        {"fence": ".shared::cta"},
        {"fence": ".shared::cluster"},
    ),
    unseen(
        "narrow_proxy_fence_of_the_storing_cta",
        "the same, and the twin's fence is of the CTA's own memory, in the CTA that has the memory",
        {"fence": ".shared::cta"},
        {"fence": "", "other": ".shared::cta"},
    ),
    unseen(
        "volatile_store_sent_without_fence",
        "a volatile store into another CTA, which the bulk store behind a barrier need not see",
        {"fence": "", "strong": ".volatile"},
        {"fence": "", "other": ".shared::cta", "strong": ".volatile"},
    ),
    PlantedBug(
        "remote_store_before_start",
        "a store into a CTA of the cluster that may not have started; nothing orders the last read",
        lambda bug: exchange(relaxed=bug),
        "race",
        ("of another warp",),
        ("read", "remote store"),
        ints(64),
        _swapped,
        **PAIR,
    ),
    PlantedBug(
        "peer_may_have_exited",
        "shared memory of the peer is read, and no cluster barrier follows",
        lambda bug: remote_read(not bug),
        "lifetime",
        ("another CTA has reached it", "barrier.cluster.arrive and wait"),
        ("remote read",),
        ints(64),
        _swapped,
        **PAIR,
    ),
    PlantedBug(
        "remote_arrive_at_exit",
        "an arrive on the peer's mbarrier before its initialisation is known to be done",
        lambda bug: remote_arrive(not bug, True),
        "protocol",
        ("initialisation",),
        ("init",),
        ints(64),
        lambda a: torch.arange(64, dtype=torch.int32),
        **PAIR,
    ),
    PlantedBug(
        "cluster_barrier_mismatched",
        "one CTA arrives on the cluster barrier more often than the other",
        mismatched,
        "deadlock",
        ("the cluster barrier", "not arrived: warp 0 of CTA (1, 0, 0)"),
        ("wait",),
        ints(64),
        lambda a: torch.arange(64, dtype=torch.int32),
        **PAIR,
    ),
    PlantedBug(
        "multicast_commit_a_phase_early",
        "a commit arrives on the peer's mbarrier before its warp knows of the phase before",
        multicast_commits,
        "protocol",
        (
            "protocol: MMA warp 0",
            "without knowing that its phase before is over",
            "count 2",
            "2 warps, 1 lane of each",
        ),
        ("init", "commit"),
        ints(64),
        lambda a: torch.arange(64, dtype=torch.int32),
        **PAIR,
    ),
    PlantedBug(
        "commit_unseen_at_exit",
        "a CTA exits without having waited for an arrival that a peer's commit sends it",
        lambda bug: commits_to_a_peer(1 if bug else 2),
        "lifetime",
        ("before an arrival of tcgen05.commit", "a wait for that phase of mbarrier 1 of 2"),
        ("commit 1032",),
        ints(64),
        lambda a: torch.arange(64, dtype=torch.int32),
        **PAIR,
    ),
    PlantedBug(
        "pair_without_b",
        "neither CTA of a pair has written its rows of B",
        lambda bug: pair_mma(True, 0 if bug else 2),
        "uninitialised",
        ("tcgen05.mma reads shared memory that nothing has written",),
        ("mma",),
        ints(64),
        lambda a: torch.arange(64, dtype=torch.int32),
        **PAIR,
    ),
    PlantedBug(
        "pair_without_last_barrier",
        "the odd CTA of a pair exits while the pair's MMA may use its memory",
        lambda bug: pair_mma(not bug),
        "lifetime",
        ("before tcgen05.mma of another CTA has reached it",),
        ("mma",),
        ints(64),
        lambda a: torch.arange(64, dtype=torch.int32),
        **PAIR,
    ),
]
