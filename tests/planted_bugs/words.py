"""Planted bugs of waiting that are to be told in so many words: what was waited for, and what would do."""

from __future__ import annotations

import torch

from tests.planted_bugs.case import PlantedBug, Source
from tests.planted_bugs.cta import ints, start, store_own

THREADS = 64
FULL, EMPTY = 4096, 4112  # shared-memory offsets of mbarriers, two of each


def own_numbers(args) -> torch.Tensor:
    return torch.arange(THREADS, dtype=torch.int32)


def store_ring(bug: bool) -> Source:
    """A warp copies four tiles of 128 bytes out of two buffers, and fills each anew when the copy
    out of it has been read: with one group under way, or with two.
    """
    k = start(32)
    for tile in range(4):
        if tile >= 2:
            k(f"cp.async.bulk.wait_group.read {2 if bug else 1};", "wait")
            k("bar.warp.sync -1;")
        k(f"add.u32 %r5, %r0, {32 * tile};")
        k(f"st.shared.u32 [%r3+{128 * (tile % 2)}], %r5;", "fill")
        k("fence.proxy.async.shared::cta;")
        k("bar.warp.sync -1;")

        def copy(tile=tile):
            k(f"add.u32 %r6, %r1, {128 * (tile % 2)};")
            k(f"add.u64 %rd5, %rd0, {128 * tile};")
            k("cp.async.bulk.global.shared::cta.bulk_group [%rd5], [%r6], 128;", "copy")
            k("cp.async.bulk.commit_group;")

        k.only(0, copy)
    k.only(0, lambda: k("cp.async.bulk.wait_group 0;"))
    return k


def small_copies(bug: bool) -> Source:
    """Each thread copies two numbers in a group each and reads the first: with one group left under
    way, or with two.
    """
    k = start(32, ".param .u64 source, .param .u64 out")
    k("mul.wide.u32 %rd8, %r0, 4;")
    k("add.u64 %rd9, %rd0, %rd8;")
    for i in range(2):
        k(f"cp.async.ca.shared.global [%r3+{128 * i}], [%rd9+{128 * i}], 4;", f"copy {i}")
        k("cp.async.commit_group;")
    k(f"cp.async.wait_group {2 if bug else 1};", "wait")
    k("ld.shared.u32 %r5, [%r3];", "read")
    k("cp.async.wait_group 0;")
    k("add.u64 %rd9, %rd1, %rd8;")
    k("st.global.u32 [%rd9], %r5;")
    return k


def loads(k: Source, stage: int, offset: int, full: int):
    """The thread loads 128 bytes from `offset` on into a stage, on the full barrier at `full`."""
    k(f"add.u32 %r6, %r1, {128 * stage};")
    k(f"add.u32 %r7, %r1, {full};")
    k(f"add.u64 %rd5, %rd0, {offset};")
    k("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r7], 128;")
    k(
        "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r6], [%rd5], 128, [%r7];",
        "load",
    )


def pipeline_start() -> Source:
    """Two warps, full barriers of count 1 and empty ones of count 32."""
    k = start(THREADS, ".param .u64 source, .param .u64 out")

    def init():
        for i in range(2):
            k(f"mbarrier.init.shared::cta.b64 [%r1+{FULL + 8 * i}], 1;")
        for i in range(2):
            k(f"mbarrier.init.shared::cta.b64 [%r1+{EMPTY + 8 * i}], 32;")
        k("fence.mbarrier_init.release.cluster;")

    k.only(0, init)
    k("bar.sync 0;")
    return k


def store_sum(k: Source):
    """Warp 1: out[lane] = %r20"""
    k("mul.wide.u32 %rd8, %r0, 4;")
    k("add.u64 %rd9, %rd1, %rd8;")
    k("st.global.u32 [%rd9+-128], %r20;")


