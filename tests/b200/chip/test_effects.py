"""What instructions state of themselves, against the sentences of the PTX ISA.

An effect is all that the checker, the clock and the explorer know of an instruction. Each class of
effects has an example here, and each field that a modifier decides has one with the modifier and
one without.
"""

from __future__ import annotations

import dataclasses

import pytest

from b200 import effects as e
from b200.chip import instruction_set  # noqa: F401  registers every unit
from b200.program.module import Instr
from b200.program.parse import parse
from b200.registry import FLOW, TABLE

HEAD = """.version 9.0
.target sm_100a
.address_size 64
.visible .entry k()
{
    .reg .pred %p<4>;
    .reg .b16 %h<4>;
    .reg .b32 %r<16>;
    .reg .b64 %d<8>;
    .reg .b128 %q<2>;
"""
WEAK = {"order": "weak", "scope": ""}
ONE = {"nbytes": 4, "bits": 32}


def instruction(text: str) -> Instr:
    program = parse(HEAD + text + "\nret;\n}\n")
    return next(item for item in program.kernels["k"].body if isinstance(item, Instr))


CASES: list[tuple[str, e.Effect]] = [
    # --- registers alone
    ("add.u32 %r1, %r2, %r3;", e.Computes(pipe="add", uniform=True)),
    ("fma.rn.f32 %r1, %r2, %r3, %r4;", e.Computes(pipe="float")),
    ("mov.u32 %r1, %r2;", e.Moves(pipe="nothing", source="register")),
    ("mov.u32 %r1, 5;", e.Moves(pipe="nothing", source="constant")),
    ("mov.u32 %r1, %tid.x;", e.Moves(pipe="special register")),
    ("cvt.rn.satfinite.e2m1x2.f32 %h1, %r1, %r2;", e.Converts(pipe="pack", target="e2m1")),
    ("cvt.rn.f16x2.e4m3x2 %r1, %h1;", e.Converts(pipe="unpack", target="f16")),
    ("shfl.sync.idx.b32 %r1, %r2, 0, 31, -1;", e.Exchanges(pipe="shuffle")),
    ("vote.sync.any.pred %p1, %p2, -1;", e.Exchanges(pipe="vote")),
    ("elect.sync %r1|%p1, -1;", e.Elects(pipe="elect")),
    (
        "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e5m2.f32 {%r1,%r2,%r3,%r4}, {%r5,%r6,%r7,%r8},"
        " {%r9,%r10}, {%r1,%r2,%r3,%r4};",
        e.MultipliesInWarp(inputs=("e4m3", "e5m2")),
    ),
    ("movmatrix.sync.aligned.m8n8.trans.b16 %r1, %r2;", e.Transposes(pipe="shuffle")),
    ("activemask.b32 %r1;", e.LooksAtLanes(pipe="active mask")),
    ("prefetch.global.L2 [%d1];", e.Hints(pipe="hint")),
    (
        "prefetch.global.L2::evict_last [%d1];",
        e.Hints(pipe="hint", policies=frozenset({"evict_last"})),
    ),
    ("discard.global.L2 [%d1], 128;", e.Discards()),
    ("pmevent 3;", e.CountsEvents()),
    ("pmevent.mask 4660;", e.CountsEvents()),
    ("nanosleep.u32 20;", e.Sleeps(pipe="sleep")),
    ("ret;", e.Jumps(leaves=True)),
    ("bra.uni end; end:", e.Jumps()),
    ("trap;", e.Traps()),
    # --- memory: space, bytes, order, scope, caches
    ("ld.global.u32 %r1, [%d1];", e.Loads(**WEAK, **ONE, space="global")),
    ("ld.shared.u32 %r1, [%r2];", e.Loads(**WEAK, **ONE, space="shared")),
    ("ld.shared::cluster.u32 %r1, [%r2];", e.Loads(**WEAK, **ONE, space="shared::cluster")),
    ("ld.u32 %r1, [%d1];", e.Loads(**WEAK, **ONE, space="generic")),
    ("ld.const.u32 %r1, [%d1];", e.Loads(**WEAK, **ONE, space="const", pipe="nothing")),
    (
        "ld.global.nc.L1::no_allocate.v4.f32 {%r1,%r2,%r3,%r4}, [%d1];",
        e.Loads(
            **WEAK,
            space="global",
            nbytes=16,
            bits=32,
            constant=True,
            cached=False,
            policies=frozenset({"no_allocate"}),
        ),
    ),
    (
        "ld.acquire.gpu.global.u64 %d2, [%d1];",
        e.Loads(order="acquire", scope="gpu", space="global", nbytes=8, bits=64, cached=False),
    ),
    (
        "ld.volatile.shared.u32 %r1, [%r2];",
        e.Loads(order="volatile", space="shared", **ONE, cached=False),
    ),
    ("st.shared.v2.b32 [%r1], {%r2,%r3};", e.Stores(**WEAK, space="shared", nbytes=8, bits=32)),
    (
        "st.release.cluster.global.u32 [%d1], %r1;",
        e.Stores(order="release", scope="cluster", space="global", **ONE),
    ),
    (
        "atom.global.add.u32 %r1, [%d1], %r2; mov.u32 %r3, %r1;",
        e.Updates(
            order="relaxed",
            space="global",
            **ONE,
            operation="add",
            floats=False,
            returns=True,
        ),
    ),
    (
        "atom.acq_rel.sys.shared.cas.b64 %d1, [%r1], %d2, %d3; mov.b64 %d2, %d1;",
        e.Updates(
            order="acq_rel",
            scope="sys",
            space="shared",
            nbytes=8,
            bits=64,
            operation="cas",
            floats=False,
            returns=True,
        ),
    ),
    (
        "red.release.gpu.global.add.v4.f32 [%d1], {%r1,%r2,%r3,%r4};",
        e.Updates(
            order="release",
            scope="gpu",
            space="global",
            nbytes=16,
            bits=32,
            operation="add",
            floats=True,
            returns=False,
        ),
    ),
    (
        "ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%r1,%r2}, [%r3];",
        e.MatrixLoads(**WEAK, space="shared", nbytes=16, bits=8, addresses=16),
    ),
    (
        "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%r5], {%r1,%r2,%r3,%r4};",
        e.MatrixStores(**WEAK, space="shared", nbytes=16, bits=8, addresses=32),
    ),
    ("st.bulk.weak.shared::cta [%r1], %d1, 0;", e.Fills(pipe="fill", space="shared::cta")),
    ("st.bulk [%d1], 4096, 0;", e.Fills(pipe="fill", space="generic")),
    # --- asynchronous copies
    (
        "cp.async.cg.shared.global [%r1], [%d1], 16;",
        e.Copies(source="global", target="shared", signals="cp.async"),
    ),
    (
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
        " [%r1], [%d1], %r2, [%r3], %h1;",
        e.Copies(
            source="global",
            target="shared::cluster",
            signals="mbarrier",
            bulk=True,
            multicast=True,
        ),
    ),
    (
        "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes"
        " [%r1], [%r4], %r2, [%r3];",
        e.Copies(source="shared::cta", target="shared::cluster", signals="mbarrier", bulk=True),
    ),
    (
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%d1], [%r1], %r2;",
        e.Copies(
            source="shared::cta",
            target="global",
            signals="bulk",
            bulk=True,
            operation="add",
            floats=True,
        ),
    ),
    (
        "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%d1, {%r1,%r2}], [%r3];",
        e.Copies(source="shared::cta", target="global", signals="bulk", bulk=True),
    ),
    (
        "cp.async.bulk.prefetch.L2.global [%d1], %r1;",
        e.Copies(source="global", target="L2", signals="", bulk=True),
    ),
    (
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%r1], %r2, [%r3];",
        e.Copies(source="", target="shared::cluster", signals="mbarrier"),
    ),
    (
        "red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.min.u32"
        " [%r1], %r2, [%r3];",
        e.Copies(source="", target="shared::cluster", signals="mbarrier", operation="min"),
    ),
    ("cp.async.mbarrier.arrive.shared.b64 [%r1];", e.ArrivesBehindCopies(counted=False)),
    ("cp.async.mbarrier.arrive.noinc.shared.b64 [%r1];", e.ArrivesBehindCopies(counted=True)),
    ("cp.async.commit_group;", e.CommitsGroup(bulk=False)),
    ("cp.async.bulk.commit_group;", e.CommitsGroup(bulk=True)),
    ("cp.async.wait_group 1;", e.WaitsForGroups(bulk=False)),
    ("cp.async.wait_all;", e.WaitsForGroups(bulk=False, everything=True)),
    ("cp.async.bulk.wait_group 0;", e.WaitsForGroups(bulk=True)),
    ("cp.async.bulk.wait_group.read 0;", e.WaitsForGroups(bulk=True, sources=True)),
    # --- the tensor core and tensor memory
    (
        "tcgen05.mma.cta_group::2.kind::f16 [%r1], %d1, %d2, %r2, %p1;",
        e.Multiplies(pair=True, buffer="a", usage="discard"),
    ),
    ("tcgen05.cp.cta_group::1.128x256b [%r1], %d1;", e.CopiesToTensor(pair=False)),
    ("tcgen05.cp.cta_group::2.128x256b [%r1], %d1;", e.CopiesToTensor(pair=True)),
    (
        "tcgen05.mma.cta_group::1.kind::f16.collector::a::fill [%r1], %d1, %d2, %r2, %p1;",
        e.Multiplies(pair=False, buffer="a", usage="fill"),
    ),
    (
        "tcgen05.mma.ws.cta_group::1.kind::f16.collector::b3::use [%r1], %d1, %d2, %r2, %p1;",
        e.Multiplies(pair=False, buffer="b3", usage="use"),
    ),
    (
        "tcgen05.mma.ws.cta_group::1.kind::f16 [%r1], %d1, %d2, %r2, %p1;",
        e.Multiplies(pair=False, buffer="b0", usage="discard"),
    ),
    ("tcgen05.shift.cta_group::1.down [%r1];", e.ShiftsRows(pair=False)),
    ("tcgen05.dealloc.cta_group::2.sync.aligned.b32 %r1, %r2;", e.FreesTensor(pair=True)),
    (
        "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r1], %r2;",
        e.AllocatesTensor(pair=False),
    ),
    (
        "tcgen05.st.sync.aligned.16x256b.x1.b32 [%r5], {%r1,%r2,%r3,%r4};",
        e.TensorStores(packed=False, registers=4),
    ),
    ("tcgen05.shift.cta_group::2.down [%r1];", e.ShiftsRows(pair=True)),
    (
        "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r1];",
        e.Commits(pair=False, multicast=False),
    ),
    (
        "tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64"
        " [%r1], %h1;",
        e.Commits(pair=True, multicast=True),
    ),
    (
        "tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [%r1], %r2;",
        e.AllocatesTensor(pair=True),
    ),
    ("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r1, %r2;", e.FreesTensor(pair=False)),
    ("tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;", e.EndsAllocation()),
    (
        "tcgen05.ld.sync.aligned.32x32b.x2.b32 {%r1,%r2}, [%r3];",
        e.TensorLoads(packed=False, registers=2),
    ),
    (
        "tcgen05.ld.sync.aligned.32x32b.x1.pack::16b.b32 %r1, [%r3];",
        e.TensorLoads(packed=True, registers=1),
    ),
    (
        "tcgen05.st.sync.aligned.32x32b.x4.unpack::16b.b32 [%r5], {%r1,%r2,%r3,%r4};",
        e.TensorStores(packed=True, registers=4),
    ),
    ("tcgen05.wait::ld.sync.aligned;", e.WaitsForTensor(loads=True)),
    ("tcgen05.wait::st.sync.aligned;", e.WaitsForTensor(loads=False)),
    ("tcgen05.fence::before_thread_sync;", e.FencesTensor(before=True)),
    ("tcgen05.fence::after_thread_sync;", e.FencesTensor(before=False)),
    # --- mbarriers
    ("mbarrier.init.shared::cta.b64 [%r1], 1;", e.InitsMbarrier()),
    ("mbarrier.inval.shared::cta.b64 [%r1];", e.InvalidatesMbarrier()),
    (
        "mbarrier.arrive.shared::cta.b64 %d1, [%r1];",
        e.Arrives(order="release", space="shared::cta"),
    ),
    (
        "mbarrier.arrive.expect_tx.relaxed.cluster.shared::cluster.b64 _, [%r1], %r2;",
        e.Arrives(order="relaxed", scope="cluster", space="shared::cluster", expects=True),
    ),
    (
        "mbarrier.arrive_drop.release.cta.shared::cta.b64 %d1, [%r1];",
        e.Arrives(order="release", scope="cta", space="shared::cta", drops=True),
    ),
    ("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r1], %r2;", e.ExpectsBytes()),
    ("mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%r1], %r2;", e.CompletesBytes()),
    (
        "mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r1], %r2;",
        e.WaitsForPhase(order="acquire", shift=0),
    ),
    (
        "mbarrier.test_wait.relaxed.cluster.shared::cta.b64 %p1, [%r1], %d1;",
        e.WaitsForPhase(order="relaxed", scope="cluster", shift=63),
    ),
    ("mbarrier.pending_count.b64 %r1, %d1;", e.ReadsMbarrierState(pipe="integer")),
    # --- barriers, fences, registers, grids
    ("bar.warp.sync -1;", e.MeetsInWarp()),
    ("bar.sync 0;", e.MeetsInCta(waits=True, counted=True)),
    ("barrier.cta.arrive.aligned 1, 64;", e.MeetsInCta(waits=False, counted=True)),
    ("bar.red.or.pred %p1, 0, %p2;", e.MeetsInCta(waits=True, counted=False)),
    ("bar.red.or.pred %p1, 0, 64, %p2;", e.MeetsInCta(waits=True, counted=True)),
    ("barrier.cluster.arrive.aligned;", e.ArrivesInCluster(relaxed=False)),
    ("barrier.cluster.arrive.relaxed.aligned;", e.ArrivesInCluster(relaxed=True)),
    ("barrier.cluster.wait.aligned;", e.WaitsInCluster()),
    ("fence.acq_rel.gpu;", e.FencesMemory(order="acq_rel", scope="gpu")),
    ("fence.sc.sys;", e.FencesMemory(order="sc", scope="sys")),
    ("membar.gl;", e.FencesMemory(order="sc", scope="gpu")),
    (
        "fence.acquire.sync_restrict::shared::cluster.cluster;",
        e.FencesMemory(order="acquire", scope="cluster"),
    ),
    ("fence.proxy.async;", e.FencesProxy(shared=True, far=True)),
    ("fence.proxy.async.global;", e.FencesProxy(shared=False, far=True)),
    ("fence.proxy.async.shared::cta;", e.FencesProxy(shared=True, far=False, own=True)),
    ("fence.proxy.async.shared::cluster;", e.FencesProxy(shared=True, far=False)),
    ("fence.proxy.alias;", e.FencesProxy(shared=False, far=False)),
    (
        "fence.proxy.async::generic.release.sync_restrict::shared::cta.cluster;",
        e.FencesProxy(shared=True, far=False, order="release"),
    ),
    ("fence.mbarrier_init.release.cluster;", e.FencesInits()),
    (
        "fence.proxy.tensormap::generic.acquire.gpu [%d1], 128;",
        e.FencesTensormap(order="acquire", scope="gpu"),
    ),
    ("setmaxnreg.inc.sync.aligned.u32 232;", e.SetsRegisters(count=232)),
    ("griddepcontrol.wait;", e.OrdersGrids(pipe="hint", waits=True)),
    ("griddepcontrol.launch_dependents;", e.OrdersGrids(pipe="hint", waits=False)),
    # --- tensormaps, and requests for work
    (
        "tensormap.replace.tile.global_address.shared::cta.b1024.b64 [%r1], %d1;",
        e.EditsTensormap(space="shared"),
    ),
    (
        "tensormap.replace.tile.global_address.global.b1024.b64 [%d2], %d1;",
        e.EditsTensormap(space="global"),
    ),
    (
        "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned"
        " [%d1], [%r1], 128;",
        e.PublishesTensormap(order="release", scope="gpu"),
    ),
    ("prefetch.tensormap [%d1];", e.PrefetchesTensormap(pipe="hint")),
    (
        "clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128"
        " [%r1], [%r2];",
        e.RequestsWork(),
    ),
    (
        "clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 %p1, %q1;",
        e.ReadsRequest(success=True),
    ),
    (
        "clusterlaunchcontrol.query_cancel.get_first_ctaid::x.b32.b128 %r1, %q1;",
        e.ReadsRequest(success=False),
    ),
]
NOT_HERE = {e.CallsSystem}  # a call is no line of its own (host/test_driver.py)


