"""Planted bugs of waiting: for copies, before an exit, on barriers that others miss."""

from __future__ import annotations

import torch

from tests.planted_bugs.case import PlantedBug, Source
from tests.planted_bugs.clusters import cluster_start, cluster_sync, mbarriers, store_ranked
from tests.planted_bugs.cta import ints, start, store_own
from tests.planted_bugs.orders import THREADS as CHAIN
from tests.planted_bugs.orders import (
    numbers,
    overtaken,
    overtaken_in_the_peer,
)

THREADS = 64


def copy_in(expected: int | None = 256, wait: bool = True, ends: bool = False) -> Source:
    """Thread 0 copies 256 bytes into shared memory, the warps write them; ends: unread."""
    k = start(THREADS, ".param .u64 source, .param .u64 out")

    def load():
        k("mbarrier.init.shared::cta.b64 [%r1+1024], 1;", "init")
        k("fence.mbarrier_init.release.cluster;")
        if expected is not None:
            k(f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1+1024], {expected};", "expect")
        k(
            "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r1], [%rd0], 256, "
            "[%r1+1024];",
            "load",
        )

    k.only(0, load)
    k("bar.sync 0;")
    if wait:
        k.wait("%r1+1024", 0, "wait")
    k("mov.u32 %r5, 0;")
    if not ends:
        k("ld.shared.u32 %r5, [%r3];", "read")
    k("mul.wide.u32 %rd8, %r0, 4;")
    k("add.u64 %rd9, %rd1, %rd8;")
    k("st.global.u32 [%rd9], %r5;")
    return k


def copied(name: str, title: str, kind: str, words, marks, **options) -> PlantedBug:
    return PlantedBug(
        name,
        title,
        lambda bug: copy_in(**(options if bug else {})),
        kind,
        words,
        marks,
        lambda: [torch.arange(64, dtype=torch.int32), torch.zeros(64, dtype=torch.int32)],
        lambda a: a[0],
    )


def small_copies(wait: bool) -> Source:
    """Each thread copies its number with cp.async and reads it."""
    k = start(THREADS, ".param .u64 source, .param .u64 out")
    k("mul.wide.u32 %rd8, %r0, 4;")
    k("add.u64 %rd9, %rd0, %rd8;")
    k("cp.async.ca.shared.global [%r3], [%rd9], 4;", "copy")
    k("cp.async.commit_group;")
    if wait:
        k("cp.async.wait_group 0;")
    k("ld.shared.u32 %r5, [%r3];", "read")
    k("add.u64 %rd9, %rd1, %rd8;")
    k("st.global.u32 [%rd9], %r5;")
    return k


def one_word(bug: bool) -> Source:
    """Both warps leave a number in shared memory: in the same words with the bug."""
    k = start(THREADS)
    k("and.b32 %r4, %r2, 127;" if bug else "mov.u32 %r4, %r2;")
    k("add.u32 %r4, %r4, %r1;")
    k("st.shared.u32 [%r4], %r0;", "write")
    k("bar.sync 0;")
    k("ld.shared.u32 %r5, [%r4];")
    store_own(k, "%r5")
    return k


def one_value(bug: bool) -> Source:
    """Both warps leave the same numbers in the same words; with the bug, numbers of their own."""
    k = start(THREADS)
    k("and.b32 %r4, %r2, 127;")
    k("add.u32 %r4, %r4, %r1;")
    k("and.b32 %r6, %r0, 31;")
    k(f"st.shared.u32 [%r4], {'%r0' if bug else '%r6'};", "write")
    k("bar.sync 0;")
    k("ld.shared.u32 %r5, [%r4];")
    store_own(k, "%r5")
    return k


def named_barrier(threads: int, leaves: bool) -> Source:
    """Both warps meet at a named barrier; leaves: one has returned before."""
    k = start(THREADS)
    store_own(k, "%r0")
    if leaves:
        k("setp.ge.u32 %p4, %r0, 32;")
        k("@%p4 ret;")
    k(f"bar.sync 1, {threads};", "barrier")
    return k


def threads(args) -> torch.Tensor:
    return torch.arange(THREADS, dtype=torch.int32)


