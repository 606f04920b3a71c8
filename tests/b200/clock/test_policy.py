"""Policies of the caches: told from what ran, and a wider range."""

from __future__ import annotations

import pytest
import torch

from b200.chip.gpu import Gpu
from b200.clock import Options, call_time, kind, timed_machine
from b200.clock.spread import spread
from tests.b200.ptx_support import kernel, run

ERRORS = {"CUDA cores": [-0.1, 0.0, 0.0, 0.1], "split K": [-0.5, 0.2]}
POLICY = "createpolicy.fractional.L2::{}.b64 %rd9, 1.0;"
HINTED = "ld.global.L2::cache_hint.f32 %r21, [%rd3], %rd9;"
CASES = [
    ("ld.global.f32 %r21, [%rd3];", []),
    ("ld.global.L1::no_allocate.f32 %r21, [%rd3];", ["no_allocate"]),
    ("ld.global.cs.f32 %r21, [%rd3];", ["evict_first"]),
    (POLICY.format("evict_last") + HINTED, ["evict_last"]),
    (POLICY.format("evict_normal") + HINTED, []),
    ("mov.b64 %rd9, 0x12F0000000000000;" + HINTED, ["evict_first"]),
    ("mov.b64 %rd9, 0x1000000000000000;" + HINTED, []),
    ("bra NEXT; ld.global.L1::no_allocate.f32 %r21, [%rd3]; NEXT: mov.b32 %r21, 0;", []),
    ("mov.b32 %r21, 0; st.global.L1::no_allocate.f32 [%rd2], %r21;", []),
]


@pytest.mark.parametrize("load, expected", CASES)
def test_policies_are_those_of_what_ran(load, expected):
    gpu = Gpu()
    gpu.machine = timed_machine(gpu.memory, Options())
    start = "ld.param.u64 %rd2, [out]; ld.param.u64 %rd3, [data];"
    body = f"{start} {load} st.global.f32 [%rd2], %r21;"
    text = kernel(body, [".u64 out", ".u64 data"])
    launch = run(text, torch.zeros(32), torch.zeros(32), gpu=gpu)
    assert kind.policies_of(launch.time) == expected
    found = call_time.reported([launch], 1)
    assert found.policies == expected
    assert ("not timed" in found.range_from) is bool(expected)


def test_a_policy_takes_the_errors_of_all_kinds():
    own = spread("CUDA cores", ERRORS)
    wide = spread("CUDA cores", ERRORS, ["evict_first"])
    assert (own.high, wide.high) == (pytest.approx(1 / 0.9), pytest.approx(2.0))
    assert wide.points == 6 and "evict_first" in wide.text
