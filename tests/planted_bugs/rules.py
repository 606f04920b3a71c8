"""Planted bugs of counting: arrivals, named barriers, registers; and of what is left behind."""

from __future__ import annotations

import torch

from tests.planted_bugs.case import PlantedBug, Source
from tests.planted_bugs.clusters import PAIR, cluster_start, cluster_sync, store_ranked
from tests.planted_bugs.cta import ints, load_bulk, start, store_own
from tests.planted_bugs.gemm import planted as gemm_bug
from tests.planted_bugs.grid import KEEP, SOURCE, tensormap


def relay(warps: int, count: int, elected: bool) -> Source:
    """Warps arrive on an mbarrier for which thread 0 waits."""
    k = start(32 * warps + 32)

    def init():
        k(f"mbarrier.init.shared::cta.b64 [%r1+1024], {count};", "init")

    k.only(0, init)
    k("bar.sync 0;")
    last = 32 * warps + 31

    def arrive():
        if elected:
            k("and.b32 %r6, %r0, 31;")
            k("setp.ne.u32 %p4, %r6, 0;")
            k("@%p4 bra GONE;")
        k("mbarrier.arrive.shared::cta.b64 _, [%r1+1024];", "arrive")
        if elected:
            k("GONE: mov.u32 %r6, 0;")

    k.only(32, arrive, last)
    k.only(0, lambda: k.wait("%r1+1024", 0, "wait"))
    store_own(k, "%r0")
    return k


def two_groups(bug: bool) -> Source:
    """Two warps meet at a named barrier, then four."""
    k = start(128)
    k.only(0, lambda: k(f"bar.sync {1 if bug else 2}, 64;", "first"), 63)
    k("bar.sync 1, 128;", "second")
    store_own(k, "%r0")
    return k


def too_few(bug: bool) -> Source:
    """Four warps meet at a barrier that counts two."""
    k = start(128)
    k(f"bar.sync 1, {64 if bug else 128};", "barrier")
    store_own(k, "%r0")
    return k


def registers(most: int, least: int | None) -> Source:
    """Two warpgroups of three take what the third gives, if it does; a thread starts with 168."""
    k = start(384)
    k.bounds = ".minnctapersm 1"
    k.only(0, lambda: k(f"setmaxnreg.inc.sync.aligned.u32 {most};", "inc"), 255)
    if least is not None:
        k.only(256, lambda: k(f"setmaxnreg.dec.sync.aligned.u32 {least};", "dec"), 383)
    store_own(k, "%r0")
    return k


def registers_late(bug: bool) -> Source:
    """A warpgroup gives registers to another; with the bug it waits for that one before it does."""
    k = start(256)
    k.bounds = ".maxnreg 128"
    k.only(0, lambda: k("mbarrier.init.shared::cta.b64 [%r1+1024], 128;"))
    k("bar.sync 0;")

    def take():
        k("setmaxnreg.inc.sync.aligned.u32 192;", "inc")
        k("mbarrier.arrive.shared::cta.b64 _, [%r1+1024];")

    def give():
        if bug:
            k.wait("%r1+1024", 0, "wait")
        k("setmaxnreg.dec.sync.aligned.u32 64;", "dec")

    k.only(0, take, 127)
    k.only(128, give, 255)
    store_own(k, "%r0")
    return k


def registers_of_a_part(bug: bool) -> Source:
    """A warpgroup gives registers back; with the bug one of its warps keeps its own."""
    k = start(256)
    k.bounds = ".maxnreg 128"
    k.only(128, lambda: k("setmaxnreg.dec.sync.aligned.u32 64;", "dec"), 223 if bug else 255)
    store_own(k, "%r0")
    return k


def written_again(bug: bool) -> Source:
    """A warp hands two numbers over through one place, in a loop; with the bug it writes the second
    over the first as soon as it has said that the first is there.
    """
    k = start(64)

    def init():
        k("mbarrier.init.shared::cta.b64 [%r1+1024], 32;")
        k("mbarrier.init.shared::cta.b64 [%r1+1032], 32;")

    k.only(0, init)
    k("bar.sync 0;")

    def write():
        k("mov.u32 %r10, 0;")
        k("TURN: add.u32 %r11, %r0, %r10;")
        k("st.shared.u32 [%r3], %r11;", "write")
        k(f"setp.lt.u32 %p7, %r10, {1 if bug else 2};")
        k("@%p7 mbarrier.arrive.shared::cta.b64 _, [%r1+1024];")
        if not bug:
            k.wait("%r1+1032", "%r10")
        k("add.u32 %r10, %r10, 1;")
        k("setp.lt.u32 %p5, %r10, 2;")
        k("@%p5 bra TURN;")

    def read():
        k("mov.u32 %r12, 0;")
        k("NEXT: mov.u32 %r13, 0;")
        k.wait("%r1+1024", "%r12")
        k("ld.shared.u32 %r14, [%r3+-128];", "read")
        k("add.u32 %r13, %r14, 31;")
        k("mbarrier.arrive.shared::cta.b64 _, [%r1+1032];")
        k("add.u32 %r12, %r12, 1;")
        k(f"setp.lt.u32 %p6, %r12, {1 if bug else 2};")
        k("@%p6 bra NEXT;")

    k.only(0, write, 31)
    k("mov.u32 %r13, %r0;")
    k.only(32, read, 63)
    store_own(k, "%r13")
    return k


