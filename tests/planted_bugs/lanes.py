"""Planted bugs of lanes: all of a warp issue what one should."""

from __future__ import annotations

import torch

from tests.planted_bugs.case import PlantedBug, Source
from tests.planted_bugs.cta import store_own
from tests.planted_bugs.gemm import planted as gemm_bug
from tests.planted_bugs.grid import tensormap

WORDS = 64  # of the buffer that is copied


def _start(params: str) -> Source:
    k = Source(params, 32)
    k("mov.u32 %r0, %tid.x;")
    k("mov.u32 %r1, dyn;")
    for i, name in enumerate(p.split()[-1].split("[")[0] for p in params.split(",")):
        if name != "map":
            k(f"ld.param.u64 %rd{i}, [{name}];")
    return k


def _fill(k: Source):
    """Each lane stores two words of the buffer: numbers from 0 on."""
    for half in range(2):
        k(f"add.u32 %r5, %r0, {32 * half};")
        k("shl.b32 %r6, %r5, 2;")
        k("add.u32 %r6, %r6, %r1;")
        k("st.shared.u32 [%r6], %r5;")
    k("fence.proxy.async.shared::cta;")
    k("bar.sync 0;")


def _out_of_shared(bug: bool, copy: str, prepare=lambda k: None, params=".param .u64 out"):
    """Shared memory goes out by one lane, with the bug by all of them."""
    k = _start(params)
    prepare(k)
    _fill(k)

    def issue():
        k(copy, "copy")
        k("cp.async.bulk.commit_group;")
        k("cp.async.bulk.wait_group 0;")

    k.only(0, issue, 31 if bug else 0)
    return k


def reduction(bug: bool) -> Source:
    copy = "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%rd0], [%r1], 256;"
    return _out_of_shared(bug, copy)


def store(bug: bool) -> Source:
    copy = "cp.async.bulk.global.shared::cta.bulk_group [%rd0], [%r1], 256;"
    return _out_of_shared(bug, copy)


def box_reduction(bug: bool) -> Source:
    def prepare(k: Source):
        k("mov.b64 %rd1, map;")
        k("cvta.param.u64 %rd1, %rd1;")

    return _out_of_shared(
        bug,
        "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group "
        "[%rd1, {0, 0}], [%r1];",
        prepare,
        ".param .align 64 .b8 map[128], .param .u64 out",
    )


def load(bug: bool, each_expects: bool) -> Source:
    """A bulk load of 64 words by one lane, with the bug by all; one expects the bytes, or each."""
    k = _start(".param .u64 source, .param .u64 out")
    count = 32 if bug and each_expects else 1

    def prepare():
        k(f"mbarrier.init.shared::cta.b64 [%r1+1024], {count};", "init")
        k("fence.mbarrier_init.release.cluster;")

    def expect():
        k("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1+1024], 256;")

    def issue():
        if each_expects:
            expect()
        k(
            "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r1], [%rd0], 256, "
            "[%r1+1024];",
            "copy",
        )

    k.only(0, prepare)
    k("bar.sync 0;")
    if not each_expects:
        k.only(0, expect)
    k.only(0, issue, 31 if bug else 0)
    k.wait("%r1+1024", 0)
    k("shl.b32 %r2, %r0, 2;")
    k("add.u32 %r3, %r1, %r2;")
    k("ld.shared.u32 %r5, [%r3];")
    k("mul.wide.u32 %rd8, %r0, 4;")
    k("add.u64 %rd9, %rd1, %rd8;")
    k("st.global.u32 [%rd9], %r5;")
    return k


def request(bug: bool) -> Source:
    """A lane asks for the next cluster's work, with the bug all do; the answer is not used."""
    k = _start(".param .u64 out")

    def prepare():
        k("mbarrier.init.shared::cta.b64 [%r1+1024], 1;")
        k("fence.mbarrier_init.release.cluster;")
        k(f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1+1024], {512 if bug else 16};")

    k.only(0, prepare)
    k("bar.sync 0;")
    k.only(
        0,
        lambda: k(
            "clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 "
            "[%r1], [%r1+1024];",
            "copy",
        ),
        31 if bug else 0,
    )
    k.wait("%r1+1024", 0)
    store_own(k, "%r0")
    return k


NUMBERS = torch.arange(WORDS, dtype=torch.int32)
TARGET = torch.zeros(16, 64, dtype=torch.int32)  # of the box


def _zeros(n: int = WORDS):
    return lambda: [torch.zeros(n, dtype=torch.int32)]


def _from_numbers():
    return [NUMBERS.clone(), torch.zeros(32, dtype=torch.int32)]


def _box_arguments():
    TARGET.zero_()
    return [tensormap(address=TARGET.data_ptr()), TARGET]


def _box_expected(args) -> torch.Tensor:
    want = torch.zeros_like(TARGET)
    want[:2, :32] = NUMBERS.reshape(2, 32)
    return want


ONE = "missing: elect one lane"
PLANTED = [
    PlantedBug(
        "reduction_by_all_lanes",
        "all lanes issue a bulk reduction",
        reduction,
        "protocol",
        ("32 lanes of store warp 0", "its values are combined 32 times", ONE),
        ("copy",),
        _zeros(),
        lambda a: NUMBERS,
    ),
    PlantedBug(
        "box_reduction_by_all_lanes",
        "all lanes issue a tensor reduction",
        box_reduction,
        "protocol",
        ("32 lanes of store warp 0", "its values are combined 32 times", ONE),
        ("copy",),
        _box_arguments,
        _box_expected,
    ),
    PlantedBug(
        "store_by_all_lanes",
        "all lanes issue one bulk store: legal, and 31 too many",
        store,
        "protocol",
        ("protocol (note)", "issue the same cp.async.bulk.global, which one would do", ONE),
        ("copy",),
        _zeros(),
        lambda a: NUMBERS,
    ),
    PlantedBug(
        "load_by_all_lanes",
        "all lanes issue a bulk load whose bytes one lane expects",
        lambda bug: load(bug, each_expects=False),
        "protocol",
        ("32 lanes of load warp 0", "expect_tx announced fewer", ONE),
        ("copy",),
        _from_numbers,
        lambda a: NUMBERS[:32],
    ),
    PlantedBug(
        "load_by_all_lanes_expected",
        "all lanes issue a bulk load, and expect its bytes: legal, and 31 too many",
        lambda bug: load(bug, each_expects=True),
        "protocol",
        ("protocol (note)", "issue the same cp.async.bulk", "which one would do", ONE),
        ("copy",),
        _from_numbers,
        lambda a: NUMBERS[:32],
    ),
    PlantedBug(
        "cancel_by_all_lanes",
        "all lanes ask for the next cluster's work",
        request,
        "protocol",
        ("32 lanes of warp 0", "each may cancel a cluster", ONE),
        ("copy",),
        _zeros(32),
        lambda a: NUMBERS[:32],
    ),
    gemm_bug(
        "mma_by_all_lanes",
        "the whole MMA warp issues the MMAs",
        "protocol",
        ("32 lanes of MMA warp 5", "its product is added 32 times", ONE),
        ("mma",),
        mma_lanes=32,
    ),
]
