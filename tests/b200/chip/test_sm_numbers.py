"""%smid: CTAs that are resident together are on SMs of their own."""

from __future__ import annotations

import numpy as np
import pytest

import b200
from b200.chip.gpu import Gpu
from b200.hardware import SM_COUNT
from tests.b200.ptx_support import kernel

# Notes %smid of a CTA; with a counter, waits until all CTAs of the grid have come.
NOTE = """
mov.u32 %r0, %ctaid.x; mov.u32 %r1, %smid; mov.u32 %r2, %nctaid.x;
ld.param.u64 %rd0, [out]; mad.wide.u32 %rd1, %r0, 4, %rd0; st.global.u32 [%rd1], %r1;
"""
MEET = """
ld.param.u64 %rd2, [count];
mov.u32 %r3, %tid.x; setp.ne.u32 %p0, %r3, 0;
@!%p0 red.global.add.u32 [%rd2], 1;
WAIT: ld.volatile.global.u32 %r4, [%rd2]; setp.lt.u32 %p1, %r4, %r2; @%p1 bra WAIT;
"""


def sms_of(ctas: int, cluster: int = 1, meet: bool = True, timing: bool = False) -> np.ndarray:
    import torch

    gpu = Gpu()
    gpu.machine = b200.machine(gpu.memory, check=False, timing=timing)
    out, count = (torch.zeros(n, dtype=torch.int32) for n in (ctas, 1))
    text = kernel(NOTE + (MEET if meet else ""), [".u64 out", ".u64 count"])
    gpu.launch(text, None, (ctas, 1, 1), (32, 1, 1), (cluster, 1, 1), 0, [out, count])
    return out.numpy()


@pytest.mark.parametrize("ctas, cluster", [(4, 1), (SM_COUNT, 1), (74 * 2, 2), (33 * 4, 4)])
def test_resident_ctas_have_sms_of_their_own(ctas, cluster):
    sms = sms_of(ctas, cluster)
    assert len(set(sms.tolist())) == ctas and sms.min() >= 0 and sms.max() < SM_COUNT


@pytest.mark.parametrize("cluster", [1, 2, 8])
def test_the_clock_has_the_same_sms(cluster):
    assert sms_of(16, cluster).tolist() == sms_of(16, cluster, timing=True).tolist()


def test_ctas_of_a_cluster_are_neighbours():
    """A GPC has at most 20 SMs (QuickRunCUDA's I8, B300), and two clusters take two GPCs."""
    sms = sms_of(16, 8)
    assert np.ptp(sms[:8]) < 20 and np.ptp(sms[8:]) < 20 and np.ptp(sms) >= 16


def test_a_later_wave_takes_what_became_free():
    sms = sms_of(SM_COUNT + 8, meet=False)
    assert len(set(sms[:SM_COUNT].tolist())) == SM_COUNT and sms.max() < SM_COUNT