def half_copied(bug: bool) -> Source:
    """Threads read 32 words of which a bulk copy has brought all, or half."""
    k = start(32, ".param .u64 src, .param .u64 out")
    k("st.shared.u32 [%r3+1024], %r0;")
    load_bulk(k, 64 if bug else 128, "load")
    k("ld.shared.u32 %r5, [%r3];", "read")
    store_own(k, "%r5", "%rd1")
    return k


def copied_out(bug: bool) -> Source:
    """A thread copies what two warps have written and waits for it; they write again."""
    k = start(64)
    k("st.shared.u32 [%r3], %r0;", "write")
    k("fence.proxy.async.shared::cta;")
    k("bar.sync 0;")

    def copy():
        k("cp.async.bulk.global.shared::cta.bulk_group [%rd0], [%r1], 256;", "copy")
        k("cp.async.bulk.commit_group;")
        k("cp.async.bulk.wait_group.read 0;", "wait group")

    k.only(32, copy)
    if not bug:
        k("bar.sync 0;")
    k("st.shared.u32 [%r3], 0;", "write again")
    return k


def slots(bug: bool) -> Source:
    """Each CTA writes the address of its tensor into a tensormap: of its own, or one for all."""
    k = start(32, ".param .u64 map, .param .u64 next, .param .u64 out")
    k("mov.u32 %r50, %ctaid.x;")
    k(f"mul.wide.u32 %rd4, %r50, {0 if bug else 128};")
    k("add.u64 %rd0, %rd0, %rd4;")

    def edit():
        k("tensormap.replace.tile.global_address.global.b1024.b64 [%rd0], %rd1;", "edit")

    k.only(0, edit)
    k("fence.proxy.tensormap::generic.acquire.gpu [%rd0], 128;")
    k("mad.lo.u32 %r53, %r50, 32, %r0;")
    k("mul.wide.u32 %rd8, %r53, 4;")
    k("add.u64 %rd9, %rd2, %rd8;")
    k("st.global.u32 [%rd9], %r53;")
    return k


def slots_args() -> list:
    raw = torch.zeros(512, dtype=torch.uint8)
    at = -raw.data_ptr() % 64
    for i in range(2):
        raw[at + 128 * i :][:128] = torch.frombuffer(bytearray(tensormap()), dtype=torch.uint8)
    out = torch.zeros(64, dtype=torch.int32)
    KEEP.append((raw, out))
    return [raw.data_ptr() + at, SOURCE, out]


def to_peer(bug: bool) -> Source:
    """Each CTA copies its numbers into the other's shared memory; the other waits for them."""
    k = cluster_start()

    def init():
        k("mbarrier.init.shared::cta.b64 [%r1+1024], 1;", "init")
        k("fence.mbarrier_init.release.cluster;")
        k("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1+1024], 128;")

    k("st.shared.u32 [%r3], %r53;", "write")
    k("fence.proxy.async.shared::cta;")
    k.only(0, init)
    cluster_sync(k)
    k("mapa.shared::cluster.u32 %r55, %r1, %r51;")

    def copy():
        k("add.u32 %r56, %r55, 512;")
        k("add.u32 %r57, %r55, 1024;")
        k(
            "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r56], [%r1], "
            "128, [%r57];",
            "copy",
        )

    k.only(0, copy)
    k.wait("%r1+1024", 0, "wait")
    k("ld.shared.u32 %r5, [%r3+512];", "read")
    store_ranked(k, "%r5")
    if not bug:
        cluster_sync(k)
    return k


def plain(name, title, build, kind, words, marks, threads, expected=None, **more) -> PlantedBug:
    def numbers(args):
        return torch.arange(threads, dtype=torch.int32)

    return PlantedBug(
        name, title, build, kind, words, marks, ints(threads), expected or numbers, **more
    )