def ranks_disagree(bug: bool) -> Source:
    """Both CTAs expect 128 bytes, which CTA 0 loads for both; with the bug for itself alone."""
    k = cluster_start(32, ".param .u64 source, .param .u64 out")
    k("mov.u64 %rd7, %rd0;")
    k("mov.u64 %rd0, %rd1;")
    mbarriers(k, 1, 1024)
    cluster_sync(k)
    k("setp.eq.u32 %p4, %r50, 0;")
    k("mov.b16 %h1, 3;")
    load = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"

    def fetch():
        k("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1+1024], 128;", "expect")
        if bug:
            k(f"@%p4 {load} [%r1], [%rd7], 128, [%r1+1024];", "load")
        else:
            k(f"@%p4 {load}.multicast::cluster [%r1], [%rd7], 128, [%r1+1024], %h1;", "load")

    k.only(0, fetch)
    k.wait("%r1+1024", 0, "wait")
    k("ld.shared.u32 %r5, [%r3];")
    store_ranked(k, "%r5")
    cluster_sync(k)
    return k


PLANTED = [
    PlantedBug(
        "ranks_disagree",
        "a CTA expects bytes that the other one loads for itself only",
        ranks_disagree,
        "deadlock",
        ("CTA rank 0 has its own mbarrier there: brought 128 bytes", "not to rank 1"),
        ("expect", "load", "wait"),
        lambda: [torch.arange(32, dtype=torch.int32), torch.zeros(64, dtype=torch.int32)],
        lambda a: a[0].repeat(2),
        grid=(2, 1, 1),
        cluster=(2, 1, 1),
    ),
    copied(
        "copy_without_expect",
        "a bulk copy completes on an mbarrier without expect_tx",
        "deadlock",
        ("copies have brought 256 bytes that no expect_tx announced",),
        ("wait", "init"),
        expected=None,
    ),
    copied(
        "exit_before_copy_has_landed",
        "nobody waits for a bulk copy before the CTA exits",
        "lifetime",
        ("the CTA may exit while the bulk copy into its own memory is under way",),
        ("load",),
        wait=False,
        ends=True,
    ),
    copied(
        "copy_longer_than_announced",
        "expect_tx announces half of the copy, and nobody waits for it",
        "protocol",
        ("copies bring 128 bytes more to an mbarrier than expect_tx announced",),
        ("expect", "load"),
        expected=128,
        wait=False,
        ends=True,
    ),
    PlantedBug(
        "no_wait_for_cp_async",
        "cp.async.wait_group is missing",
        lambda bug: small_copies(not bug),
        "race",
        ("ld.shared reads shared memory before the cp.async has written it", "wait_group"),
        ("read", "copy"),
        lambda: [torch.arange(64, dtype=torch.int32), torch.zeros(64, dtype=torch.int32)],
        lambda a: a[0],
    ),
    PlantedBug(
        "two_warps_one_word",
        "two warps store to the same words",
        one_word,
        "race",
        ("st.shared writes shared memory that st.shared of another warp writes",),
        ("write",),
        ints(THREADS),
        threads,
    ),
    PlantedBug(
        "two_warps_two_values",
        "two warps store different values to the same words",
        one_value,
        "race",
        ("st.shared writes shared memory that st.shared of another warp writes",),
        ("write",),
        ints(THREADS),
        lambda args: torch.arange(THREADS, dtype=torch.int32) % 32,
    ),
    PlantedBug(
        "named_barrier_counts_too_many",
        "a named barrier waits for more threads than the CTA has",
        lambda bug: named_barrier(96 if bug else 64, False),
        "deadlock",
        ("its count is higher than the CTA's 64 threads",),
        ("barrier",),
        ints(THREADS),
        threads,
    ),
    PlantedBug(
        "warp_left_before_named_barrier",
        "a warp returns before a named barrier that counts it",
        lambda bug: named_barrier(64, bug),
        "deadlock",
        ("warps [1] have exited before it: they left early",),
        ("barrier",),
        ints(THREADS),
        threads,
    ),
    PlantedBug(
        "wait_overtaken",
        "nothing keeps the next phase from being over before a warp looks, which it never was here",
        overtaken,
        "protocol",
        ("a wait may be overtaken", "an arrival by each warp that waits"),
        ("wait", "second"),
        ints(CHAIN),
        numbers(CHAIN),
    ),
    PlantedBug(
        "wait_overtaken_by_the_leader",
        "two warps wait for a phase, and one of them completes the next as soon as it has",
        lambda bug: overtaken(bug, leads=True),
        "protocol",
        ("protocol (portability)", "by a warp that falls a phase behind another one that waits"),
        ("wait", "second"),
        ints(CHAIN),
        numbers(CHAIN),
    ),
    PlantedBug(
        "wait_overtaken_in_the_peer",
        "likewise, the barrier lies in another CTA of the cluster",
        overtaken_in_the_peer,
        "protocol",
        ("a wait may be overtaken", "CTA rank 0"),
        ("wait", "second"),
        ints(2 * CHAIN),
        numbers(2 * CHAIN),
        grid=(2, 1, 1),
        cluster=(2, 1, 1),
    ),
]
