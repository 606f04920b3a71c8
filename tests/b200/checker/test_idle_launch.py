"""A launch that stores nothing is told of."""

import pytest
import torch

import b200
from b200.chip.gpu import Gpu
from tests.planted_bugs.case import Source


def _guarded() -> str:
    """out[thread] = thread, for the first n threads."""
    k = Source(".param .u64 out, .param .u32 n", 32)
    k("mov.u32 %r0, %tid.x;")
    k("ld.param.u64 %rd0, [out];")
    k("ld.param.u32 %r1, [n];")
    k("setp.ge.u32 %p1, %r0, %r1;")
    k("@%p1 bra END;")
    k("mul.wide.u32 %rd1, %r0, 4;")
    k("add.u64 %rd2, %rd0, %rd1;")
    k("st.global.u32 [%rd2], %r0;")
    k("END: mov.u32 %r2, 0;")
    return k.text("guarded")


@pytest.mark.parametrize("n", [0, 1])
def test_a_size_of_zero_is_named(n):
    gpu = Gpu()
    gpu.machine = b200.machine(gpu.memory)
    out = torch.zeros(32, dtype=torch.int32)
    shape = (1, 1, 1), (32, 1, 1), (1, 1, 1), 0
    findings = gpu.launch(_guarded(), None, *shape, [out, n]).findings or []
    if n:
        assert findings == []
        return
    (found,) = findings
    assert found.severity == "note" and "the launch stores nothing" in found.diagnosis
    assert "parameters that are 0: n" in str(found)
