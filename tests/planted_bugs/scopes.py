"""Planted bugs between the CTAs of a cluster: arrives that reach too short, a pair's tensor memory,
descriptors with the rank of a CTA.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from tests.planted_bugs.case import PlantedBug, Source
from tests.planted_bugs.clusters import (
    PAIR,
    cluster_start,
    cluster_sync,
    mbarriers,
    pair_alloc,
    pair_dealloc,
    pair_multiply,
    pair_operands,
    store_ranked,
)
from tests.planted_bugs.cta import OUT, ints

ARRIVE = "mbarrier.arrive.{}.b64 _, [%r55+{}];"
CTA_SCOPE, UNQUALIFIED = "release.cta.shared::cluster", "shared::cluster"
CLUSTER_SCOPE, RELAXED = "release.cluster.shared::cluster", "relaxed.cluster.shared::cluster"
NOTHING = ints(64)
FENCES = (
    "fence.acq_rel.cluster;",
    "fence.release.sync_restrict::shared::cta.cluster;",
)
SOURCE_AND_OUT = ".param .u64 src, .param .u64 out"
MASK = 0x3FFFF  # of the shared address that a descriptor holds


def ranked(args):
    return torch.arange(64, dtype=torch.int32)


def handover(arrive: str, copied: bool = False, fence: str = "", wait: str = "") -> Source:
    """CTA 1 fills its shared memory, with stores or with cp.async, and arrives in CTA 0, which reads
    it. fence: before the arrive. wait: semantics of the wait.
    """
    k = cluster_start(32, SOURCE_AND_OUT if copied else OUT)
    if copied:
        k("mul.wide.u32 %rd8, %r0, 4;")
        k("add.u64 %rd7, %rd0, %rd8;")
        k("mov.u64 %rd0, %rd1;")
    mbarriers(k, 32, 1024)
    cluster_sync(k)
    k("setp.eq.u32 %p4, %r50, 0;")
    k("@%p4 bra TAKE;")
    if copied:
        k("cp.async.ca.shared.global [%r3], [%rd7], 4;", "write")
        k("cp.async.wait_all;")
    else:
        k("st.shared.u32 [%r3], %r0;", "write")
    k("mapa.shared::cluster.u32 %r55, %r1, 0;")
    if fence:
        k(fence)
    k(ARRIVE.format(arrive, 1024), "arrive")
    k("bra DONE;")
    k("TAKE: mov.u32 %r6, 0;")
    again = k.label()
    sem = f"{wait}." if wait else ""
    k(f"{again}: mbarrier.try_wait.parity.{sem}shared::cta.b64 %p20, [%r1+1024], 0;", "wait")
    k(f"@!%p20 bra {again};")
    k("ld.shared::cluster.u32 %r7, [%r52];", "read")
    k("sub.u32 %r7, %r7, %r0;")
    k("add.u32 %r53, %r53, %r7;")
    k("DONE: mov.u32 %r6, 0;")
    store_ranked(k, "%r53")
    cluster_sync(k)
    return k


def given_back(arrive: str) -> Source:
    """A pair's MMA, whose result both CTAs load; then another one over it, once the odd CTA says by
    an arrive that it has loaded.
    """
    k = cluster_start()
    mbarriers(k, 1, 8200)
    mbarriers(k, 2, 8208)
    pair_operands(k)
    k("fence.proxy.async.shared::cta;")
    cluster_sync(k)
    pair_alloc(k)
    k("ld.shared.b32 %r4, [%r1+8192];")
    k("setp.ne.u32 %p4, %r50, 0;")
    k("@%p4 bra LOAD;")
    k.only(0, lambda: pair_multiply(k, 3))
    k("LOAD: mov.u32 %r6, 0;")
    k.wait("%r1+8200", 0)
    k("tcgen05.fence::after_thread_sync;")
    values = ", ".join(f"%r{100 + i}" for i in range(16))
    k(f"tcgen05.ld.sync.aligned.32x32b.x16.b32 {{{values}}}, [%r4];", "load")
    k("tcgen05.wait::ld.sync.aligned;")
    k("tcgen05.fence::before_thread_sync;")
    k("mapa.shared::cluster.u32 %r55, %r1, 0;")
    k.only(0, lambda: k(ARRIVE.format(arrive, 8208), "arrive"))
    k("@%p4 bra FREE;")
    k.wait("%r1+8208", 0)
    k("tcgen05.fence::after_thread_sync;")
    k.only(0, lambda: pair_multiply(k, 1))
    k.wait("%r1+8200", 1)
    k("FREE: mov.u32 %r6, 0;")
    k("tcgen05.fence::before_thread_sync;")
    cluster_sync(k)
    pair_dealloc(k)
    store_ranked(k, "%r53")
    return k


def allocated(before: bool, between: bool) -> Source:
    """A pair allocates tensor memory and frees it; cluster barriers before and between."""
    k = cluster_start()
    if before:
        cluster_sync(k, relaxed=True)
    pair_alloc(k)
    k("ld.shared.b32 %r4, [%r1+8192];")
    if between:
        cluster_sync(k, relaxed=True)
    pair_dealloc(k)
    store_ranked(k, "%r53")
    cluster_sync(k)
    return k


def descriptor(k: Source, to: int, at: int, bits: int, masked: bool, version: int = 1):
    """%rd`to`: the matrix descriptor of offset `at` of the CTA's shared memory."""
    k(f"add.u32 %r11, %r1, {at};")
    if masked:
        k(f"and.b32 %r11, %r11, {MASK};")
    k("shr.u32 %r11, %r11, 4;")
    k("cvt.u64.u32 %rd11, %r11;")
    k(f"or.b64 %rd{to}, %rd11, {bits | 1 << 16 | version << 46};")


