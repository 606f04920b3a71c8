"""What cost a public attention weeks, as it can be made in Gluon: named with its line; the twin is
clean. The raw tcgen05 of it is in tests/b200/host/cuda/test_attention.py.
"""

from __future__ import annotations

import re

import pytest
import torch

import b200

pytest.importorskip("triton", minversion="3.8")
from triton.compiler.errors import CompilationError  # noqa: E402

MISTAKES = {
    # the first MMA of the next rows adds to the scores of the rows before
    "goes_on": ("accumulator", "mma", "accumulates on values that tcgen05.ld has taken"),
    # 16 of the columns are read
    "few_read": ("coverage", "load", "tensor-memory columns [80, 128) are freed without having"),
    # the stride of a head taken for that of a row: right for one head
    "stride": ("global", "store", "two CTAs write the same address of global memory"),
}
# What a kernel in raw tcgen05 may do, and Triton's compiler does not let one of Gluon.
REFUSED = {
    # 64 columns are allocated, and the second product is meant for columns 64 to 127
    # (Triton 3.9 has no name for it)
    "columns": "source and result must have the same logical storage size|no attribute '_reinterpret'",
    # a warp asks for rows of another warp's quarter
    "quarter": "'ttng.tmem_load' op result",
}


def launch(mistake: str, heads: int = 2):
    """(the launch, whether its numbers are those of float64)."""
    gpu = b200.install(check=True)
    from tests.b200.host.triton import gluon_attention

    torch.manual_seed(5)
    q = torch.randn(256, heads, 64).bfloat16()
    k, v = (torch.randn(heads, 64, 64).bfloat16() for _ in range(2))
    out = torch.zeros(256, heads, 64).cuda()
    gluon_attention.run((q.cuda(), k.cuda(), v.cuda(), out), mistake)
    scores = torch.einsum("rhw,htw->rht", q.double(), k.double()).softmax(-1)
    wanted = torch.einsum("rht,htw->rhw", scores, v.double())
    return gpu.launches[-1], torch.allclose(out.cpu().double(), wanted, rtol=0, atol=0.02)


def line(mark: str) -> int:
    from tests.b200.host.triton import gluon_attention

    lines = open(gluon_attention.__file__).read().splitlines()
    (found,) = (n for n, text in enumerate(lines, 1) if text.endswith(f"# mark: {mark}"))
    return found


@pytest.mark.parametrize("mistake, heads", [("", 2), ("stride", 1)])
def test_the_twin_is_clean(mistake, heads):
    found, right = launch(mistake, heads)
    assert (list(found.findings), right) == ([], True)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named(mistake):
    kind, mark, words = MISTAKES[mistake]
    found, right = launch(mistake)
    (said,) = found.findings
    assert (said.kind, right) == (kind, False)
    assert f"gluon_attention.py:{line(mark)}: " in str(said) and words in str(said)


@pytest.mark.parametrize("mistake", REFUSED)
def test_the_compiler_refuses_the_others(mistake, capfd):
    with pytest.raises((RuntimeError, CompilationError)) as refused:
        launch(mistake)
    assert re.search(REFUSED[mistake], capfd.readouterr().err + str(refused.value))
