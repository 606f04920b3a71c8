"""Planted bugs of one lane that speaks for its warp: its release hands over its own accesses."""

from __future__ import annotations

import torch

from tests.planted_bugs.case import PlantedBug, Source
from tests.planted_bugs.clusters import mbarriers
from tests.planted_bugs.cta import ints, start, store_own

FULL, EMPTY = 1024, 1032
FLAGGED = ".param .u64 mail, .param .u64 flag, .param .u64 out"
TOGETHER = "bar.warp.sync -1;"
ELECT = "elect.sync _|%p8, -1;"
VOTE = "vote.sync.all.pred %p8, %p7, -1;"
RELEASE, RELAXED = "st.release.gpu.global.u32 [%rd1], 1;", "st.relaxed.gpu.global.u32 [%rd1], 1;"
GPU_FENCE = "fence.acq_rel.gpu;"


def arrival(between: str, count: int = 1, every: str = "") -> Source:
    """Warp 0 stores a number a lane, and arrives; warp 1 reads them, backwards. between: before the
    arrival of `count` lanes. every: an arrival of all lanes on the other mbarrier, which they wait
    for.
    """
    k = start(64)
    mbarriers(k, count if not every else 1, FULL)
    mbarriers(k, 32, EMPTY)
    k("bar.sync 0;")
    k("setp.ge.u32 %p4, %r0, 32;")
    k(f"setp.lt.u32 %p7, %r0, {count};")
    k("@%p4 bra TAKE;")
    k("st.shared.u32 [%r3], %r0;", "write")
    if between:
        k(between)
    if every:
        k(every)
        k.wait(f"%r1+{EMPTY}", 0)
    k(f"@%p7 mbarrier.arrive.shared::cta.b64 _, [%r1+{FULL}];", "arrive")
    k("bra DONE;")
    k("TAKE: mov.u32 %r4, 63;")
    k.wait(f"%r1+{FULL}", 0)
    k("sub.u32 %r4, %r4, %r0;")
    k("shl.b32 %r4, %r4, 2;")
    k("add.u32 %r4, %r4, %r1;")
    k("ld.shared.u32 %r5, [%r4];", "read")
    store_own(k, "%r5")
    k("DONE: mov.u32 %r6, 0;")
    return k


def given_back(between: str) -> Source:
    """Warp 0 reads a number a lane, and one lane gives the buffer back; warp 1 fills it again."""
    k = start(64)
    mbarriers(k, 1, EMPTY)
    k("setp.ge.u32 %p4, %r0, 32;")
    k("setp.eq.u32 %p7, %r0, 0;")
    k("@!%p4 st.shared.u32 [%r3], %r0;")
    k("bar.sync 0;")
    k("@%p4 bra FILL;")
    k("ld.shared.u32 %r5, [%r3];", "read")
    if between:
        k(between)
    k(f"@%p7 mbarrier.arrive.shared::cta.b64 _, [%r1+{EMPTY}];", "arrive")
    store_own(k, "%r5")
    k("bra DONE;")
    k("FILL: mov.u32 %r4, 7;")
    k.wait(f"%r1+{EMPTY}", 0)
    k("st.shared.u32 [%r3+-128], %r4;", "write")
    k("DONE: mov.u32 %r6, 0;")
    return k


def one_waits(between: str, apart: bool = False) -> Source:
    """Warp 0 stores a number a lane, and arrives; lane 0 of warp 1 waits, and all of its lanes read
    them. apart: the others do so in a branch of their own.
    """
    k = start(64)
    mbarriers(k, 32, FULL)
    k("bar.sync 0;")
    k("setp.ge.u32 %p4, %r0, 32;")
    k("setp.eq.u32 %p7, %r0, 32;")
    k("@%p4 bra TAKE;")
    k("st.shared.u32 [%r3], %r0;", "write")
    k(f"mbarrier.arrive.shared::cta.b64 _, [%r1+{FULL}];")
    k("bra DONE;")
    k("TAKE: mov.u32 %r5, 0;")
    k("@!%p7 bra OTHERS;")
    k.wait(f"%r1+{FULL}", 0, "wait")
    if apart:
        k("bra DONE;")
    k("OTHERS: mov.u32 %r6, 0;")
    if between:
        k(between)
    k("ld.shared.u32 %r5, [%r3+-128];", "read")
    store_own(k, "%r5")
    k("DONE: mov.u32 %r6, 0;")
    return k


