"""Planted bugs of order through global memory: flags, counters, their fences, scopes and proxies."""

from __future__ import annotations

import torch

from tests.planted_bugs.case import PlantedBug, Source
from tests.planted_bugs.cta import start

PARAMS = ".param .u64 mail, .param .u64 flag, .param .u64 out"
GPU_FENCE, CTA_FENCE, PROXY_FENCE = "fence.acq_rel.gpu;", "fence.acq_rel.cta;", "fence.proxy.async;"
NUMBERS = 32
BULK_STORE = (
    "fence.proxy.async.shared::cta;",
    "bar.warp.sync -1;",
    "@%p7 cp.async.bulk.global.shared::cta.bulk_group [%rd0], [%r1], 128;",
    "cp.async.bulk.commit_group;",
)


def opening() -> Source:
    """%r50: the CTA. %p7: lane 0. %rd9: the lane's number of the mail. %rd10: of the output."""
    k = start(32, PARAMS)
    k("mov.u32 %r50, %ctaid.x;")
    k("setp.eq.u32 %p7, %r0, 0;")
    k("mul.wide.u32 %rd8, %r0, 4;")
    k("add.u64 %rd9, %rd0, %rd8;")
    k("add.u64 %rd10, %rd2, %rd8;")
    return k


def mailed(
    signal: str = "st.release.gpu.global.u32 [%rd1], 1;",
    before: str = "",
    poll: str = "ld.acquire.gpu.global.u32 %r20, [%rd1];",
    behind: str = "",
    read: str = "ld.global.u32",
    copied: str = "",
    fetched: bool = False,
) -> Source:
    """CTA 0 writes numbers and signals, CTA 1 polls and reads them.

    before: a fence in front of the signal. after: one after the poll. copied: how the writer waits
    for its bulk copy, "" if it stores. fetched: the reader takes a bulk copy.
    """
    k = opening()
    k("setp.ne.u32 %p4, %r50, 0;")
    k("@%p4 bra READER;")
    if copied:
        k("st.shared.u32 [%r3], %r0;")
        for line in BULK_STORE:
            k(line, "write")
        k(copied)
    else:
        k("st.global.u32 [%rd9], %r0;", "write")
    if before:
        k(before)
    k("bar.warp.sync -1;")
    k(f"@%p7 {signal}", "signal")
    k("bra DONE;")
    k(f"READER: {poll}", "poll")
    k("setp.eq.u32 %p8, %r20, 0;")
    k("@%p8 bra READER;")
    if behind:
        k(behind)
    k("bar.warp.sync -1;")
    if fetched:
        fetch(k)
    else:
        k(f"{read} %r21, [%rd9];", "read")
    k("st.global.u32 [%rd10], %r21;")
    k("DONE: mov.u32 %r6, 0;")
    return k


def fetch(k: Source):
    """A bulk copy of the mail to shared memory; %r21: the lane's number."""

    def copy():
        k("mbarrier.init.shared::cta.b64 [%r1+1024], 1;")
        k("fence.mbarrier_init.release.cluster;")
        k("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1+1024], 128;")
        k(
            "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r1], [%rd0], 128, "
            "[%r1+1024];",
            "read",
        )

    k.only(0, copy)
    k("bar.warp.sync -1;")
    k.wait("%r1+1024", 0)
    k("ld.shared.u32 %r21, [%r3];")


def counted(atomic: str, before: str = "", behind: str = GPU_FENCE) -> Source:
    """Four CTAs write eight numbers each and count; the last one reads them all."""
    k = opening()
    k("setp.lt.u32 %p4, %r0, 8;")
    k("shl.b32 %r51, %r50, 3;")
    k("add.u32 %r52, %r51, %r0;")
    k("mul.wide.u32 %rd11, %r52, 4;")
    k("add.u64 %rd11, %rd11, %rd0;")
    k("@%p4 st.global.u32 [%rd11], %r52;", "write")
    if before:
        k(before)
    k("bar.warp.sync -1;")
    k(f"@%p7 {atomic}", "signal")
    k("shfl.sync.idx.b32 %r20, %r20, 0, 31, -1;")
    k("setp.ne.u32 %p8, %r20, 3;")
    k("@%p8 bra DONE;")
    if behind:
        k(behind)
    k("ld.global.u32 %r21, [%rd9];", "read")
    k("st.global.u32 [%rd10], %r21;")
    k("DONE: mov.u32 %r6, 0;")
    return k