def look_once(bug: bool) -> Source:
    """Warp 1 reads what warp 0 loads, after a try_wait that it repeats, or does not."""
    k = pipeline_start()
    k.only(0, lambda: loads(k, 0, 0, FULL))

    def read():
        if bug:
            k(f"mbarrier.try_wait.parity.shared::cta.b64 %p6, [%r1+{FULL}], 0;", "look")
        else:
            k.wait(f"%r1+{FULL}", 0)
        k("ld.shared.u32 %r20, [%r3+-128];", "read")
        if bug:
            k.wait(f"%r1+{FULL}", 0)
        store_sum(k)

    k.only(32, read, 63)
    return k


def refilled(bug: bool) -> Source:
    """Warp 0 loads two tiles into one buffer, each on a full barrier of its own; before the second
    it waits until warp 1 has read the first, or does not.
    """
    k = pipeline_start()

    def fill():
        loads(k, 0, 0, FULL)
        if not bug:
            k.wait(f"%r1+{EMPTY}", 0)
        loads(k, 0, 128, FULL + 8)

    def read():
        k("mov.u32 %r20, 0;")
        for i in range(2):
            k.wait(f"%r1+{FULL + 8 * i}", 0)
            k("ld.shared.u32 %r21, [%r3+-128];")
            k("add.u32 %r20, %r20, %r21;")
            k(f"mbarrier.arrive.shared::cta.b64 _, [%r1+{EMPTY}];", "arrive")
        store_sum(k)

    k.only(0, fill)
    k.only(32, read, 63)
    return k


def one_parity_twice(bug: bool) -> Source:
    """Warp 1 reads three tiles out of one buffer; its phase flips after each, or only once."""
    k = pipeline_start()
    parities = (0, 1, 1) if bug else (0, 1, 0)

    def fill():
        for i in range(3):
            k.wait(f"%r1+{EMPTY}", 1 - i % 2)
            loads(k, 0, 128 * i, FULL)

    def read():
        k("mov.u32 %r20, 0;")
        k("mov.u32 %r22, 0;")
        k("AGAIN: setp.eq.u32 %p7, %r22, 1;")
        k(f"selp.b32 %r23, {parities[1]}, {parities[0]}, %p7;")
        k("setp.eq.u32 %p7, %r22, 2;")
        k(f"selp.b32 %r23, {parities[2]}, %r23, %p7;")
        k.wait(f"%r1+{FULL}", "%r23", "wait")  # type: ignore[arg-type]
        k("ld.shared.u32 %r21, [%r3+-128];", "read")
        k("add.u32 %r20, %r20, %r21;")
        k(f"mbarrier.arrive.shared::cta.b64 _, [%r1+{EMPTY}];")
        k("add.u32 %r22, %r22, 1;")
        k("setp.lt.u32 %p7, %r22, 3;")
        k("@%p7 bra AGAIN;")
        store_sum(k)

    k.only(0, fill)
    k.only(32, read, 63)
    return k


def reduction(bug: bool) -> Source:
    """Each warp leaves a number in shared memory, each thread reads both; no mbarrier is about."""
    k = start(THREADS)
    k("shr.u32 %r4, %r0, 5;")
    k("shl.b32 %r5, %r4, 2;")
    k("add.u32 %r5, %r5, %r1;")
    k("and.b32 %r6, %r0, 31;")
    k("setp.ne.u32 %p4, %r6, 0;")
    k("@%p4 bra STORED;")
    k("add.u32 %r7, %r4, 5;")
    k("st.shared.u32 [%r5], %r7;", "store")
    k("STORED: mov.u32 %r6, 0;")
    if not bug:
        k("bar.sync 0;")
    k("ld.shared.v2.u32 {%r8, %r9}, [%r1];", "read")
    k("mad.lo.u32 %r8, %r8, 6, %r9;")  # 5 * 6 + 6
    k("sub.u32 %r8, %r8, 36;")
    k("add.u32 %r8, %r8, %r0;")
    store_own(k, "%r8")
    return k


def three_tiles() -> list:
    return [torch.arange(96, dtype=torch.int32), torch.zeros(32, dtype=torch.int32)]


def tiles(n: int):
    """The sum of the first n tiles of 32 numbers."""
    return lambda args: args[0].reshape(3, 32)[:n].sum(0).int()