def own_tensor_memory(k: Source, body):
    """Each CTA for itself: allocate, one thread issues what `body` writes and commits, wait."""
    k("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r1+16384], 32;")
    mbarriers(k, 1, 16392)
    k("fence.proxy.async.shared::cta;")
    k("bar.sync 0;")
    k("ld.shared.b32 %r4, [%r1+16384];")

    def issue():
        body()
        k("add.u32 %r12, %r1, 16392;")
        k("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r12];")

    k.only(0, issue)
    k.wait("%r1+16392", 0)


def copies_scales(masked: bool, reserved: int = 0, version: int = 1) -> Source:
    """Each CTA copies 32 rows of 16 bytes to tensor memory and loads a column."""
    k = cluster_start()
    k("shl.b32 %r6, %r0, 4;")
    k("add.u32 %r6, %r6, %r1;")
    k("st.shared.v4.u32 [%r6], {%r53, %r53, %r53, %r53};")

    def copy():
        descriptor(k, 20, 0, 128 >> 4 << 32 | reserved, masked, version)
        k("tcgen05.cp.cta_group::1.32x128b.warpx4 [%r4], %rd20;", "copy")

    own_tensor_memory(k, copy)
    k("tcgen05.fence::after_thread_sync;")
    values = "%r60, %r61, %r62, %r63"
    k(f"tcgen05.ld.sync.aligned.32x32b.x4.b32 {{{values}}}, [%r4];")
    k("tcgen05.wait::ld.sync.aligned;")
    k("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r4, 32;")
    store_ranked(k, "%r60")
    cluster_sync(k)
    return k


def multiplies(masked: bool) -> Source:
    """A CTA multiplies ones, M = 64, N = 8, with a 128-byte swizzle; only that of rank 1 does."""
    k = cluster_start()
    k("setp.eq.u32 %p4, %r50, 0;")
    k("@%p4 bra DONE;")
    k("shl.b32 %r6, %r0, 4;")
    k("add.u32 %r6, %r6, %r1;")
    k("mov.u32 %r7, 0x3c003c00;")
    for i in range(18):  # 72 rows of 128 bytes
        k(f"st.shared.v4.u32 [%r6+{512 * i}], {{%r7, %r7, %r7, %r7}};")

    def multiply():
        for to, at in ((20, 0), (22, 8192)):
            descriptor(k, to, at, 1024 >> 4 << 32 | 2 << 61, masked)
        k("setp.ne.u32 %p5, 0, 0;")
        instruction = 1 << 4 | 8 >> 3 << 17 | 64 >> 4 << 24
        k(f"tcgen05.mma.cta_group::1.kind::f16 [%r4], %rd20, %rd22, {instruction}, %p5;", "mma")

    own_tensor_memory(k, multiply)
    k("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r4, 32;")
    k("DONE: mov.u32 %r6, 0;")
    store_ranked(k, "%r53")
    cluster_sync(k)
    return k


def planted(
    name, title, build, kind, words, marks, args: Callable[[], list] = NOTHING
) -> PlantedBug:
    return PlantedBug(name, title, build, kind, words, marks, args, ranked, **PAIR)


def numbers():
    return [torch.arange(32, dtype=torch.int32), torch.zeros(64, dtype=torch.int32)]