def one_polls(between: str) -> Source:
    """CTA 0 writes a number a lane to global memory, and sets a flag; lane 0 of CTA 1 polls that,
    and all of its lanes read them.
    """
    k = start(32, FLAGGED)
    k("mov.u32 %r50, %ctaid.x;")
    k("setp.ne.u32 %p7, %r0, 0;")
    k("mul.wide.u32 %rd8, %r0, 4;")
    k("add.u64 %rd9, %rd0, %rd8;")
    k("setp.ne.u32 %p4, %r50, 0;")
    k("@%p4 bra READER;")
    k("st.global.u32 [%rd9], %r0;", "write")
    k("bar.warp.sync -1;")
    k(f"@!%p7 {RELEASE}")
    k("bra DONE;")
    k("READER: mov.u32 %r21, 0;")
    k("@%p7 bra OTHERS;")
    k("AGAIN: ld.acquire.gpu.global.u32 %r20, [%rd1];", "wait")
    k("setp.eq.u32 %p8, %r20, 0;")
    k("@%p8 bra AGAIN;")
    k("OTHERS: mov.u32 %r6, 0;")
    if between:
        k(between)
    k("ld.global.u32 %r21, [%rd9];", "read")
    store_own(k, "%r21", "%rd2")
    k("DONE: mov.u32 %r6, 0;")
    return k


def one_fences(bug: bool) -> Source:
    """All lanes store, and lane 0 copies that out after fence.proxy.async: its own, before the
    lanes have met, or one of each lane.
    """
    k = start(32)
    k("setp.ne.u32 %p7, %r0, 0;")
    k("st.shared.u32 [%r3], %r0;", "write")
    k(f"{'@!%p7 ' if bug else ''}fence.proxy.async.shared::cta;")
    k("bar.warp.sync -1;")

    def copy():
        k("cp.async.bulk.global.shared::cta.bulk_group [%rd0], [%r1], 128;", "copy")
        k("cp.async.bulk.commit_group;")
        k("cp.async.bulk.wait_group 0;")

    k.only(0, copy)
    return k


def halves(of_global: bool, apart: int) -> Source:
    """Each half of a warp stores, meets at a bar.warp.sync of its own, and reads the number of the
    lane that is `apart` lanes away.
    """
    k = start(32, ".param .u64 mail, .param .u64 out")
    k("setp.lt.u32 %p1, %r0, 16;")
    k("selp.u32 %r7, 0xffff, 0xffff0000, %p1;")
    k(f"xor.b32 %r4, %r2, {4 * apart};")
    k("add.u32 %r8, %r4, %r1;")
    for register, offset in ((8, 2), (10, 4)):
        k(f"cvt.u64.u32 %rd{register}, %r{offset};")
        k(f"add.u64 %rd{register}, %rd{register}, %rd0;")
    mine, other = ("global.u32 [%rd8]", "global.u32 %r5, [%rd10]")
    if not of_global:
        mine, other = ("shared.u32 [%r3]", "shared.u32 %r5, [%r8]")
    k(f"st.{mine}, %r0;", "write")
    k("bar.warp.sync %r7;")
    k(f"ld.{other};", "read")
    store_own(k, "%r5", "%rd1")
    return k


def flag(between: str, signal: str, fence: str = "") -> Source:
    """CTA 0 writes a number a lane to global memory, and one lane sets a flag; CTA 1 reads them."""
    k = start(32, FLAGGED)
    k("mov.u32 %r50, %ctaid.x;")
    k("setp.eq.u32 %p7, %r0, 0;")
    k("mul.wide.u32 %rd8, %r0, 4;")
    k("add.u64 %rd9, %rd0, %rd8;")
    k("setp.ne.u32 %p4, %r50, 0;")
    k("@%p4 bra READER;")
    k("st.global.u32 [%rd9], %r0;", "write")
    for line in filter(None, (fence, between)):
        k(line)
    k(f"@%p7 {signal}", "signal")
    k("bra DONE;")
    k("READER: ld.acquire.gpu.global.u32 %r20, [%rd1];", "poll")
    k("setp.eq.u32 %p8, %r20, 0;")
    k("@%p8 bra READER;")
    k("bar.warp.sync -1;")
    k("ld.global.u32 %r21, [%rd9];", "read")
    store_own(k, "%r21", "%rd2")
    k("DONE: mov.u32 %r6, 0;")
    return k