def last_of(adds: bool, barrier: bool) -> Source:
    """Four CTAs of two warps sum up; thread 0 of each takes a ticket, and the last CTA reads all.

    adds: all threads of a column add to one sum, with atomics whose result nobody reads; else
    each stores a part of its own, which the last CTA adds. The last thread has nothing to add.
    barrier: of the CTA, before its ticket.
    """
    k = start(64, PARAMS)
    k("mov.u32 %r50, %ctaid.x;")
    k("and.b32 %r51, %r0, 31;")
    k("mul.wide.u32 %rd8, %r51, 4;")
    k("add.u64 %rd9, %rd0, %rd8;")
    k("add.u64 %rd10, %rd2, %rd8;")
    k("setp.lt.u32 %p4, %r0, 63;")
    if adds:
        k("@%p4 atom.global.add.u32 %r60, [%rd9], 1;", "write")
    else:
        k("mad.lo.u32 %r52, %r50, 64, %r0;")
        k("mul.wide.u32 %rd11, %r52, 4;")
        k("add.u64 %rd11, %rd11, %rd0;")
        k("@%p4 st.global.u32 [%rd11], 1;", "write")
    if barrier:
        k("bar.sync 0;")

    def ticket():
        k(GPU_FENCE)
        k("atom.global.add.u32 %r20, [%rd1], 1;", "signal")
        k("st.shared.u32 [%r1], %r20;")

    k.only(0, ticket)
    k("bar.sync 0;")
    k("ld.shared.u32 %r20, [%r1];")
    k("setp.ne.u32 %p8, %r20, 3;")
    k("@%p8 bra DONE;")
    k(GPU_FENCE)
    k("setp.gt.u32 %p9, %r0, 31;")
    k("@%p9 bra DONE;")
    if adds:
        k("ld.global.u32 %r21, [%rd9];", "read")
    else:
        k("mov.u32 %r21, 0;")
        for part in range(4 * 2):
            k(f"ld.global.u32 %r22, [%rd9+{128 * part}];", "read")
            k("add.u32 %r21, %r21, %r22;")
    k("st.global.u32 [%rd10], %r21;")
    k("DONE: mov.u32 %r6, 0;")
    return k


def fetched_by_its_writer(fence: str) -> Source:
    """A CTA writes numbers to global memory, and fetches them with a bulk copy."""
    k = opening()
    k("st.global.u32 [%rd9], %r0;", "write")
    if fence:
        k(fence)
    k("bar.warp.sync -1;")
    fetch(k)
    k("st.global.u32 [%rd10], %r21;")
    return k


def read_by_the_next_warp(barrier: bool) -> Source:
    """Two warps of a CTA write numbers to global memory and read the other's."""
    k = start(64, ".param .u64 mail, .param .u64 out")
    k("mul.wide.u32 %rd8, %r0, 4;")
    k("add.u64 %rd9, %rd0, %rd8;")
    k("st.global.u32 [%rd9], %r0;", "write")
    if barrier:
        k("bar.sync 0;")
    k("xor.b32 %r4, %r0, 32;")
    k("mul.wide.u32 %rd10, %r4, 4;")
    k("add.u64 %rd10, %rd10, %rd0;")
    k("ld.global.u32 %r21, [%rd10];", "read")
    k("add.u64 %rd10, %rd1, %rd8;")
    k("st.global.u32 [%rd10], %r21;")
    return k


def zeros(*sizes: int):
    return lambda: [torch.zeros(n, dtype=torch.int32) for n in sizes]