def handed(name: str, title: str, words, bug: str, **options) -> PlantedBug:
    """Data of one CTA that another reads after an arrive."""
    good = options.pop("good", {"arrive": CLUSTER_SCOPE})

    def build(wrong: bool) -> Source:
        return handover(**{"arrive": bug, **options, **({} if wrong else good)})

    args = numbers if options.get("copied") else NOTHING
    return planted(name, title, build, "race", words, ("read", "write"), args)


PLANTED = [
    handed(
        "stores_released_to_the_cta_only",
        "a CTA stores, and arrives in the CTA that reads with .release.cta",
        ("its scope is the CTA (PTX's default), and another CTA waits", "of another warp writes"),
        CTA_SCOPE,
    ),
    handed(
        "copies_released_to_the_cta_only",
        "a CTA copies with cp.async, and arrives in the CTA that reads with .release.cta",
        ("its scope is the CTA (PTX's default), and another CTA waits", "cp.async of another warp"),
        CTA_SCOPE,
        copied=True,
    ),
    handed(
        "stores_behind_an_unqualified_arrive",
        "a CTA stores, and arrives in the CTA that reads without .release.cluster",
        ("missing: .release.cluster for the mbarrier.arrive",),
        UNQUALIFIED,
    ),
    handed(
        "stores_with_a_proxy_fence_only",
        "a CTA stores, fences the asynchronous proxy, and arrives with .release.cta in another CTA",
        ("race (portability)", "its scope is the CTA (PTX's default), and another CTA waits"),
        CTA_SCOPE,
        fence="fence.proxy.async.shared::cta;",
    ),
    handed(
        "stores_behind_a_relaxed_arrive",
        "a CTA stores, and arrives in the CTA that reads with .relaxed and no fence",
        ("which is relaxed and orders nothing",),
        RELAXED,
        good={"fence": FENCES[0]},
    ),
    handed(
        "stores_fenced_for_the_cta",
        "the fence in front of a relaxed arrive has CTA scope",
        ("which is relaxed and orders nothing",),
        RELAXED,
        fence="fence.acq_rel.cta;",
        good={"fence": FENCES[1]},
    ),
    handed(
        "stores_behind_a_relaxed_wait",
        "a CTA reads what another has stored after a wait that is relaxed",
        ("missing: .acquire on the wait",),
        CLUSTER_SCOPE,
        wait="relaxed.cluster",
        good={"wait": "acquire.cluster"},
    ),
    planted(
        "tensor_memory_released_to_the_cta_only",
        "the odd CTA of a pair gives tensor memory back with an arrive of CTA scope",
        lambda bug: given_back(CTA_SCOPE if bug else RELAXED),
        "race",
        ("race (note)", "uses tensor memory that an arrive of CTA scope hands to another CTA"),
        ("mma", "load", "arrive"),
    ),
    planted(
        "pair_allocates_before_its_peer_runs",
        "tcgen05.alloc of a pair with no cluster barrier before it",
        lambda bug: allocated(not bug, True),
        "protocol",
        ("allocated for a CTA pair before the peer CTA is known to run", ".relaxed will do"),
        ("alloc",),
    ),
    planted(
        "pair_frees_before_its_peer_allocates",
        "tcgen05.dealloc of a pair with no cluster barrier after the allocs",
        lambda bug: allocated(True, not bug),
        "lifetime",
        ("before the peer CTA is known to have allocated it",),
        ("dealloc",),
    ),
    planted(
        "rank_in_a_scale_descriptor",
        "the descriptor of a scale copy is made of a cluster address",
        lambda bug: copies_scales(not bug),
        "descriptor",
        ("the matrix descriptor of the source has the CTA's rank", "address & 0x3FFFF"),
        ("copy",),
    ),
    planted(
        "rank_in_a_swizzled_descriptor",
        "the descriptors of an MMA with a swizzle are made of cluster addresses",
        lambda bug: multiplies(not bug),
        "descriptor",
        ("descriptor (portability)", "the matrix descriptor of A", "PTX has no use for this field"),
        ("mma",),
    ),
    planted(
        "version_of_a_descriptor",
        "the descriptor of a scale copy has Hopper's version",
        lambda bug: copies_scales(True, version=0 if bug else 1),
        "descriptor",
        ("descriptor (portability)", "has version 0, where PTX has 1", "in bits 46 to 48"),
        ("copy",),
    ),
    planted(
        "reserved_bits_of_a_descriptor",
        "a matrix descriptor with a bit that must be 0",
        lambda bug: copies_scales(True, 1 << 53 if bug else 0),
        "fault",
        ("reserved bits 53-60 are 0x1, must be 0",),
        ("copy",),
    ),
]
