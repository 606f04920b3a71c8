"""Planted bugs of what counts into a phase, or into memory, that is not meant: bytes announced
beside the last arrival, arrivals behind copies, sums onto what nobody has written.
"""

from __future__ import annotations

import torch

from tests.planted_bugs.case import PlantedBug, Source
from tests.planted_bugs.clusters import PAIR, cluster_start, cluster_sync, store_ranked
from tests.planted_bugs.cta import ints, start, store_own

BARRIER = 1024
DATA = ".param .u64 source, .param .u64 out"
COPY = (
    "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r1], [%rd0], 256, "
    f"[%r1+{BARRIER}];"
)


def initialise(k: Source, count: int) -> None:
    k.only(0, lambda: k(f"mbarrier.init.shared::cta.b64 [%r1+{BARRIER}], {count};", "init"))
    k("fence.mbarrier_init.release.cluster;")
    k("bar.sync 0;")


def announced_beside(bug: bool) -> Source:
    """Thread 32 announces the bytes that it copies, thread 0 makes the phase's only arrival: before
    or after that, or behind a barrier.
    """
    k = start(64, DATA)
    k.only(0, lambda: k(f"mbarrier.init.shared::cta.b64 [%r1+{BARRIER}], 1;"))
    k("fence.mbarrier_init.release.cluster;")
    k("bar.sync 0;")

    def announce():
        k(f"mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r1+{BARRIER}], 256;", "expect")
        k(COPY)

    k.only(32, announce)
    if not bug:
        k("bar.sync 0;")
    k.only(0, lambda: k(f"mbarrier.arrive.shared::cta.b64 _, [%r1+{BARRIER}];", "arrive"))
    k.wait(f"%r1+{BARRIER}", 0)
    k("ld.shared.u32 %r5, [%r3];")
    store_own(k, "%r5", "%rd1")
    return k


def behind_copies(bug: bool) -> Source:
    """Each thread copies a word, and arrives once it is there; the mbarrier counts one warp, or
    both.
    """
    k = start(64, DATA)
    initialise(k, 32 if bug else 64)
    k("mul.wide.u32 %rd8, %r0, 4;")
    k("add.u64 %rd9, %rd0, %rd8;")
    k("cp.async.ca.shared.global [%r3], [%rd9], 4;", "copy")
    k(f"cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%r1+{BARRIER}];", "arrive")
    k.wait(f"%r1+{BARRIER}", 0)
    k("xor.b32 %r4, %r2, 128;")
    k("add.u32 %r4, %r4, %r1;")
    k("ld.shared.u32 %r5, [%r4];", "read")
    store_own(k, "%r5", "%rd1")
    return k


def summed(bug: bool) -> Source:
    """Two warps count in one word of shared memory, which the bug has not set to zero."""
    k = start(64)
    if not bug:
        k.only(0, lambda: k("st.shared.u32 [%r1], 0;"))
        k("bar.sync 0;")
    k("red.shared.add.u32 [%r1], 1;", "sum")
    k("bar.sync 0;")
    k("ld.shared.u32 %r5, [%r1];")
    store_own(k, "%r5")
    return k


def reduced(how: str, bug: bool) -> Source:
    """Each CTA of a pair adds its numbers to words of the other one, which the bug has not set to
    zero. how: "red.async", or "bulk".
    """
    k = cluster_start(32)
    if not bug:
        k("st.shared.u32 [%r3], 0;")
    k("st.shared.u32 [%r3+2048], %r0;")
    k("fence.proxy.async.shared::cta;")

    def init():
        k(f"mbarrier.init.shared::cta.b64 [%r1+{BARRIER}], 1;")
        k("fence.mbarrier_init.release.cluster;")
        k(f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1+{BARRIER}], 128;")

    k.only(0, init)
    cluster_sync(k)
    k(f"add.u32 %r22, %r1, {BARRIER};")
    k("mapa.shared::cluster.u32 %r22, %r22, %r51;")
    if how == "bulk":
        add = (
            "cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.add.u32 "
            "[%r52], [%r23], 128, [%r22];"
        )
        k("add.u32 %r23, %r1, 2048;")
        k.only(0, lambda: k(add, "sum"))
    else:
        k(
            "red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32 "
            "[%r52], %r0, [%r22];",
            "sum",
        )
    k.wait(f"%r1+{BARRIER}", 0)
    k("ld.shared.u32 %r5, [%r3];")
    store_ranked(k, "%r5")
    cluster_sync(k)
    return k


ALL_DONE = "cp.async.bulk.wait_group 0;"