def flagged(name: str, title: str, words, bug: dict, good: dict, **more) -> PlantedBug:
    """bug, good: options of `mailed` with the bug and without it, over those of `more`."""
    kind = more.pop("kind", "global")
    marks, grid = more.pop("marks", ("read", "write")), (2, 1, 1)

    def build(wrong: bool) -> Source:
        return mailed(**{**more, **(bug if wrong else good)})

    return PlantedBug(name, title, build, kind, words, marks, ARGS, numbers, grid)


def counter(name: str, title: str, words, marks, bug: dict, good: dict) -> PlantedBug:
    return PlantedBug(
        name,
        title,
        lambda wrong: counted(**(bug if wrong else good)),
        "global",
        words,
        marks,
        ARGS,
        numbers,
        (4, 1, 1),
    )


def numbers(args):
    return torch.arange(NUMBERS, dtype=torch.int32)


def exchanged(args):
    return torch.arange(64, dtype=torch.int32).reshape(2, 32).flip(0).reshape(-1)


def sums(args):
    return torch.tensor([4 * 2] * (NUMBERS - 1) + [4], dtype=torch.int32)


ARGS = zeros(NUMBERS, 1, NUMBERS)
RELAXED = {"signal": "st.relaxed.gpu.global.u32 [%rd1], 1;"}
RELAXED_POLL = {"poll": "ld.relaxed.gpu.global.u32 %r20, [%rd1];"}
COUNT = "atom.global.add.u32 %r20, [%rd1], 1;"
COUNT_ACQ_REL = "atom.acq_rel.{}.global.add.u32 %r20, [%rd1], 1;"
SIGNAL = "the signal between the two does not order them"

