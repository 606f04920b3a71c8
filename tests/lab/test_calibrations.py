"""The kernels of the calibrations on the clock."""

from __future__ import annotations

import pytest

from lab.calibrations.bench_kernels import timed_gpu
from lab.calibrations.umma import clk


def test_mma_latency_as_measured():
    gpu = timed_gpu()
    assert clk(gpu, "BF16", "SS", 1, 128, 128, 1) == pytest.approx(200, rel=0.1)
    assert clk(gpu, "E4M3", "TS", 2, 128, 64, 1) == pytest.approx(162, rel=0.1)
    assert clk(gpu, "MXF8", "SS", 1, 128, 256, 64) / 64 == pytest.approx(130, abs=5)