def skipping(bug: bool) -> Source:
    """Four bulk loads of 128 bytes from a tensor of 512."""
    k = start(32, ".param .u64 src, .param .u64 out")

    def load():
        k("mbarrier.init.shared::cta.b64 [%r1+2048], 1;")
        k("fence.mbarrier_init.release.cluster;")
        k("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1+2048], 512;")
        for i in range(4):
            k(
                "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes "
                f"[%r1+{128 * i}], [%rd0+{128 * (i & ~1 if bug else i)}], 128, [%r1+2048];",
                "load",
            )

    k.only(0, load)
    k("bar.sync 0;")
    k.wait("%r1+2048", 0)
    k("ld.shared.u32 %r5, [%r3+384];")
    k("mul.wide.u32 %rd8, %r0, 4;")
    k("add.u64 %rd9, %rd1, %rd8;")
    k("st.global.u32 [%rd9], %r5;")
    return k


def refilled(fence: bool) -> Source:
    """A warp takes two bulk copies into one buffer, and adds up what it reads after each."""
    k = start(32, ".param .u64 src, .param .u64 out")
    k.only(0, lambda: k("mbarrier.init.shared::cta.b64 [%r1+2048], 1;"))
    k("fence.mbarrier_init.release.cluster;")
    k("mov.u32 %r6, 0;")
    for turn in range(2):

        def load(turn=turn):
            k("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1+2048], 128;")
            k(
                "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r1], "
                f"[%rd0+{128 * turn}], 128, [%r1+2048];",
                "load",
            )

        k.only(0, load)
        k.wait("%r1+2048", turn)
        k("ld.shared.u32 %r5, [%r3];", "read")
        k("add.u32 %r6, %r6, %r5;")
        if fence:
            k("fence.proxy.async.shared::cta;")
        k("bar.warp.sync -1;")
    k("mul.wide.u32 %rd8, %r0, 4;")
    k("add.u64 %rd9, %rd1, %rd8;")
    k("st.global.u32 [%rd9], %r6;")
    return k


def behind_the_end(right: int, wrong: int) -> Source:
    """A bulk load of a tensor of `right` bytes, or of `wrong` ones if it is not 0."""
    k = start(32, ".param .u64 src, .param .u64 out")
    load_bulk(k, wrong or right, "load")
    k("ld.shared.u32 %r5, [%r3];")
    store_own(k, "%r5", "%rd1")
    return k


def next_words(bug: bool) -> Source:
    """Each thread loads its word, or the one after it, of 32 words."""
    k = start(32, ".param .u64 src, .param .u64 out")
    k("mul.wide.u32 %rd8, %r0, 4;")
    k("add.u64 %rd9, %rd0, %rd8;")
    k(f"ld.global.u32 %r5, [%rd9+{4 * bug}];", "load")
    k("add.u64 %rd9, %rd1, %rd8;")
    k("st.global.u32 [%rd9], %r5;")
    return k


def numbered(n: int):
    """A source of n numbers and an output of 32."""
    return lambda: [torch.arange(n, dtype=torch.int32), torch.zeros(32, dtype=torch.int32)]