def _mail():
    return [torch.zeros(n, dtype=torch.int32) for n in (32, 1, 32)]


NUMBERS = torch.arange(32, dtype=torch.int32)
OWN = "lane 0 releases its own accesses only"
OWN_WAIT = "of lane 0 acquires for its own lanes only"
AFTER = "missing: bar.warp.sync (__syncwarp) after the wait, or a wait by every lane"
REMARK = ("race (portability): ld.shared reads shared memory by lanes 1-31", OWN_WAIT, AFTER)
MISSING = "missing: bar.warp.sync (__syncwarp) between the"


def shared(name: str, title: str, words: tuple[str, ...], build) -> PlantedBug:
    marks = ("read", "write", "arrive")
    return PlantedBug(
        name,
        title,
        build,
        "race",
        words,
        marks,
        ints(64),
        lambda a: torch.cat([torch.zeros(32, dtype=torch.int32), NUMBERS.flip(0)]),
    )


def flagged(name: str, title: str, words: tuple[str, ...], build) -> PlantedBug:
    marks = ("read", "write", "signal")
    return PlantedBug(
        name, title, build, "global", words, marks, _mail, lambda a: NUMBERS, grid=(2, 1, 1)
    )


def committed(bug: bool) -> Source:
    """A lane copies shared memory to tensor memory, and the commit is another lane's."""
    k = start(32)
    k("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r1+2048], 32;")
    k.only(0, lambda: k("mbarrier.init.shared::cta.b64 [%r1+2056], 1;"))
    k("shl.b32 %r5, %r0, 4;")
    k("add.u32 %r5, %r5, %r1;")
    k("st.shared.v4.u32 [%r5], {%r0, %r0, %r0, %r0};")
    k("fence.proxy.async.shared::cta;")
    k("bar.warp.sync -1;")
    k("ld.shared.b32 %r4, [%r1+2048];")
    k("shr.u32 %r6, %r1, 4;")
    k("cvt.u64.u32 %rd2, %r6;")
    k(f"or.b64 %rd2, %rd2, {128 >> 4 << 32 | 1 << 46};")
    k.only(0, lambda: k("tcgen05.cp.cta_group::1.32x128b.warpx4 [%r4], %rd2;", "copy"))
    k("bar.warp.sync -1;")
    k("add.u32 %r7, %r1, 2056;")
    commit = "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r7];"
    k.only(int(bug), lambda: k(commit, "commit"))
    k.wait("%r1+2056", 0)
    k("tcgen05.fence::after_thread_sync;")
    k("tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r8}, [%r4];")
    k("tcgen05.wait::ld.sync.aligned;")
    k("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r4, 32;")
    store_own(k, "%r8")
    return k


