"""Planted bugs in the queue of the tensor core: collector buffers, the order of MMAs, lanes that an
MMA leaves out, columns that a CTA pair frees.
"""

from __future__ import annotations

import torch

from tests.planted_bugs.case import PlantedBug, Source
from tests.planted_bugs.clusters import (
    PAIR,
    cluster_start,
    cluster_sync,
    pair_alloc,
    pair_dealloc,
    store_ranked,
)
from tests.planted_bugs.cta import ints, start, store_own

BARRIER = 16384
# No swizzle: 128 bytes to the next 8 of K, 256 bytes to the next 8 rows
LAYOUT = 128 >> 4 << 16 | 256 >> 4 << 32 | 1 << 46


def multiply(k: Source, d: int, a="%rd20", mods="", lanes="", n=8, adds=False, mark="mma"):
    """D of columns `d` and the next `n` = A B. adds: to what is there."""
    k(f"add.u32 %r13, %r4, {d};")
    instruction = 1 << 4 | n >> 3 << 17 | 128 >> 4 << 24  # f16, f32 sums, M = 128
    operands = f"[%r13], {a}, %rd22, {instruction}, {lanes}{'!' if adds else ''}%p5"
    k(f"tcgen05.mma.cta_group::1.kind::f16{mods} {operands};", mark)


def commit(k: Source, number: int):
    """Commit to an mbarrier, the first, second ... of the kernel."""
    k(f"add.u32 %r12, %r1, {BARRIER + 8 * number};")
    k("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r12];")


def one_warp(body, lanes: int = 32) -> Source:
    """A warp fills A (two tiles of 128 rows, %rd20 and %rd21) and B (64 rows, %rd22) with ones; its
    first lane carries out `body`, and commits. The first `lanes` lanes store a column of D.
    """
    k = start(32)
    k("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r1+16448], 128;")
    k("shl.b32 %r6, %r0, 4;")
    k("add.u32 %r6, %r6, %r1;")
    k("mov.u32 %r7, 0x3c003c00;")
    for i in range(20):  # 320 rows of 32 bytes
        k(f"st.shared.v4.u32 [%r6+{512 * i}], {{%r7, %r7, %r7, %r7}};")
    for number in range(2):
        at = f"%r1+{BARRIER + 8 * number}"
        k.only(0, lambda at=at: k(f"mbarrier.init.shared::cta.b64 [{at}], 1;"))
    k("fence.mbarrier_init.release.cluster;")
    k("fence.proxy.async.shared::cta;")
    k("bar.sync 0;")
    k("ld.shared.b32 %r4, [%r1+16448];")
    for register, at in ((20, 0), (21, 4096), (22, 8192)):
        k(f"add.u32 %r11, %r1, {at};")
        k("shr.u32 %r11, %r11, 4;")
        k("cvt.u64.u32 %rd11, %r11;")
        k(f"or.b64 %rd{register}, %rd11, {LAYOUT};")
    k("setp.ne.u32 %p5, 0, 0;")

    def issue():
        body(k)
        commit(k, 0)

    k.only(0, issue)
    k.wait(f"%r1+{BARRIER}", 0)
    k("tcgen05.fence::after_thread_sync;")
    k("tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r5}, [%r4];", "load")
    k("tcgen05.wait::ld.sync.aligned;")
    k("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r4, 128;")
    k(f"setp.ge.u32 %p6, %r0, {lanes};")
    k("selp.b32 %r5, 0, %r5, %p6;")
    store_own(k, "%r5")
    return k


def collected(first: str, second: str, between=None, other: bool = False) -> Source:
    """Two MMAs with A; how each uses A's collector buffer. between: what comes between the two.
    other: the second has another A.
    """

    def body(k: Source):
        multiply(k, 0, mods=f".collector::a::{first}", mark="first")
        if between is not None:
            between(k)
        multiply(k, 8, "%rd21" if other else "%rd20", f".collector::a::{second}", mark="second")

    return one_warp(body)


def rewritten(k: Source):
    """A changes behind the end of the first MMA."""
    commit(k, 1)
    k.wait(f"%r1+{BARRIER + 8}", 0)
    k("st.shared.u32 [%r1], 0;")
    k("fence.proxy.async.shared::cta;")


def rewritten_beside(k: Source):
    """As rewritten, but of bytes that no MMA reads."""
    commit(k, 1)
    k.wait(f"%r1+{BARRIER + 8}", 0)
    k("st.shared.u32 [%r1+12288], 0;")
    k("fence.proxy.async.shared::cta;")


