"""Planted bugs inside one CTA: shared memory, its copies, mbarriers."""

from __future__ import annotations

import torch

from tests.planted_bugs.case import PlantedBug, Source

OUT = ".param .u64 out"


def start(threads: int, params: str = OUT) -> Source:
    k = Source(params, threads)
    k("mov.u32 %r0, %tid.x;")
    k("mov.u32 %r1, dyn;")
    for i, name in enumerate(p.split()[-1] for p in params.split(",")):
        k(f"ld.param.u64 %rd{i}, [{name}];")
    k("shl.b32 %r2, %r0, 2;")
    k("add.u32 %r3, %r1, %r2;")
    return k


def ints(n: int):
    return lambda: [torch.zeros(n, dtype=torch.int32)]


def store_own(k: Source, register: str, out: str = "%rd0"):
    """out[thread] = register"""
    k("mul.wide.u32 %rd8, %r0, 4;")
    k(f"add.u64 %rd9, {out}, %rd8;")
    k(f"st.global.u32 [%rd9], {register};", "store")


def load_bulk(k: Source, nbytes: int, mark: str):
    """Thread 0 copies `nbytes` from %rd0 to the start of shared memory; all wait for them."""

    def load():
        k("mbarrier.init.shared::cta.b64 [%r1+2048], 1;")
        k("fence.mbarrier_init.release.cluster;")
        k(f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1+2048], {nbytes};")
        k(
            "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r1], [%rd0], "
            f"{nbytes}, [%r1+2048];",
            mark,
        )

    k.only(0, load)
    k("bar.sync 0;")
    k.wait("%r1+2048", 0)


def read_of_other_warp(k: Source, bug: bool) -> Source:
    """out[thread] = a word that a thread of the other one of two warps has just stored"""
    if not bug:
        k("bar.sync 0;")
    k("xor.b32 %r4, %r2, 128;")
    k("add.u32 %r4, %r4, %r1;")
    k("ld.shared.u32 %r5, [%r4];", "read")
    store_own(k, "%r5")
    return k


def no_barrier(bug: bool) -> Source:
    k = start(64)
    k("st.shared.u32 [%r3], %r0;", "write")
    return read_of_other_warp(k, bug)


def matrix_without_barrier(bug: bool) -> Source:
    """Each warp stores a matrix, at an address of 32 bits without a state space, and reads a word of
    the other's."""
    k = start(64)
    k("and.b32 %r4, %r0, 7;")
    k("shl.b32 %r4, %r4, 4;")
    k("shr.u32 %r5, %r0, 5;")
    k("shl.b32 %r5, %r5, 7;")
    k("add.u32 %r4, %r4, %r5;")
    k("add.u32 %r4, %r4, %r1;")
    k("stmatrix.sync.aligned.m8n8.x1.b16 [%r4], {%r0};", "write")
    return read_of_other_warp(k, bug)


def buffer_too_small(bug: bool) -> Source:
    """Four warps leave a partial sum each in front of an mbarrier; there is room for two."""
    k = start(128)
    barrier = 8 if bug else 16
    k.only(0, lambda: k(f"mbarrier.init.shared::cta.b64 [%r1+{barrier}], 1;", "init"))
    k("bar.sync 0;")
    k("shr.u32 %r4, %r0, 5;")
    k("shl.b32 %r5, %r4, 2;")
    k("add.u32 %r5, %r5, %r1;")
    k("and.b32 %r6, %r0, 31;")
    k("setp.eq.u32 %p4, %r6, 0;")
    k("@%p4 st.shared.u32 [%r5], %r4;", "write")
    k("bar.sync 0;")
    k("ld.shared.v4.u32 {%r10, %r11, %r12, %r13}, [%r1];")
    k("add.u32 %r10, %r10, %r11;")
    k("add.u32 %r10, %r10, %r12;")
    k("add.u32 %r10, %r10, %r13;")
    store_own(k, "%r10")
    return k


def partial_missing(bug: bool) -> Source:
    """Lane 0 of each warp leaves a partial; the reader takes one more than there are warps."""
    k = start(64)
    k("st.shared.u32 [%r3], %r0;", "write")
    k("bar.sync 0;")
    k(f"ld.shared.u32 %r5, [%r3+{4 if bug else 0}];", "read")
    store_own(k, "%r5")
    return k


