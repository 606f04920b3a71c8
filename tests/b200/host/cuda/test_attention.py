"""What cost a public attention in raw tcgen05 weeks is named with its line; its twin is clean."""

from __future__ import annotations

import pytest
import torch

import b200
from b200.chip.gpu import Gpu
from b200.errors import EmulatorError
from tests.b200.host.cuda import attention_program
from tests.b200.host.cuda.attention_program import SHARED, line
from tests.b200.host.cuda.support import needs_nvcc

pytestmark = needs_nvcc
ROWS, TOKENS, WIDE = 256, 64, 64
# kernel -> severity and kind, the line, what the finding says.
MISTAKES = {
    # rows 32 to 63 sought by an address offset, where the warp's quarter decides
    "quarter": (
        "protocol (portability)",
        "load",
        ("names tensor-memory lanes 32 to 63, but warp 0", "add (warp % 4) << 21"),
    ),
    # the first MMA of the next rows adds to the scores of the rows before
    "goes_on": (
        "accumulator (note)",
        "mma",
        ("accumulates on values that tcgen05.ld has taken", "enable-input-d false for the first"),
    ),
    # 16 of the columns are read
    "few_read": (
        "coverage (note)",
        "load",
        ("tensor-memory columns [80, 128) are freed without having been read", "75 % of them"),
    ),
    # the stride of a head taken for that of a row: right for one row
    "stride": ("global", "store", ("two CTAs write the same address of global memory", "in out")),
}


@pytest.fixture(scope="module")
def ptx():
    return attention_program.compiled()


def launch(ptx: str, kernel: str, heads: int = 1):
    """(the launch, whether its numbers are those of float64)."""
    torch.manual_seed(5)
    q = torch.randn(ROWS, heads, WIDE).bfloat16()
    k, v = (torch.randn(heads, TOKENS, WIDE).bfloat16() for _ in range(2))
    out = torch.zeros(ROWS, heads, WIDE)
    gpu = Gpu()
    gpu.machine = b200.machine(gpu.memory)
    found = gpu.launch(ptx, kernel, (heads, 1, 1), (128, 1, 1), smem=SHARED, args=[q, k, v, out])
    scores = torch.einsum("rhw,htw->rht", q.double(), k.double()).softmax(-1)
    wanted = torch.einsum("rht,htw->rhw", scores, v.double())
    return found, torch.allclose(out.double(), wanted, rtol=0, atol=0.02)


def test_the_right_one_is_clean(ptx):
    found, right = launch(ptx, "right", heads=2)
    assert (found.findings, right) == ([], True)


@pytest.mark.parametrize("kernel", MISTAKES)
def test_a_mistake_is_named(ptx, kernel):
    kind, at, words = MISTAKES[kernel]
    found, right = launch(ptx, kernel, heads=2 if kernel == "stride" else 1)
    (said,) = map(str, found.findings)
    assert f"attention.cu:{line(at)}: {kind}: " in said.splitlines()[0], said
    assert all(each in said for each in words), said
    assert not right


def test_columns_beyond_the_allocation(ptx):
    """64 columns are allocated; the second product is written to columns 64 to 127."""
    with pytest.raises(EmulatorError) as caught:
        launch(ptx, "columns")
    said = str(caught.value)
    assert f"attention.cu:{line('mma')}" in said and "columns [64, 128) are not inside" in said
    assert "allocated: [0, 64)" in said