def copies_for_another_warp(bug: bool) -> Source:
    """Warp 0 copies two numbers a lane, waits for the first group and meets warp 1, which reads it;
    warp 0 waits for the second group after that.
    """
    k = start(64, ".param .u64 source, .param .u64 out")
    k("and.b32 %r4, %r0, 31;")
    k("mul.wide.u32 %rd8, %r4, 4;")
    k("add.u64 %rd9, %rd0, %rd8;")

    def copy():
        for i in range(2):
            k(f"cp.async.ca.shared.global [%r3+{128 * i}], [%rd9+{128 * i}], 4;", f"copy {i}")
            k("cp.async.commit_group;")
        k(f"cp.async.wait_group {2 if bug else 1};", "wait")

    def read():
        k("ld.shared.u32 %r5, [%r3+-128];", "read")
        k("add.u64 %rd9, %rd1, %rd8;")
        k("st.global.u32 [%rd9], %r5;")

    k.only(0, copy, 31)
    k("bar.sync 0;")
    k.only(0, lambda: k("cp.async.wait_group 0;"), 31)
    k.only(32, read, 63)
    return k


PLANTED = [
    PlantedBug(
        "copies_for_another_warp_wait_for_too_few",
        "wait_group leaves the group under way that another warp reads behind the barrier",
        copies_for_another_warp,
        "race",
        ("missing: cp.async.wait_group 1 in place of 2 at",),
        ("read", "copy 0", "wait"),
        three_tiles,
        tiles(1),
    ),
    PlantedBug(
        "store_ring_waits_for_too_few",
        "wait_group leaves two copies under way where the ring has two buffers",
        store_ring,
        "race",
        (
            "st.shared overwrites shared memory before the bulk store has read it",
            "missing: cp.async.bulk.wait_group.read 1 in place of 2 at",
        ),
        ("fill", "copy", "wait"),
        ints(128),
        lambda args: torch.arange(128, dtype=torch.int32),
    ),
    PlantedBug(
        "cp_async_waits_for_too_few",
        "wait_group leaves the group under way whose copy is read",
        small_copies,
        "race",
        ("missing: cp.async.wait_group 1 in place of 2 at",),
        ("read", "copy 0", "wait"),
        three_tiles,
        tiles(1),
    ),
    PlantedBug(
        "look_not_repeated",
        "a try_wait that failed is not repeated",
        look_once,
        "uninitialised",
        (
            "goes on though its mbarrier.try_wait.parity at",
            "for parity 0 of the mbarrier 0 of 4 in a row (offset 0x1400), has failed: ld.shared "
            "reads shared memory that nothing has written",
        ),
        ("look", "read"),
        three_tiles,
        tiles(1),
        schedule="late",
    ),
    PlantedBug(
        "refilled_before_it_was_read",
        "the load warp does not wait until the stage is free",
        refilled,
        "race",
        (
            "missing: a wait of load warp 0 of CTA (0, 0, 0) until the stage is free: for the "
            "mbarrier 2 of 4 in a row (offset 0x1410), on which warp 1 of CTA (0, 0, 0) arrives",
            "load warp 0 of CTA (0, 0, 0) has never waited there",
        ),
        ("load", "arrive"),
        three_tiles,
        tiles(2),
    ),
    PlantedBug(
        "one_parity_twice",
        "a consumer does not flip its phase after the second tile",
        one_parity_twice,
        "deadlock",
        (
            "cluster (1, 1, 1); warp 1 of CTA (0, 0, 0) has waited twice in a row for parity 1 of the "
            "mbarrier 0 of 4 in a row (offset 0x1400), at one_parity_twice.ptx:",
            "likely cause: warp 1 of CTA (0, 0, 0) has waited twice",
        ),
        ("wait",),
        three_tiles,
        tiles(3),
    ),
    PlantedBug(
        "no_syncthreads",
        "a barrier of the CTA is missing in a program without mbarriers",
        reduction,
        "race",
        ("missing: a barrier (__syncthreads(): bar.sync) between warp",),
        ("store", "read"),
        ints(THREADS),
        own_numbers,
    ),
]