def divergent_barrier(bug: bool) -> Source:
    """A loop whose trip count differs between the lanes of a warp has a barrier in its body."""
    k = start(64)
    k("mov.u32 %r4, 0;")
    k("and.b32 %r5, %r0, 3;" if bug else "shr.u32 %r5, %r0, 6;")
    k("LOOP: add.u32 %r4, %r4, 1;")
    k("bar.sync 0;", "barrier")
    k("setp.le.u32 %p4, %r4, %r5;")
    k("@%p4 bra LOOP;")
    k("mov.u32 %r4, %r0;")
    store_own(k, "%r4")
    return k


def own_elements(bug: bool) -> Source:
    """Each lane stores, reads and overwrites an element of its own, a byte; the bug's are words, and
    the lane's neighbour reads them.
    """
    k = start(32)
    k("add.u32 %r4, %r1, %r0;" if not bug else "mov.u32 %r4, %r3;")
    k("xor.b32 %r5, %r2, 4;")
    k("add.u32 %r5, %r5, %r1;" if bug else "mov.u32 %r5, %r4;")
    size = "u32" if bug else "u8"
    k(f"st.shared.{size} [%r4], %r0;", "write")
    k(f"ld.shared.{size} %r6, [%r5];", "read")
    k(f"st.shared.{size} [%r4], %r6;")
    store_own(k, "%r6" if not bug else "%r0")
    return k


def wrong_membermask(bug: bool) -> Source:
    """Each half of the warp exchanges its neighbours; the bug names the lower half in both."""
    k = start(32)
    k("mov.u32 %r5, 65535;")
    k("setp.lt.u32 %p4, %r0, 16;")
    k(f"selp.b32 %r6, %r5, {65535 if bug else 0xFFFF0000}, %p4;")
    k("shfl.sync.bfly.b32 %r7, %r0, 8, 4127, %r6;", "shuffle")
    store_own(k, "%r7")
    return k


def values_of_lanes_that_returned(bug: bool) -> Source:
    """Lanes from 24 on return, or bring a zero; each of the others adds its neighbour's number."""
    k = start(32)
    k("setp.ge.u32 %p4, %r0, 24;")
    k("mov.u32 %r5, %r0;")
    k("@%p4 bra END;" if bug else "selp.b32 %r5, 0, %r5, %p4;", "leave")
    k("shfl.sync.down.b32 %r6, %r5, 1, 31, -1;", "shuffle")
    if not bug:
        k("@%p4 bra END;")
    k("add.u32 %r6, %r6, %r0;")
    store_own(k, "%r6")
    k("END:")
    return k


def staged_store(
    fence=True, wait_read=True, wait_end=True, rounds: int = 2, barrier=True
) -> Source:
    """Each round: threads fill a buffer, one of them copies it to global memory."""
    k = start(64)
    for i in range(rounds):
        k(f"add.u32 %r5, %r0, {i};")
        k("st.shared.u32 [%r3], %r5;", "write")
        if fence:
            k("fence.proxy.async.shared::cta;")
        if barrier:
            k("bar.sync 0;")
        k.only(
            0,
            lambda i=i: _copy_out(k, i, wait_read and i + 1 < rounds, wait_end and i + 1 == rounds),
        )
        if i + 1 < rounds:
            k("bar.sync 0;")
    return k


def _copy_out(k: Source, i: int, wait_read: bool, wait_end: bool):
    k(f"add.u64 %rd5, %rd0, {256 * i};")
    k("cp.async.bulk.global.shared::cta.bulk_group [%rd5], [%r1], 256;", "copy")
    k("cp.async.bulk.commit_group;")
    if wait_read:
        k("cp.async.bulk.wait_group.read 0;")
    if wait_end:
        k("cp.async.bulk.wait_group 0;")


def _rounds(args):
    return torch.arange(64, dtype=torch.int32).repeat(2) + torch.arange(
        2, dtype=torch.int32
    ).repeat_interleave(64)


def loaded(name: str, title: str, kind: str, words, marks, **options) -> PlantedBug:
    """Planted bugs of a bulk load with one mbarrier."""
    changed = options

    def build(bug: bool) -> Source:
        return bulk_load(**(changed if bug else {}))

    def args():
        return [torch.arange(64, dtype=torch.int32), torch.zeros(64, dtype=torch.int32)]

    return PlantedBug(name, title, build, kind, words, marks, args, lambda a: a[0])


