"""tcgen05.mma and commit: what is refused, what is done when, and who is told."""

from __future__ import annotations

import numpy as np
import pytest

from b200.chip.sync.mbarrier import MBarrier
from b200.errors import Fault, Unsupported
from tests.b200.chip.async_support import address
from tests.b200.chip.tensor_support import (
    A,
    B,
    check_d,
    f16,
    idesc,
    integers,
    lane_run,
    matrix,
    put_k_major,
    put_pair,
    warps,
)


@pytest.mark.parametrize(
    "text, args, message",
    [
        ("f16 [d] a b i p", (1 << 16, None, None, idesc(128, 8), False), "D at .*lane 1, must be 0"),
        ("f16 [d] a b i p", (16 << 16, None, None, idesc(128, 8), False), "lane 16, must be 0"),
        ("f16 [d] a b i p", (60, None, None, idesc(128, 8), False), r"D of 128 x 8.*\[60, 68\)"),
        ("f16 [d] [a] b i p", (0, 60, None, idesc(128, 8), False), r"columns \[60, 68\)"),
        ("f16 [d] [a] b i p", (0, 0, None, idesc(128, 8, more=1 << 15), False), "A in tensor memory is K-major"),
        ("f16 [d] a b i p", (0, 0x20000 | 2 << 46, None, idesc(128, 8), False), "operand A.*version"),
        ("f16 [d] a b i p", (0, None, matrix(0x35000), idesc(128, 256), False), "operand B.*outside"),
        ("f16 [d] a b i p", (0, matrix(A, mode=1), None, idesc(128, 8), False), "32B atomicity.*K-major"),
        ("tf32 [d] a b i p", (0, None, None, idesc(128, 8, a=2, b=2, more=1 << 16), False), "need mode 1"),
        ("mxf4nvf4.block_scale.block16 [d] a b i [x] [y] p",
         (0, None, None, idesc(128, 8, 0, 1, 1), 62, 8, False), r"scale factors of A.*\[62, 66\)"),
        ("mxf4nvf4.block_scale.block16 [d] a b i [x] [y] p",
         (0, None, None, idesc(128, 8, 0, 1, 1), 8, 1 << 16, False), "scale factors of B.*lane 1"),
        ("f16 [d] a b i p", (0, None, None, idesc(192, 8), False), "M is 192"),
    ],
)  # fmt: skip
def test_faults_name_the_operand(text, args, message):
    _, (warp,) = warps(columns=64)
    good = matrix(A), matrix(B)
    args = tuple(good[i - 1] if x is None else x for i, x in enumerate(args))
    with pytest.raises(Fault, match=message):
        lane_run("tcgen05.mma.cta_group::1.kind::" + text, warp, *args)


@pytest.mark.parametrize(
    "opcode",
    [
        "tcgen05.mma.cta_group::1.kind::mxf4nvf4.block_scale [d] a b i [x] [y] p",
        "tcgen05.mma.cta_group::1.kind::mxf4.block_scale.block16 [d] a b i [x] [y] p",
        "tcgen05.mma.cta_group::1.kind::mxf8f6f4.block_scale.scale_vec::2X [d] a b i [x] [y] p",
        "tcgen05.mma.cta_group::1.kind::f16.block_scale [d] a b i [x] [y] p",
        "tcgen05.mma.cta_group::1.kind::mxf4 [d] a b i [x] [y] p",
        "tcgen05.mma.ws.cta_group::2.kind::f16 [d] a b i p",
        "tcgen05.mma.cta_group::1.kind::f16.ashift [d] a b i p",
    ],
)
def test_illegal_modifiers(opcode):
    _, (warp,) = warps()
    with pytest.raises(Fault):
        lane_run(opcode, warp)


@pytest.mark.parametrize("form", ["mma.sp", "mma.ws.sp"])
def test_sparse_is_unsupported(form):
    _, (warp,) = warps()
    with pytest.raises(Unsupported, match="sparse A .*, not modelled"):
        lane_run(f"tcgen05.{form}.cta_group::1.kind::f16 [d] a b [e] i p", warp)


def test_pair_needs_two_ctas():
    _, (warp,) = warps()
    with pytest.raises(Fault, match="peer"):
        lane_run("tcgen05.mma.cta_group::2.kind::f16 [d] a b i p", warp, 0, matrix(A), matrix(B),
                 idesc(256, 16), False)  # fmt: skip


def test_operands_are_read_when_the_unit_gets_to_it():
    """Delayed, an MMA sees the shared memory of the moment it is carried out, in issue order."""
    machine, found = warps()
    cta = found[0].cta
    rng = np.random.default_rng(0)
    a, b = integers(rng, (128, 16)), integers(rng, (8, 16))
    words = put_pair(found, f16(a), f16(b))
    cta.mbarriers[0x400] = barrier = MBarrier(cta, 0x400, 1)
    machine.delayed = True
    text = "tcgen05.mma.cta_group::1.kind::f16 [d] a b i p"
    lane_run(text, found[0], 0, *words, idesc(128, 8), False)
    lane_run(
        "tcgen05.commit.cta_group::1.mbarrier::arrive::one.b64.shared::cluster [m]", found[0], 0x400
    )
    other = integers(rng, (8, 16))
    put_k_major(cta, f16(other), B)
    assert barrier.phase == 0 and np.isnan(cta.tmem.view(np.float32)[:, 0]).all()
    machine.flush()
    assert barrier.phase == 1
    check_d(found, a @ other.T)


COMMIT = "tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster"


def test_commit_arrives_on_one_or_several_barriers():
    _, found = warps(4)
    at = 0x480
    barriers = []
    for warp in found:
        warp.cta.mbarriers[at] = MBarrier(warp.cta, at, 2)
        barriers.append(warp.cta.mbarriers[at])
    lane_run(f"{COMMIT}.b64 [m]", found[1], address(found[2], at - 0x400))
    assert [b.pending for b in barriers] == [2, 2, 1, 2]
    lane_run(
        f"{COMMIT}.multicast::cluster.b64 [m] k", found[2], address(found[2], at - 0x400), 0b1101
    )
    assert [b.pending for b in barriers] == [1, 2, 2, 1]
    assert [b.phase for b in barriers] == [0, 0, 1, 0]
    with pytest.raises(Fault, match="mask 0x0010: the cluster has 4"):
        lane_run(f"{COMMIT}.multicast::cluster.b64 [m] k", found[2], address(found[2], 0x80), 16)
    with pytest.raises(Fault, match="no mbarrier is initialised"):
        lane_run(f"{COMMIT}.b64 [m]", found[0], address(found[0], 0x100))