PLANTED = [
    plain(
        "all_lanes_relay",
        "a warp hands a signal on without elect.sync",
        lambda bug: relay(1, 1, not bug),
        "deadlock",
        ("32 lanes of one warp arrive on an mbarrier of count 1", "elect_one"),
        ("arrive", "init"),
        64,
    ),
    plain(
        "count_of_half_the_warps",
        "eight warps arrive on an mbarrier that counts four",
        lambda bug: relay(8, 4 if bug else 8, True),
        "deadlock",
        ("8 arrivals (8 warps, 1 lane of each) come to an mbarrier of count 4",),
        ("arrive", "init"),
        288,
    ),
    plain(
        "one_barrier_for_two_groups",
        "a named barrier serves two warps, then four, with nothing between",
        two_groups,
        "protocol",
        ("barrier 1 of the CTA is used again with nothing to order it after the previous use",),
        ("first", "second"),
        128,
    ),
    plain(
        "barrier_counts_too_few",
        "a named barrier counts half of the threads that meet there",
        too_few,
        "protocol",
        ("barrier 1 of the CTA counts 64 threads, but 96 or more use it at once",),
        ("barrier",),
        128,
    ),
    plain(
        "more_registers_than_there_are",
        "setmaxnreg asks for more registers than are given back",
        lambda bug: registers(240 if bug else 232, 40),
        "deadlock",
        ("each thread starts with 168", "warp 8 keeps 40", "wait in setmaxnreg.inc"),
        ("inc",),
        384,
    ),
    plain(
        "registers_never_given",
        "setmaxnreg.inc of two warpgroups, and no other gives any back",
        lambda bug: registers(232, None if bug else 40),
        "deadlock",
        (
            "8 warp(s) of CTA (0, 0, 0) wait in setmaxnreg.inc",
            "need 16,384 more",
            "given back by setmaxnreg.dec: nothing",
        ),
        ("inc",),
        384,
    ),
    plain(
        "registers_given_too_late",
        "a warpgroup gives registers back after a wait for the one that needs them",
        registers_late,
        "deadlock",
        ("wait in setmaxnreg.inc", "for 192 a thread", "each thread starts with 128"),
        ("inc", "wait"),
        256,
    ),
    plain(
        "registers_of_a_part_of_a_warpgroup",
        "three warps of a warpgroup execute setmaxnreg.dec",
        registers_of_a_part,
        "protocol",
        (
            "setmaxnreg 64 is executed by a part of a warpgroup only",
            "by warp(s) 4, 5, 6 of CTA (0, 0, 0)",
            "not by warp(s) 7 of the same warpgroup (warps 4 to 7)",
        ),
        ("dec",),
        256,
    ),
    plain(
        "written_again_in_a_loop",
        "a store in a loop writes over what the turn before has handed over",
        written_again,
        "race",
        ("st.shared", "ld.shared"),
        ("write", "read"),
        64,
    ),
    PlantedBug(
        "words_behind_a_copy",
        "threads read beyond what a bulk copy has brought",
        half_copied,
        "uninitialised",
        ("ld.shared reads shared memory that nothing has written", "64 bytes of it"),
        ("read",),
        numbered(32),
        lambda a: torch.arange(32, dtype=torch.int32),
    ),
    plain(
        "no_barrier_behind_wait_group",
        "only the warp that copied knows that the copy has read its source",
        copied_out,
        "race",
        ("missing: a barrier between cp.async.bulk.wait_group.read",),
        ("write again", "copy"),
        64,
    ),
    PlantedBug(
        "one_tensormap_for_all_ctas",
        "every CTA edits the same tensormap in global memory",
        slots,
        "tensormap",
        ("a tensormap is edited that another CTA edits", "a tensormap of its own for each CTA"),
        ("edit",),
        slots_args,
        lambda args: torch.arange(64, dtype=torch.int32),
        grid=(2, 1, 1),
    ),
    PlantedBug(
        "exit_before_copy_is_read",
        "a CTA exits while its copy to another CTA may still read its shared memory",
        to_peer,
        "lifetime",
        ("the CTA may exit while the bulk copy still reads its shared memory",),
        ("copy",),
        ints(64),
        lambda args: torch.arange(64, dtype=torch.int32).reshape(2, 32).flip(0).reshape(-1),
        **PAIR,
    ),
    gemm_bug(
        "instruction_narrower_than_tile",
        "N of the instruction descriptor is half of the tile's",
        "uninitialised",
        (
            "reads columns [16, 32) of tensor memory that nothing has written",
            "depends on it",
            "N of the",
        ),
        ("tmem load", "mma"),
        n=16,
    ),
    gemm_bug(
        "short_last_load",
        "the load of the last k-tile brings half of A: an earlier k-tile's is left",
        "product",
        ("reads what an earlier phase has left", "overwritten in part by"),
        ("mma", "load a"),
        tail=2048,
    ),
    PlantedBug(
        "refilled_by_its_reader",
        "a warp reads a buffer by loads and has a bulk copy fill it again, with no proxy fence",
        lambda bug: refilled(not bug),
        "proxy",
        ("proxy (portability)", "the bulk copy overwrites what the warp itself has read"),
        ("load", "read"),
        numbered(64),
        lambda args: torch.arange(32, dtype=torch.int32) * 2 + 32,
    ),
    PlantedBug(
        "bulk_load_behind_the_end",
        "a bulk copy reads 1 KB from a tensor of 128 bytes",
        lambda bug: behind_the_end(128, 1024 * bug),
        "global",
        ("a bulk copy reads after the end of", "faults where nothing is mapped"),
        ("load",),
        numbered(32),
        lambda args: torch.arange(32, dtype=torch.int32),
    ),
    PlantedBug(
        "bulk_load_into_the_rounding",
        "a bulk copy reads 256 bytes from a tensor of 240",
        lambda bug: behind_the_end(240, 256 * bug),
        "global",
        ("global (note)", "inside of what PyTorch rounds its allocation up to", "no result"),
        ("load",),
        numbered(60),
        lambda args: torch.arange(32, dtype=torch.int32),
    ),
    PlantedBug(
        "load_behind_the_end",
        "the last thread loads the word after a tensor of 32",
        next_words,
        "unwritten",
        ("unwritten: 4 bytes at", "are loaded after", "rounds its allocation up", "a result that"),
        ("load",),
        numbered(32),
        lambda args: torch.arange(32, dtype=torch.int32),
    ),
    PlantedBug(
        "bulk_load_not_advanced",
        "every other bulk copy reads what the one before has read",
        skipping,
        "coverage",
        ("bulk copies leave out parts of", "128 of 384 bytes, the first of them at 0x80"),
        (),
        numbered(128),
        lambda args: torch.arange(96, 128, dtype=torch.int32),
    ),
]