def bulk_load(
    init=True, again=False, arrivals=1, count=1, expected=256, sync=True, tail=0
) -> Source:
    k = start(64, ".param .u64 source, .param .u64 out")

    def prepare():
        if init:
            k(f"mbarrier.init.shared::cta.b64 [%r1+1024], {count};", "init")
        if again:
            k("mbarrier.init.shared::cta.b64 [%r1+1024], 1;", "init again")
        k("fence.mbarrier_init.release.cluster;")

    def load():
        k(f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1+1024], {expected};", "expect")
        for _ in range(arrivals - 1):
            k("mbarrier.arrive.shared::cta.b64 _, [%r1+1024];", "arrive")
        k(
            "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r1], [%rd0], 256, "
            "[%r1+1024];",
            "load",
        )

    k.only(0, prepare)
    if sync:
        k("bar.sync 0;")
    k.only(32, load)
    k.wait("%r1+1024", 0, "wait")
    k(f"ld.shared.u32 %r5, [%r3+{tail}];", "read")
    k("mul.wide.u32 %rd8, %r0, 4;")
    k("add.u64 %rd9, %rd1, %rd8;")
    k("st.global.u32 [%rd9], %r5;")
    return k


def shuffle(bug: bool) -> Source:
    """Each lane reads its neighbour's number."""
    k = start(32)
    k("st.shared.u32 [%r3], %r0;", "write")
    if not bug:
        k("bar.warp.sync -1;")
    k("xor.b32 %r4, %r2, 4;")
    k("add.u32 %r4, %r4, %r1;")
    k("ld.shared.u32 %r5, [%r4];", "read")
    store_own(k, "%r5")
    return k


def one_slot(bug: bool) -> Source:
    """Lane 0 (with the bug every lane) leaves its number in one slot for the warp."""
    k = start(32)
    k("setp.eq.u32 %p4, %r0, 0;")
    k("st.shared.u32 [%r1], %r0;" if bug else "@%p4 st.shared.u32 [%r1], %r0;", "write")
    k("bar.warp.sync -1;")
    k("ld.shared.u32 %r5, [%r1];")
    store_own(k, "%r5")
    return k


def staged(name, title, kind, words, marks, **options) -> PlantedBug:
    return PlantedBug(
        name,
        title,
        lambda bug: staged_store(**(options if bug else {})),
        kind,
        words,
        marks,
        ints(128),
        _rounds,
    )


def generic_for_shared(bug: bool) -> Source:
    """out[thread] = its number, by way of shared memory, whose address is made in 64 bits"""
    k = start(32)
    k("cvt.u64.u32 %rd20, %r3;")
    k("cvta.shared.u64 %rd21, %rd20;")
    k(f"st.shared.u32 [{'%rd21' if bug else '%rd20'}], %r0;", "write")
    k("ld.shared.u32 %r5, [%r3];")
    store_own(k, "%r5")
    return k