def summed_beside(how: str, bug: bool) -> Source:
    """CTA 1 adds to words of CTA 0 twice, each time with an mbarrier of its own, by red.async or, with
    "bulk", by bulk reductions. how: the bug reads behind one of the two only ("one", "bulk"); or
    CTA 0 adds, too, with an atomic, in the bug with a plain store ("plain"); or it does, and in the
    bug waits for neither ("neither"). "stored": as "bulk", and the sums are stored by a bulk copy.
    """
    k = cluster_start(32)
    k("st.shared.u32 [%r3], 0;")
    k("st.shared.u32 [%r3+3072], 1;")
    k("fence.proxy.async.shared::cta;")

    def init():
        for at in (BARRIER, BARRIER + 8):
            k(f"mbarrier.init.shared::cta.b64 [%r1+{at}], 1;")
            k(f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1+{at}], 128;")
        k("fence.mbarrier_init.release.cluster;")

    k.only(0, init)
    cluster_sync(k)
    k("setp.eq.u32 %p4, %r50, 0;")
    k("@%p4 bra TAKE;")
    for at in (BARRIER, BARRIER + 8):
        k(f"add.u32 %r22, %r1, {at};")
        k("mapa.shared::cluster.u32 %r22, %r22, 0;")
        if how in ("bulk", "stored"):
            k("add.u32 %r23, %r1, 3072;")
            add = (
                "cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes"
                ".add.u32 [%r52], [%r23], 128, [%r22];"
            )
            k.only(0, lambda add=add: k(add, "sum"))
            continue
        k(
            "red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32 "
            "[%r52], 1, [%r22];",
            "sum",
        )
    k("bra DONE;")
    k("TAKE: mov.u32 %r6, 0;")
    if how == "plain" and bug:
        k("ld.shared.u32 %r5, [%r3];")
        k("add.u32 %r5, %r5, 1;")
        k("st.shared.u32 [%r3], %r5;", "own")
    elif how in ("plain", "neither"):
        k("atom.shared.add.u32 %r5, [%r3], 1;", "own")
    if how not in ("bulk", "stored", "neither") or not bug:
        k.wait(f"%r1+{BARRIER}", 0)
    if how not in ("one", "neither") or not bug:
        k.wait(f"%r1+{BARRIER + 8}", 0)
    if how == "stored":
        out = "cp.async.bulk.global.shared::cta.bulk_group [%rd0], [%r1], 128;"
        k.only(0, lambda: k(f"{out} cp.async.bulk.commit_group; {ALL_DONE}", "own"))
    k("ld.shared.u32 %r5, [%r3];", "own")
    k("DONE: bar.warp.sync -1;")
    store_ranked(k, "%r53")
    cluster_sync(k)
    return k


def numbers() -> list[torch.Tensor]:
    return [torch.arange(64, dtype=torch.int32), torch.zeros(64, dtype=torch.int32)]


def swapped(args) -> torch.Tensor:
    return torch.arange(64, dtype=torch.int32).roll(32)


def ranked(args) -> torch.Tensor:
    return torch.arange(32, dtype=torch.int32).repeat(2)


def ranked_twice(args) -> torch.Tensor:
    return torch.arange(64, dtype=torch.int32)


UNWRITTEN = "reads shared memory that nothing has written"
PLANTED = [
    PlantedBug(
        "expect_tx_beside_the_arrival",
        "bytes are announced with nothing to order that before the phase's last arrival",
        announced_beside,
        "protocol",
        (
            "an expect_tx may come after the last arrival of the phase that it is meant for",
            "missing: arrive.expect_tx in one instruction",
        ),
        ("expect", "arrive"),
        numbers,
        lambda args: args[0],
    ),
    PlantedBug(
        "arrivals_behind_copies",
        "an mbarrier counts the arrivals of one warp, and two arrive behind their copies",
        behind_copies,
        "race",
        ("reads shared memory that the cp.async of another warp writes",),
        ("copy", "read"),
        numbers,
        swapped,
        schedule="late",
    ),
    PlantedBug(
        "sum_onto_nothing",
        "a counter in shared memory is not set to zero",
        summed,
        "uninitialised",
        (f"red.shared {UNWRITTEN}",),
        ("sum",),
        ints(64),
        lambda args: torch.full((64,), 64, dtype=torch.int32),
    ),
    *(
        PlantedBug(
            f"reduced_onto_nothing_{name}",
            f"the other CTA's words that a {how} adds to are not set to zero",
            lambda bug, how=how: reduced(how, bug),
            "uninitialised",
            (UNWRITTEN,),
            ("sum",),
            ints(64),
            ranked,
            **PAIR,
        )
        for name, how in (("async", "red.async"), ("bulk", "bulk"))
    ),
    PlantedBug(
        "sums_behind_one_of_two_barriers",
        "a word is read behind one of the two mbarriers of the red.async that add to it",
        lambda bug: summed_beside("one", bug),
        "race",
        ("ld.shared reads shared memory before the red.async into it has landed",),
        ("sum", "own"),
        ints(64),
        ranked_twice,
        **PAIR,
    ),
    PlantedBug(
        "bulk_sums_behind_one_of_two_barriers",
        "words are read behind one of the two mbarriers of the bulk reductions that add to them",
        lambda bug: summed_beside("bulk", bug),
        "race",
        ("ld.shared reads shared memory before the bulk reduction into it has landed",),
        ("sum", "own"),
        ints(64),
        ranked_twice,
        **PAIR,
    ),
    PlantedBug(
        "bulk_sums_stored_behind_one_of_two",
        "a bulk copy stores words behind one of the two mbarriers of the reductions to them",
        lambda bug: summed_beside("stored", bug),
        "race",
        ("the bulk store reads shared memory before the bulk reduction into it has landed",),
        ("sum", "own"),
        ints(64),
        ranked_twice,
        **PAIR,
    ),
    PlantedBug(
        "sum_read_behind_an_atomic_only",
        "a word is read behind an atomic that has not found the red.async to it",
        lambda bug: summed_beside("neither", bug),
        "race",
        ("ld.shared reads shared memory before the red.async into it has landed",),
        ("sum", "own"),
        ints(64),
        ranked_twice,
        schedule="late",
        **PAIR,
    ),
    PlantedBug(
        "plain_sum_beside_a_red_async",
        "a word is added to by red.async and by a plain load and store",
        lambda bug: summed_beside("plain", bug),
        "race",
        ("red.async",),
        ("sum", "own"),
        ints(64),
        ranked_twice,
        **PAIR,
    ),
]
