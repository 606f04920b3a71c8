"""Operations of the tensor core by two warps: pairs that PTX lists end in order if the warps meet
between them with tcgen05 fences (PTX ISA 9.7.16.6.4.3), and who waits for the second has waited for
the first. Other pairs need a commit and a wait.
"""

import pytest
import torch

import b200
from b200.chip.gpu import Gpu
from tests.b200.checker.checks_page import unexplained
from tests.planted_bugs.core import BARRIER, LAYOUT, commit, multiply
from tests.planted_bugs.cta import start, store_own

FENCES, NONE, APART = "fences", "no fences", "no barrier"


def _operands(k):
    """Columns, A at 0 and 4096, B at 8192, ones in all of them, and two mbarriers."""
    alloc = "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r1+16448], 128;"
    k.only(0, lambda: k(alloc), 31)
    k("mov.u32 %r7, 0x3c003c00;")
    for i in range(40):
        k(f"st.shared.u32 [%r3+{256 * i}], %r7;")
    for number in range(2):
        k.only(0, lambda n=number: k(f"mbarrier.init.shared::cta.b64 [%r1+{BARRIER + 8 * n}], 1;"))
    k("fence.mbarrier_init.release.cluster;")
    k("fence.proxy.async.shared::cta;")
    k("bar.sync 0;")
    k("ld.shared.b32 %r4, [%r1+16448];")
    for register, offset in ((20, 0), (21, 4096), (22, 8192)):
        k(f"add.u32 %r11, %r1, {offset};")
        k("shr.u32 %r11, %r11, 4;")
        k("cvt.u64.u32 %rd11, %r11;")
        k(f"or.b64 %rd{register}, %rd11, {LAYOUT};")
    k("setp.ne.u32 %p5, 0, 0;")
    k("add.u32 %r17, %r4, 32;")


def two_warps(first, second, between: str, behind=None) -> list:
    """Warp 0 issues what `first` writes; warp 1, behind a barrier with fences or without, what
    `second` does, and commits. Both wait, and store a column. behind: thread 0 does it after that.
    """
    k = start(64)
    _operands(k)

    def one():
        first(k)
        if between == FENCES:
            k("tcgen05.fence::before_thread_sync;")

    def other():
        if between == FENCES:
            k("tcgen05.fence::after_thread_sync;")
        second(k)
        commit(k, 0)

    k.only(0, one)
    if between != APART:
        k("bar.sync 0;")
    k.only(32, other)
    k.wait(f"%r1+{BARRIER}", 0)
    k("tcgen05.fence::after_thread_sync;")
    k("and.b32 %r18, %r0, 32; shl.b32 %r18, %r18, 16; add.u32 %r18, %r18, %r4;")
    k("tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r5}, [%r18];")
    k("tcgen05.wait::ld.sync.aligned;")
    if behind is not None:
        k.only(0, lambda: behind(k))
    store_own(k, "%r5")
    k("tcgen05.fence::before_thread_sync;")
    k("bar.sync 0;")
    k("tcgen05.fence::after_thread_sync;")
    k.only(0, lambda: k("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r4, 128;"), 31)
    gpu = Gpu()
    gpu.machine = b200.machine(gpu.memory)
    words = torch.ones(4096, dtype=torch.int32)
    launch = gpu.launch(k.text("k"), None, (1, 1, 1), (64, 1, 1), (1, 1, 1), 0x8000, (words,))
    findings = [f for f in launch.findings or () if f.severity != "note"]
    assert not unexplained(findings)
    return findings


def copy(k):
    k("tcgen05.cp.cta_group::1.128x256b [%r17], %rd20;")


LISTED = {
    "cp mma": (copy, lambda k: multiply(k, 0, a="[%r17]")),
    "mma mma": (lambda k: multiply(k, 0), lambda k: multiply(k, 0, "%rd21", adds=True)),
    "mma shift": (
        lambda k: multiply(k, 0),
        lambda k: k("tcgen05.shift.cta_group::1.down [%r4];"),
    ),
}
OTHERS = {
    "mma mma of another shape": (
        lambda k: multiply(k, 0, n=16),
        lambda k: multiply(k, 0, "%rd21", adds=True),
    ),
    "mma cp": (
        lambda k: multiply(k, 0),
        lambda k: k("tcgen05.cp.cta_group::1.128x256b [%r4], %rd20;"),
    ),
}


@pytest.mark.parametrize("pair", LISTED)
def test_pairs_that_are_listed(pair):
    assert two_warps(*LISTED[pair], FENCES) == []


@pytest.mark.parametrize("pair", LISTED)
def test_without_fences(pair):
    found = two_warps(*LISTED[pair], NONE)
    assert {(f.kind, f.severity) for f in found} == {("race", "portability")}
    assert all("after a barrier without tcgen05 fences" in f.diagnosis for f in found)


@pytest.mark.parametrize("pair", LISTED)
def test_without_a_barrier(pair):
    assert "error" in {f.severity for f in two_warps(*LISTED[pair], APART)}


@pytest.mark.parametrize("pair", OTHERS)
def test_other_pairs_need_a_commit(pair):
    assert "error" in {f.severity for f in two_warps(*OTHERS[pair], FENCES)}


@pytest.mark.parametrize("offset, right", [(0, True), (4096, False)])
def test_who_waits_for_the_second_has_waited_for_the_first_alone(offset, right):
    """Warp 0 copies the operand at 0, and then another one, which the MMA does not use."""

    def copies(k):
        copy(k)
        k("add.u32 %r19, %r4, 64; tcgen05.cp.cta_group::1.128x256b [%r19], %rd21;")

    def store(k):
        k(f"st.shared.u32 [%r1+{offset}], 0;")

    found = two_warps(copies, LISTED["cp mma"][1], FENCES, store)
    text = "st.shared overwrites shared memory before the tcgen05.cp that reads it has committed"
    assert (text not in {f.diagnosis for f in found}) is right
