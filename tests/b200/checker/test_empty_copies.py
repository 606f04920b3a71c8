"""Bulk copies of no byte: they touch nothing, whatever watches."""

from __future__ import annotations

import pytest
import torch

import b200
from b200.chip.gpu import Gpu
from tests.b200.ptx_support import kernel

HEAD = """
mov.u32 %r1, dyn;
ld.param.u64 %rd1, [out];
mov.u32 %r9, %tid.x;
setp.ne.u32 %p1, %r9, 0;
@%p1 bra END;
mbarrier.init.shared.b64 [%r1], 1;
fence.mbarrier_init.release.cluster;
fence.proxy.async;
mov.u32 %r5, 0;
"""
ENDS = "cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;"
DONE = "mbarrier::complete_tx::bytes"
COPIES = {
    "a store": f"cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r1+512], %r5; {ENDS}",
    "a sum": f"cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%rd1], [%r1+512], %r5; {ENDS}",
    "a load": f"cp.async.bulk.shared::cluster.global.{DONE} [%r1+512], [%rd1], %r5, [%r1];",
    "a prefetch": "cp.async.bulk.prefetch.L2.global [%rd1], %r5;",
    "to a peer": f"cp.async.bulk.shared::cluster.shared::cta.{DONE} [%r1+512], [%r1+1024], %r5, [%r1];",
    "a sum to a peer": f"cp.reduce.async.bulk.shared::cluster.shared::cta.{DONE}.add.u32"
    " [%r1+512], [%r1+1024], %r5, [%r1];",
}


@pytest.mark.parametrize("schedule", [None, "all", "late"])
@pytest.mark.parametrize("body", COPIES.values(), ids=COPIES)
def test_a_copy_of_no_byte_is_nothing(body, schedule):
    gpu, out = Gpu(), torch.full((64,), 7, dtype=torch.int32)
    gpu.machine = b200.machine(gpu.memory, schedule=schedule)
    text = kernel(f"{HEAD}{body}\nEND: mov.u32 %r9, 0;", [".u64 out"])
    launch = gpu.launch(text, None, (1, 1, 1), (32, 1, 1), smem=4096, args=(out,))
    assert {f.kind for f in launch.findings} <= {"coverage"}  # the launch stores nothing
    assert bool((out == 7).all())
    assert schedule != "all" or "deadlock-free" in str(launch.orders)