def rewritten_by_a_copy(k: Source):
    """As rewritten, by a bulk copy of 16 bytes."""
    commit(k, 1)
    k.wait(f"%r1+{BARRIER + 8}", 0)
    k(f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1+{BARRIER + 8}], 16;")
    k(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
        f"[%r1], [%rd0], 16, [%r1+{BARRIER + 8}];"
    )
    k.wait(f"%r1+{BARRIER + 8}", 1)


def collected_b(bug: bool) -> Source:
    """Two MMAs of .ws with one B, or with the bug with two, and a collector buffer of B."""

    def body(k: Source):
        instruction = 1 << 4 | 64 >> 3 << 17 | 128 >> 4 << 24
        for d, b, usage in ((0, 22, "fill"), (64, 21 if bug else 22, "use")):
            k(f"add.u32 %r13, %r4, {d};")
            k(
                f"tcgen05.mma.ws.cta_group::1.kind::f16.collector::b1::{usage} [%r13], %rd20, "
                f"%rd{b}, {instruction}, %p5;",
                usage,
            )

    return one_warp(body)


def in_queue(chained: bool, bug: bool) -> Source:
    """An MMA uses the sum of one before it: chained, as its A; else it adds to a part of it. The twin
    waits for the first.
    """

    def body(k: Source):
        multiply(k, 0, n=16, mark="first")
        if not bug:
            commit(k, 1)
            k.wait(f"%r1+{BARRIER + 8}", 0)
            k("tcgen05.fence::after_thread_sync;")
        if chained:
            multiply(k, 16, "[%r4]", mark="second")
        else:
            multiply(k, 0, "%rd21", adds=True, mark="second")

    return one_warp(body)


def left_out(bug: bool) -> Source:
    """An MMA leaves out lanes 16 to 31 of each quarter; the bug stores what they hold."""

    def body(k: Source):
        k("mov.u32 %r14, 0xffff0000;")
        multiply(k, 0, lanes="{%r14, %r14, %r14, %r14}, ")

    return one_warp(body, 32 if bug else 16)


def copied_lane(bug: bool) -> Source:
    """A tcgen05.cp of 4x256b fills a lane of each quarter; the bug stores the others, too."""
    return one_warp(
        lambda k: k("tcgen05.cp.cta_group::1.4x256b [%r4], %rd20;", "copy"), 32 if bug else 1
    )


def pair_frees(early: bool, bug: bool) -> Source:
    """Both CTAs of a pair use their columns and free them; the twin lets them meet before. early:
    they meet, but before rank 1 uses its columns.
    """
    k = cluster_start()
    cluster_sync(k, relaxed=True)
    pair_alloc(k)
    cluster_sync(k)
    k("ld.shared.b32 %r4, [%r1+8192];")
    k("setp.eq.u32 %p4, %r50, 0;")
    if bug and early:
        k("barrier.cluster.arrive;")
    if early:
        k("@%p4 bra USED;")
    k("tcgen05.st.sync.aligned.32x32b.x1.b32 [%r4], {%r53};")
    k("tcgen05.wait::st.sync.aligned;")
    k("tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r5}, [%r4];", "load")
    k("tcgen05.wait::ld.sync.aligned;")
    k("USED: mov.u32 %r6, 0;")
    if not bug:
        k("barrier.cluster.arrive;")
    if not bug or early:
        k("barrier.cluster.wait;")
    pair_dealloc(k)
    store_ranked(k, "%r53")
    cluster_sync(k)
    return k


def sums(args) -> torch.Tensor:
    """The bits of 16.0, the sum of 16 ones, in each lane."""
    return torch.full((32,), 0x41800000, dtype=torch.int32)


def sums_of_half(args) -> torch.Tensor:
    return torch.where(torch.arange(32) < 16, sums(args), 0)


def stores_behind_both(bug: bool) -> Source:
    """A pair allocates and frees; with the bug, both CTAs store behind that."""
    k = cluster_start()
    cluster_sync(k, relaxed=True)
    pair_alloc(k)
    cluster_sync(k)
    k("ld.shared.b32 %r4, [%r1+8192];")
    pair_dealloc(k)
    cluster_sync(k)
    if bug:
        k("tcgen05.st.sync.aligned.32x32b.x1.b32 [%r4], {%r53};", "late")
        k("tcgen05.wait::st.sync.aligned;")
    store_ranked(k, "%r53")
    return k