PLANTED = [
    flagged(
        "flag_without_release",
        "a flag is set after the data with no fence between",
        (SIGNAL, "missing: fence.acq_rel.gpu (__threadfence) between the write and the st"),
        RELAXED,
        RELAXED | {"before": GPU_FENCE},
    ),
    flagged(
        "flag_behind_a_fence_of_the_cta",
        "the fence between the data and the flag is __threadfence_block",
        (SIGNAL, "in place of the fence of narrower scope"),
        RELAXED | {"before": CTA_FENCE},
        RELAXED | {"before": GPU_FENCE},
    ),
    flagged(
        "flag_without_acquire",
        "a flag is polled with relaxed loads, and no fence follows",
        (SIGNAL, "missing: fence.acq_rel.gpu (__threadfence) after the ld"),
        RELAXED_POLL,
        RELAXED_POLL | {"behind": GPU_FENCE},
    ),
    flagged(
        "flag_released_to_the_cluster",
        "a flag for another cluster is released at cluster scope",
        ("missing: .gpu for the st",),
        {"signal": "st.release.cluster.global.u32 [%rd1], 1;"},
        {},
    ),
    flagged(
        "flag_acquired_at_cta_scope",
        "a flag of another CTA is acquired at CTA scope",
        ("the scope of one does not reach the other CTA", "missing: .gpu for the ld"),
        {"poll": "ld.acquire.cta.global.u32 %r20, [%rd1];"},
        {"poll": "ld.acquire.sys.global.u32 %r20, [%rd1];"},
    ),
    flagged(
        "flag_polled_by_half",
        "a flag of four bytes is polled by loads of two",
        ("global (portability)", "16 and 32 bits meet", "missing: one width for the flag"),
        {"poll": "ld.acquire.gpu.global.u16 %r20, [%rd1];"},
        {},
        marks=("poll", "signal"),
    ),
    flagged(
        "flag_stored_weakly",
        "a flag is set with a plain store and polled with volatile loads",
        ("global (portability)", "missing: .relaxed or .release for the st"),
        {"signal": "st.global.u32 [%rd1], 1;"},
        {"signal": "st.volatile.global.u32 [%rd1], 1;"},
        marks=("poll", "signal"),
        before=GPU_FENCE,
        poll="ld.volatile.global.u32 %r20, [%rd1];",
        behind=GPU_FENCE,
    ),
    flagged(
        "volatile_reads_of_weak_writes",
        "data that is stored plainly is read with volatile loads, and the flag releases nothing",
        (SIGNAL, "missing: fence.acq_rel.gpu (__threadfence) between the write and the st"),
        {},
        {"before": GPU_FENCE},
        read="ld.volatile.global.u32",
        signal="st.volatile.global.u32 [%rd1], 1;",
    ),
    flagged(
        "flag_behind_wait_group_read",
        "a flag says that a bulk store is done, of which only the source has been waited for",
        (SIGNAL, "missing: cp.async.bulk.wait_group 0 (without .read"),
        {"copied": "cp.async.bulk.wait_group.read 0;"},
        {"copied": "cp.async.bulk.wait_group 0;"},
    ),
    flagged(
        "fetched_without_proxy_fence",
        "a bulk copy fetches what another CTA has stored, with no proxy fence after the flag",
        ("cp.async.bulk reads global memory that st.global wrote through the generic proxy",),
        {},
        {"behind": PROXY_FENCE},
        kind="proxy",
        fetched=True,
    ),
    flagged(
        "proxy_fence_before_the_poll",
        "the proxy fence of the reader stands in front of its poll",
        ("with no fence.proxy.async in between",),
        {"poll": f"{PROXY_FENCE} ld.acquire.gpu.global.u32 %r20, [%rd1];"},
        {"before": PROXY_FENCE},
        kind="proxy",
        fetched=True,
    ),
    counter(
        "relaxed_counter",
        "a counter of CTAs is relaxed, and no fence stands between it and the data",
        (SIGNAL, "between the write and the atom", "it is relaxed"),
        ("read", "write", "signal"),
        {"atomic": COUNT},
        {"atomic": COUNT, "before": GPU_FENCE},
    ),
    counter(
        "counter_without_acquire",
        "the last CTA reads after a relaxed counter with no fence",
        (SIGNAL, "missing: fence.acq_rel.gpu (__threadfence) after the atom"),
        ("read", "write", "signal"),
        {"atomic": COUNT, "before": GPU_FENCE, "behind": ""},
        {"atomic": COUNT_ACQ_REL.format("gpu"), "behind": "bar.warp.sync -1;"},
    ),
    counter(
        "counter_of_cta_scope",
        "a counter of CTAs has CTA scope",
        ("strong accesses of two CTAs meet", "missing: .gpu for the atom"),
        ("signal",),
        {"atomic": COUNT_ACQ_REL.format("cta")},
        {"atomic": COUNT_ACQ_REL.format("gpu")},
    ),
    *(
        PlantedBug(
            f"ticket_before_other_warps_{verb}",
            f"thread 0 fences and takes the CTA's ticket before its other warps {verb}",
            lambda bug, adds=verb == "add": last_of(adds, barrier=not bug),
            "global",
            ("missing: a barrier (__syncthreads) between the write and the atom.global",),
            ("read", "write", "signal"),
            zeros(NUMBERS * 4 * 2, 1, NUMBERS),
            sums,
            (4, 1, 1),
        )
        for verb in ("add", "store")
    ),
    PlantedBug(
        "fetched_by_its_writer_without_proxy_fence",
        "a warp stores to global memory and fetches it with a bulk copy, with no proxy fence",
        lambda bug: fetched_by_its_writer("" if bug else "fence.proxy.async.global;"),
        "proxy",
        ("with no fence.proxy.async in between",),
        ("read", "write"),
        ARGS,
        numbers,
    ),
    PlantedBug(
        "global_memory_of_the_next_warp",
        "a warp reads global memory that another one of its CTA has stored, with no barrier",
        lambda bug: read_by_the_next_warp(not bug),
        "global",
        ("read that another warp writes in the same launch, with nothing to order the two",),
        ("read", "write"),
        zeros(64, 64),
        exchanged,
    ),
]
