"""Which operations of one tensor-core queue end in order (PTX ISA 9.7.16.6.2): the pairs that it lists,
mma before cp, which generated code relies on, and what these make of three. And one queue has one
.cta_group.
"""

import pytest
import torch

import b200
from b200.chip.gpu import Gpu
from tests.b200.checker.checks_page import unexplained
from tests.planted_bugs.clusters import (
    cluster_start,
    cluster_sync,
    pair_alloc,
    pair_dealloc,
    store_ranked,
)
from tests.planted_bugs.core import BARRIER, commit, multiply, one_warp

QUEUE = "before it in the queue to end first"
GROUPS = "tcgen05 instructions of cta_group::1 and of cta_group::2"


def wait(k):
    commit(k, 1)
    k.wait(f"%r1+{BARRIER + 8}", 0)
    k("tcgen05.fence::after_thread_sync;")


# Each writes columns 0 to 7; so does "mma", which adds to them
OPERATIONS = {
    "mma": lambda k: multiply(k, 0),
    "shift": lambda k: k("tcgen05.shift.cta_group::1.down [%r4];"),
    "cp": lambda k: k("tcgen05.cp.cta_group::1.128x256b [%r4], %rd21;"),
    "cp.4x256b": lambda k: k("tcgen05.cp.cta_group::1.4x256b [%r4], %rd21;"),
    "another_lane": lambda k: k(
        "add.u32 %r13, %r4, 65536; tcgen05.cp.cta_group::1.4x256b [%r13], %rd21;"
    ),
    "beside": lambda k: k("add.u32 %r13, %r4, 8; tcgen05.cp.cta_group::1.128x256b [%r13], %rd21;"),
    "wait": wait,
}


def findings(*names: str) -> list:
    def body(k):
        for name in names:
            OPERATIONS[name](k)

    gpu = Gpu()
    gpu.machine = b200.machine(gpu.memory)
    k, words = one_warp(body), torch.ones(4096, dtype=torch.int32)
    launch = gpu.launch(k.text("k"), None, (1, 1, 1), (32, 1, 1), (1, 1, 1), 0x8000, (words,))
    found = [f for f in launch.findings or () if f.severity != "note"]
    assert not unexplained(found)
    return found


@pytest.mark.parametrize(
    "names",
    [
        "mma shift cp",
        "cp shift",
        "mma shift shift",
        "cp cp",
        "mma shift cp.4x256b cp",
        "mma shift cp.4x256b cp.4x256b",
        "cp cp.4x256b",
        "mma cp.4x256b shift",
    ],
)
def test_pairs_that_nothing_orders(names):
    found = findings(*names.split())
    assert found and {(f.kind, f.severity) for f in found} == {("race", "portability")}
    assert all(QUEUE in f.diagnosis for f in found)


@pytest.mark.parametrize(
    "names",
    [
        "mma shift cp.4x256b",
        "mma shift wait cp",
        "cp mma shift",
        "cp mma cp",
        "cp beside",
        "mma shift mma shift",
        "mma shift mma cp",
        "mma shift cp.4x256b another_lane",
        "cp mma another_lane cp.4x256b",
    ],
)
def test_their_twins(names):
    assert not findings(*names.split())


@pytest.mark.parametrize("group, refused", [(1, True), (2, False)])
def test_one_cta_group_in_a_kernel(group, refused):
    """A pair allocates; an arm that no thread executes has a commit of a lone CTA. ptxas says
    "uses single CTA(.cta_group::1) and CTA pair granularity(.cta_group::2) and that is not allowed".
    """
    k = cluster_start(32)
    cluster_sync(k)
    pair_alloc(k)
    cluster_sync(k)
    k("ld.shared.b32 %r4, [%r1+8192];")
    k("setp.lt.u32 %p4, %r1, 0;")
    at = "mbarrier::arrive::one.shared::cluster.b64 [%r1+8200]"
    k(f"@%p4 tcgen05.commit.cta_group::{group}.{at};")
    pair_dealloc(k)
    store_ranked(k, "%r4")
    cluster_sync(k)
    gpu = Gpu()
    gpu.machine = b200.machine(gpu.memory)
    words = torch.ones(4096, dtype=torch.int32)
    launch = gpu.launch(k.text("k"), None, (2, 1, 1), (32, 1, 1), (2, 1, 1), 0x8000, (words,))
    found = [f for f in launch.findings or () if f.severity == "error"]
    assert not unexplained(found)
    assert [GROUPS in f.diagnosis for f in found] == [True] * refused, found