THREADS = torch.arange(64, dtype=torch.int32)
PLANTED = [
    PlantedBug(
        "generic_address_for_a_shared_one",
        "a store to .shared at a generic address, without cvta.to.shared",
        generic_for_shared,
        "protocol",
        ("protocol (portability)", "a generic address where PTX takes a shared one", "cvta.to"),
        ("write",),
        ints(32),
        lambda a: THREADS[:32],
    ),
    PlantedBug(
        "no_barrier",
        "one warp reads what another has just written, without bar.sync",
        no_barrier,
        "race",
        ("of another warp", "missing: a barrier"),
        ("write", "read"),
        ints(64),
        lambda a: THREADS ^ 32,
        schedule="early",
    ),
    PlantedBug(
        "matrix_without_barrier",
        "one warp reads what another has just stored by stmatrix, without bar.sync",
        matrix_without_barrier,
        "race",
        ("of another warp", "missing: a barrier"),
        ("write", "read"),
        ints(64),
        lambda a: THREADS ^ 32,
        schedule="early",
    ),
    PlantedBug(
        "no_warp_sync",
        "lanes exchange numbers through shared memory without bar.warp.sync",
        shuffle,
        "race",
        ("what another lane of the warp has just stored", "bar.warp.sync"),
        ("write", "read"),
        ints(32),
        lambda a: THREADS[:32] ^ 1,
    ),
    PlantedBug(
        "lanes_write_one_address",
        "all lanes of a warp store their number in one word",
        one_slot,
        "race",
        ("lanes of one st.shared write different values", "a guard that leaves one lane"),
        ("write",),
        ints(32),
        lambda a: torch.zeros(32, dtype=torch.int32),
    ),
    PlantedBug(
        "reduction_buffer_too_small",
        "room for two partial sums of four warps: the others hit an mbarrier",
        buffer_too_small,
        "protocol",
        ("st.shared writes over the mbarrier",),
        ("write",),
        ints(128),
        lambda a: torch.full((128,), 6, dtype=torch.int32),
    ),
    PlantedBug(
        "partial_missing",
        "the reader's index is one too high",
        partial_missing,
        "uninitialised",
        ("ld.shared reads shared memory that nothing has written",),
        ("read",),
        ints(64),
        lambda a: THREADS,
    ),
    PlantedBug(
        "neighbours_word_without_syncwarp",
        "a lane reads its neighbour's word with no bar.warp.sync (right: bytes of its own)",
        own_elements,
        "race",
        ("what another lane of the warp has just stored, without bar.warp.sync",),
        ("read", "write"),
        ints(32),
        lambda a: torch.arange(32, dtype=torch.int32),
    ),
    PlantedBug(
        "shuffle_outside_its_membermask",
        "the upper half of a warp shuffles with the lower half's membermask",
        wrong_membermask,
        "protocol",
        ("lanes 0xffff0000 execute it but are not in membermask 0x0000ffff",),
        ("shuffle",),
        ints(32),
        lambda a: torch.arange(32, dtype=torch.int32) ^ 8,
    ),
    PlantedBug(
        "values_of_lanes_that_returned",
        "a shuffle takes the value of a lane that has returned (right: it brings a zero)",
        values_of_lanes_that_returned,
        "uninitialised",
        ("a shuffle takes values of lane 24, which have returned at",),
        ("shuffle",),
        ints(32),
        lambda a: torch.tensor([2 * i + 1 for i in range(23)] + [23] + [0] * 8, dtype=torch.int32),
    ),
    PlantedBug(
        "barrier_in_divergent_loop",
        "bar.sync in a loop that lanes leave at different times",
        divergent_barrier,
        "fault",
        ("an aligned barrier is executed by a part of the warp",),
        ("barrier",),
        ints(64),
        lambda a: THREADS,
    ),
    staged(
        "store_without_proxy_fence",
        "a bulk store reads what generic stores wrote, without fence.proxy.async",
        "proxy",
        ("the bulk store reads what st.shared wrote", "fence.proxy.async.shared::cta"),
        ("copy", "write"),
        fence=False,
    ),
    staged(
        "buffer_reused_too_early",
        "the buffer is filled again while the bulk store may still read it",
        "race",
        ("writes shared memory before the bulk store has read it", "wait_group.read"),
        ("write", "copy"),
        wait_read=False,
    ),
    staged(
        "exit_before_store_is_done",
        "the warp exits without waiting for its bulk store",
        "lifetime",
        ("may still read shared memory", "wait_group.read"),
        ("copy",),
        wait_end=False,
    ),
    staged(
        "store_before_barrier",
        "the copying thread does not wait for the other warps' stores",
        "race",
        ("the bulk store",),
        ("copy", "write"),
        barrier=False,
    ),
    loaded(
        "mbarrier_never_initialised",
        "mbarrier.init is missing",
        "fault",
        ("no mbarrier is initialised at shared-memory offset",),
        (),
        init=False,
    ),
    loaded(
        "mbarrier_initialised_twice",
        "mbarrier.init twice, without mbarrier.inval",
        "protocol",
        ("initialised again without mbarrier.inval",),
        ("init", "init again"),
        again=True,
    ),
    loaded(
        "one_arrive_too_many",
        "two arrivals on a barrier that waits for one",
        "fault",
        ("there are more arrivals than its count",),
        ("arrive",),
        arrivals=2,
    ),
    loaded(
        "wait_before_initialisation",
        "no barrier between mbarrier.init and its users",
        "protocol",
        ("used before its initialisation is visible",),
        ("init",),
        sync=False,
    ),
    loaded(
        "read_past_the_copy",
        "the reader takes four bytes more than the copy brought",
        "uninitialised",
        ("shared memory that nothing has written",),
        ("read",),
        tail=4,
    ),
]
