"""silu of the epilogue, times the other product, against float64 over all of fp32."""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
import pytest
import torch
from cutlass.cute.runtime import from_dlpack

import b200
import submission
from lab.kernel_cases import dual, inputs
from tests.submission.submission_support import run

THREADS = 128  # of a CTA; each takes two neighbours


@cute.kernel
def _gates(x: cute.Tensor, y: cute.Tensor, c: cute.Tensor):
    first = 2 * (cute.arch.block_idx()[0] * THREADS + cute.arch.thread_idx()[0])
    gates = submission.silu([x[first], x[first + 1]])
    for i in cutlass.range_constexpr(2):
        c[first + i] = submission.cvt_c(gates[i] * y[first + i])


@cute.jit
def _launch(x: cute.Tensor, y: cute.Tensor, c: cute.Tensor):
    _gates(x, y, c).launch(grid=(cute.size(x) // (2 * THREADS), 1, 1), block=(THREADS, 1, 1))


def products(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """fp16 of silu(x) * y as the kernel computes it; x, y: fp32 [n]."""
    gpu = b200.install(check=True)
    pad = -len(x) % (2 * THREADS)
    x, y = (torch.nn.functional.pad(t, (0, pad)) for t in (x, y))
    c = torch.zeros(len(x), dtype=torch.int16)
    _launch(*map(from_dlpack, (x, y, c)))
    assert all(finding.severity != "error" for finding in gpu.launches[-1].findings or ())
    return c.view(torch.float16)[: len(c) - pad]


LARGEST = torch.finfo(torch.float32).max
GATES = torch.cat(
    [
        torch.arange(-1300, 1300) / 10 + 0.037,  # e^-x leaves fp32 at -88.7, its half range at -44
        2.0 ** torch.arange(-149, 128),
        -(2.0 ** torch.arange(-149, 128)),
        torch.tensor([0.0, -0.0, LARGEST, -LARGEST]),
    ]
).float()
OTHERS = [2.0**-126, 2.0**-20, 1.0, -6.0, 1.16e8, -5e10, 2.0**53, 2.0**100, -LARGEST]


@pytest.mark.parametrize("other", OTHERS)
def test_every_finite_pair(other):
    """Errors as the docstring of silu adds them up, of the product with y, and of fp16."""
    y = torch.full_like(GATES, other)
    found = products(GATES, y).double()
    x, y = GATES.double(), y.double()
    exact = x / (1 + torch.exp(-x)) * y
    relative = (x.abs() + 8) * 2**-23 + 2**-24 + 2**-11
    allowed = exact.abs() * relative + y.abs() * 2**-149 + 2**-25
    largest = torch.finfo(torch.float16).max
    beyond = exact.abs() - allowed > largest  # these are infinite
    assert torch.equal(found[beyond], exact[beyond].sign() * torch.inf)
    may_be_infinite = found.isinf() & (exact.abs() + allowed >= largest)
    close = (found - exact).abs() <= allowed
    wrong = ~(beyond | may_be_infinite | close)
    assert not wrong.any(), list(zip(x[wrong].tolist(), found[wrong], exact[wrong]))[:5]


def test_neighbours_do_not_meet():
    """Two gates share a reciprocal; the one is not changed by what the other is."""
    x = torch.tensor([-LARGEST, 3.0, -100.0, 3.0, LARGEST, 3.0, torch.nan, 3.0]).float()
    found = products(x, torch.ones_like(x))
    assert (found[1::2] == found[1]).all() and found[1] > 2.8
    assert found[6].isnan()


def test_the_largest_sums_of_a_dual():
    """Codes of 6, scales of 448: a gate of -5e10 beside 10^8 gave -5.19 where 0 is right."""
    data = inputs(dual(128, 128, 7168), seed=1)
    a, b1, b2, _, _, _, sfa, sfb1, sfb2, _ = data
    for codes, byte in ((a, 0x77), (b1, 0xFF), (b2, 0x77)):  # 6, -6, 6
        codes.view(torch.uint8).fill_(byte)
    for scales, byte in ((sfa, 0x7E), (sfb1, 0x7E), (sfb2, 0x38)):  # 448, 448, 1
        scales.view(torch.uint8).fill_(byte)
    assert (run(data) == 0).all()