@pytest.mark.parametrize("text, expected", CASES, ids=[text.split()[0] for text, _ in CASES])
def test_an_instruction_states_its_effect(text, expected):
    assert instruction(text).effect == expected


def test_each_effect_has_an_example():
    kinds = {type(effect) for _, effect in CASES}
    bases = {e.Effect, e.Ordered, e.Access, e.CoreOperation}
    every = {x for x in vars(e).values() if isinstance(x, type) and issubclass(x, e.Effect)}
    assert every - bases - NOT_HERE == kinds


def test_each_yes_or_no_has_an_example_of_both():
    values: dict[tuple[str, str], set] = {}
    for _, effect in CASES:
        for field in dataclasses.fields(effect):
            if isinstance(getattr(effect, field.name), bool):
                key = type(effect).__name__, field.name
                values.setdefault(key, set()).add(getattr(effect, field.name))
    assert {key for key, found in values.items() if len(found) < 2} == ONE_VALUE


# PTX has no other form, or only loads have two.
ONE_VALUE = {
    *((kind, "uniform") for kind in ("Moves", "Converts", "ReadsMbarrierState")),
    *((kind, "cached") for kind in ("Stores", "Updates", "MatrixLoads", "MatrixStores")),
}


def test_every_entry_of_the_table_states_an_effect():
    assert all(callable(x.states) or isinstance(x.states, e.Effect) for x in TABLE.values())
    assert all(isinstance(effect, e.Effect) for effect in FLOW.values())
