"""tcgen05.cp: what orders what frees its columns, and what overwrites its source."""

from __future__ import annotations

import pytest
import torch

from b200.checker.tensor.tensor_shadow import TensorShadow, halves_of
from tests.b200.checker.test_checker import findings_of


def freed_behind(wait: str, issuer: int, *given):
    """One warp copies 32 rows to tensor memory with tcgen05.cp and commits; warp 0 waits and frees
    the columns. given: see findings_of.
    """
    body = f"""
    mov.u32 %r1, dyn;
    mov.u32 %r2, %tid.x;
    shl.b32 %r5, %r2, 3;
    add.u32 %r5, %r5, %r1;
    st.shared.v2.b32 [%r5], {{%r2, %r2}};
    fence.proxy.async.shared::cta;
    setp.ge.u32 %p1, %r2, 32;
    @%p1 bra S;
    tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r1+1024], 32;
    S: setp.ne.u32 %p2, %r2, 0;
    @%p2 bra T;
    mbarrier.init.shared::cta.b64 [%r1+1032], 1;
    fence.mbarrier_init.release.cluster;
    T: tcgen05.fence::before_thread_sync;
    bar.sync 0;
    tcgen05.fence::after_thread_sync;
    ld.shared.b32 %r4, [%r1+1024];
    add.u32 %r7, %r1, 1032;
    setp.ne.u32 %p3, %r2, {32 * issuer};
    @%p3 bra U;
    shr.u32 %r6, %r1, 4;
    and.b32 %r6, %r6, 0x3fff;
    cvt.u64.u32 %rd1, %r6;
    or.b64 %rd1, %rd1, {128 >> 4 << 32 | 1 << 16 | 1 << 46};
    tcgen05.cp.cta_group::1.32x128b.warpx4 [%r4], %rd1;
    tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r7];
    U: {wait}
    bar.sync 0;
    @%p1 bra V;
    tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r4, 32;
    V:
    """
    return findings_of(body, *given, threads=64)


WAIT_FOR_COPY = """
    @%p1 bra X;
    W: mbarrier.try_wait.parity{}.shared::cta.b64 %p4, [%r7], 0;
    @!%p4 bra W;
    {}
    X:
"""
AFTER_WAIT = "tcgen05.fence::after_thread_sync;"


@pytest.mark.parametrize("issuer", [0, 1])
def test_a_relaxed_wait_is_enough_for_what_frees_tensor_memory(issuer):
    """PTX ISA 9.7.16.6.4: tcgen05 operations are ordered by a relaxed wait for their commit, and
    tcgen05.fence::after_thread_sync.
    """
    relaxed = ".relaxed.cluster"
    assert freed_behind(WAIT_FOR_COPY.format("", AFTER_WAIT), issuer) == []
    assert freed_behind(WAIT_FOR_COPY.format(relaxed, AFTER_WAIT), issuer) == []
    (finding,) = freed_behind(WAIT_FOR_COPY.format(relaxed, ""), issuer)
    assert finding.severity == "portability" and "without tcgen05 fences" in finding.message
    found = [f for f in freed_behind("", issuer) if f.severity == "error"]
    assert any("deallocated before the tcgen05.cp" in f.message for f in found)


LOAD_OVER_COPIED = """
    @%p2 bra L;
    ld.param.u64 %rd2, [data];
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r7], {nbytes};
    cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r1], [%rd2], {nbytes}, [%r7];
    L: mbarrier.try_wait.parity.shared::cta.b64 %p4, [%r7], 1;
    @!%p4 bra L;
"""


@pytest.mark.parametrize("nbytes", [512, 1024])
def test_a_load_over_what_threads_wrote_and_the_tensor_core_read_is_left_alone(nbytes):
    """All that the copy to tensor memory has read, and as much again. No load was there before, so
    none was read in part.
    """
    load = LOAD_OVER_COPIED.format(nbytes=nbytes)
    data = torch.zeros(nbytes, dtype=torch.uint8)
    assert freed_behind(WAIT_FOR_COPY.format("", AFTER_WAIT + load), 0, data) == []


def test_columns_that_are_allocated_again_are_new():
    """Nothing of what their last owner did there is left, however it was ordered."""
    body = """
    mov.u32 %r1, dyn;
    mov.u32 %r2, %tid.x;
    shl.b32 %r5, %r2, 3;
    add.u32 %r5, %r5, %r1;
    st.shared.v2.b32 [%r5], {%r2, %r2};
    fence.proxy.async.shared::cta;
    bar.sync 0;
    setp.ge.u32 %p1, %r2, 32;
    @%p1 bra END;
    mov.u32 %r10, 0;
    mbarrier.init.shared::cta.b64 [%r1+1032], 1;
    fence.mbarrier_init.release.cluster;
    add.u32 %r7, %r1, 1032;
    AGAIN:
    tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r1+1024], 32;
    bar.warp.sync -1;
    ld.shared.b32 %r4, [%r1+1024];
    tcgen05.st.sync.aligned.32x32b.x1.b32 [%r4], {%r2};
    tcgen05.wait::st.sync.aligned;
    tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r8}, [%r4];
    tcgen05.wait::ld.sync.aligned;
    bar.warp.sync -1;
    tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r4, 32;
    add.u32 %r10, %r10, 1;
    setp.lt.u32 %p3, %r10, 3;
    @%p3 bra AGAIN;
    END:
    """
    found = findings_of(body, threads=64)
    assert [str(finding) for finding in found if finding.severity != "note"] == []


def test_what_is_freed_is_forgotten_and_nothing_else():
    shadow = TensorShadow()
    for cells in (shadow.written, shadow.core, shadow.loaded):
        cells.fill(7)
    shadow.forget(slice(32, 64))
    for cells in (shadow.written, shadow.core, shadow.loaded):
        assert not cells[..., 32:64].any()
        assert (cells[..., :32] == 7).all() and (cells[..., 64:] == 7).all()


@pytest.mark.parametrize("height", range(16, 129, 16))
@pytest.mark.parametrize("row", range(0, 128, 16))
def test_half_quarters_are_16_lanes(row, height):
    lanes = range(row, min(row + height, 128))
    assert set(range(8)[halves_of(row, len(lanes))]) == {lane // 16 for lane in lanes}
