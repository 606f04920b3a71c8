"""A launch that is stopped by its budget says how far it came, and keeps what was found."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import b200
from b200 import time_budget
from tests.b200.ptx_support import kernel

# Both CTAs store to one address. Then two warps of the second one meet for ever.
ENDLESS = kernel(
    "ld.param.u64 %rd1, [a]; mov.u32 %r1, %ctaid.x; mov.u32 %r2, %tid.x; setp.eq.u32 %p0, %r2, 0;"
    " @%p0 st.global.u32 [%rd1], %r1;"
    " setp.eq.u32 %p1, %r1, 0; @%p1 bra END;"
    " AGAIN: atom.global.add.u32 %r3, [%rd1+64], 1; bar.sync 0; bra AGAIN; END:",
    [".u64 a"],
    name="endless",
    reqntid=64,
)


def test_a_launch_is_stopped(monkeypatch):
    """The clock of this test moves on by a second for each turn of a warp."""
    monkeypatch.setattr(time_budget.time, "monotonic", itertools.count().__next__)
    gpu, x = b200.Gpu(), np.zeros(64, np.int32)
    gpu.machine = b200.machine(gpu.memory, budget=40)
    with pytest.raises(b200.EmulatorError) as stopped:
        gpu.launch(ENDLESS, None, (2, 1, 1), (64, 1, 1), args=[x])
    error = stopped.value
    assert error.kind == "budget"
    said = "checked until here: endless was stopped after 40 s, when 2 of 2 CTAs had started"
    assert str(error).startswith(said)
    assert [found.kind for found in error.findings] == ["global"]


def test_a_launch_within_its_budget_is_as_without():
    x = np.zeros(64, np.int32)
    text = ENDLESS.replace("bra AGAIN;", "")
    gpu = b200.Gpu()
    gpu.machine = b200.machine(gpu.memory, budget=1000)
    within = gpu.launch(text, None, (2, 1, 1), (64, 1, 1), args=[x])
    without = b200.run_ptx(text, None, 2, 64, args=[x])
    assert within.counters == without.counters
    assert list(map(str, within.findings)) == list(map(str, without.findings))