PLANTED = [
    PlantedBug(
        "another_lane_commits",
        "a lane issues a copy to tensor memory, and another lane of its warp commits",
        committed,
        "protocol",
        (
            "protocol (portability)",
            "by a lane that has issued nothing for the tensor core",
            "by lane 1 of ",
            "were issued by lane 0",
        ),
        ("commit",),
        ints(32),
        lambda args: torch.arange(32, dtype=torch.int32),
    ),
    shared(
        "one_lane_arrives_for_all",
        "all lanes store, and one lane arrives without bar.warp.sync",
        ("reads shared memory that lanes 1-31 of another warp have written", OWN, MISSING),
        lambda bug: arrival("" if bug else TOGETHER),
    ),
    shared(
        "half_a_warp_arrives_for_all",
        "all lanes store, and half of them arrive (right: all lanes arrive)",
        ("lanes 16-31 of another warp have written", "the mbarrier.arrive of lanes 0-15 releases"),
        lambda bug: arrival("", 16 if bug else 32),
    ),
    shared(
        "elected_lane_arrives_for_all",
        "all lanes store, and one arrives after elect.sync, which orders no memory",
        ("race (portability)", OWN, "met at a .sync in between, which orders no memory"),
        lambda bug: arrival(ELECT if bug else TOGETHER + ELECT),
    ),
    shared(
        "one_lane_waits_for_none",
        "one lane arrives for all (right: all have arrived at another mbarrier, and waited for it)",
        ("lanes 1-31 of another warp have written", OWN, MISSING),
        lambda bug: arrival(
            "", every="" if bug else f"mbarrier.arrive.shared::cta.b64 _, [%r1+{EMPTY}];"
        ),
    ),
    PlantedBug(
        "one_lane_gives_back_for_all",
        "all lanes read a buffer, and one gives it back (right: after a vote, all have read)",
        lambda bug: given_back("" if bug else VOTE),
        "race",
        (
            "race (portability)",
            "writes shared memory that lanes 1-31 of another warp have read",
            OWN,
        ),
        ("read", "write", "arrive"),
        ints(64),
        lambda a: torch.cat([NUMBERS, torch.zeros(32, dtype=torch.int32)]),
    ),
    flagged(
        "one_lane_sets_the_flag_for_all",
        "all lanes write global memory, and one sets the flag without bar.warp.sync",
        ("reads global memory that lanes 1-31 of another warp have written", OWN, MISSING),
        lambda bug: flag("" if bug else TOGETHER, RELEASE),
    ),
    flagged(
        "every_lane_fences_and_one_signals",
        "each lane's fence stands before a relaxed flag of one lane, without bar.warp.sync",
        ("lanes 1-31 of another warp have written", OWN, MISSING),
        lambda bug: flag("" if bug else TOGETHER, RELAXED, GPU_FENCE),
    ),
    *(
        PlantedBug(
            name,
            title,
            build,
            "race",
            words,
            ("read", "write"),
            ints(64),
            lambda a: torch.cat([torch.zeros(32, dtype=torch.int32), NUMBERS]),
        )
        for name, title, words, build in (
            (
                "one_lane_waits_for_all",
                "one lane waits for an mbarrier, and all read (right: after bar.warp.sync)",
                REMARK,
                lambda bug: one_waits("" if bug else TOGETHER),
            ),
            (
                "one_lane_waits_and_all_vote",
                "one lane waits for an mbarrier, and all read after a vote, which orders no memory",
                REMARK,
                lambda bug: one_waits(VOTE if bug else TOGETHER),
            ),
            (
                "one_lane_waits_in_its_branch",
                "one lane waits for an mbarrier, and the others read in another branch",
                ("ld.shared reads shared memory before st.shared writes it",),
                lambda bug: one_waits("" if bug else TOGETHER, apart=bug),
            ),
        )
    ),
    PlantedBug(
        "one_lane_polls_for_all",
        "one lane polls a flag in global memory, and all read (right: after bar.warp.sync)",
        lambda bug: one_polls("" if bug else TOGETHER),
        "global",
        (
            "global (portability): global memory that another warp has written is read by lanes "
            "1-31, and the ld.acquire of lane 0 acquires for its own lanes only",
            AFTER,
        ),
        ("read", "write"),
        _mail,
        lambda a: NUMBERS,
        grid=(2, 1, 1),
    ),
    *(
        PlantedBug(
            f"halves_synchronise_apart_{name}",
            "each half of a warp has a bar.warp.sync of its own, and reads what the other one stored",
            lambda bug, where=where: halves(where, 16 if bug else 8),
            kind,
            (
                "another lane of the warp has just stored, without bar.warp.sync",
                "a bar.warp.sync in between does not name both lanes",
            ),
            ("read", "write"),
            lambda: [torch.zeros(32, dtype=torch.int32) for _ in range(2)],
            lambda a: NUMBERS.reshape(2, 2, 8).flip(1).reshape(-1),
        )
        for name, where, kind in (("shared", False, "race"), ("global", True, "global"))
    ),
    PlantedBug(
        "one_lane_fences_for_all",
        "all lanes store, and one makes that visible to the copy, before the lanes have met",
        one_fences,
        "proxy",
        ("wrote through the generic proxy, with no fence.proxy.async in between",),
        ("write", "copy"),
        ints(32),
        lambda a: NUMBERS,
    ),
]