def planted(name, title, build, kind, words, marks, expected=sums) -> PlantedBug:
    return PlantedBug(name, title, build, kind, words, marks, ints(32), expected)


def of_pair(name: str, title: str, early: bool) -> PlantedBug:
    return PlantedBug(
        name,
        title,
        lambda bug: pair_frees(early, bug),
        "lifetime",
        ("(portability)", "of the peer CTA is known to have used it", "missing: barrier.cluster"),
        ("load", "dealloc"),
        ints(64),
        lambda args: torch.arange(64, dtype=torch.int32),
        **PAIR,
    )


ANOTHER = "tcgen05.mma may take A from a collector buffer that holds another A"
UNFILLED = "tcgen05.mma may take A from a collector buffer that no MMA before has filled"
PLANTED = [
    planted(
        "collector_of_another_operand",
        "an MMA takes A from a collector buffer that an MMA with another A has filled",
        lambda bug: collected("fill", "lastuse", other=bug),
        "product",
        (ANOTHER, "missing: .collector::a::fill"),
        ("first", "second"),
    ),
    planted(
        "collector_of_old_bytes",
        "A is written anew between the MMA that fills the collector buffer and the one that uses it",
        lambda bug: collected("fill", "use", rewritten if bug else rewritten_beside),
        "product",
        (ANOTHER, "::use\n  filled by: "),
        ("first", "second"),
    ),
    planted(
        "collector_of_bytes_before_a_copy",
        "a bulk copy writes A between the MMA that fills the collector buffer and one that uses it",
        lambda bug: collected("fill", "use", rewritten_by_a_copy if bug else None),
        "product",
        (ANOTHER,),
        ("first", "second"),
    ),
    planted(
        "collector_of_another_b",
        "an MMA of .ws takes B from a collector buffer that holds another B",
        collected_b,
        "product",
        ("may take B from a collector buffer that holds another B", ".collector::b1::use"),
        ("fill", "use"),
    ),
    planted(
        "collector_beneath_another_mma",
        "a collector buffer is used behind an MMA that names none, which discards it",
        lambda bug: collected("fill", "use", (lambda k: multiply(k, 16)) if bug else None),
        "product",
        ("product (portability)", UNFILLED),
        ("second",),
    ),
    planted(
        "collector_that_is_not_filled",
        "an MMA takes A from a collector buffer that the MMA before did not fill",
        lambda bug: collected("discard" if bug else "fill", "use"),
        "product",
        ("product (portability)", UNFILLED),
        ("second",),
    ),
    planted(
        "collector_that_was_discarded",
        "a collector buffer is used behind its last use",
        lambda bug: collected(
            "fill",
            "use",
            lambda k: multiply(k, 16, mods=f".collector::a::{'lastuse' if bug else 'use'}"),
        ),
        "product",
        ("product (portability)", UNFILLED),
        ("second",),
    ),
    planted(
        "sum_onto_a_part_of_a_sum",
        "an MMA adds to a part of the sum of the MMA before it, and waits for nothing",
        lambda bug: in_queue(False, bug),
        "race",
        ("race (portability)", "before it in the queue, with another accumulator or shape"),
        ("first", "second"),
        lambda args: torch.full((32,), 0x42000000, dtype=torch.int32),
    ),
    planted(
        "sum_as_an_operand",
        "an MMA reads as A what the MMA before it writes, and waits for nothing",
        lambda bug: in_queue(True, bug),
        "race",
        ("race (portability)", "before it in the queue, with another accumulator or shape"),
        ("first", "second"),
    ),
    planted(
        "lanes_that_an_mma_leaves_out",
        "lanes of an accumulator are stored that the MMA leaves out",
        left_out,
        "uninitialised",
        ("reads lanes 16-31 of tensor memory that nothing has written",),
        ("load", "mma"),
        sums_of_half,
    ),
    planted(
        "lanes_that_a_copy_leaves_out",
        "lanes are stored that a tcgen05.cp of 4x256b, which writes one of each quarter, leaves out",
        copied_lane,
        "uninitialised",
        ("reads lanes 1-31 of tensor memory that nothing has written",),
        ("load", "copy"),
        lambda args: torch.tensor([0x3C003C00] + [0] * 31, dtype=torch.int32),
    ),
    of_pair(
        "pair_frees_before_its_peer_loads", "a CTA of a pair frees before the other loads", False
    ),
    of_pair(
        "pair_frees_beside_its_peer", "a CTA of a pair frees, and has not heard of a load", True
    ),
]
