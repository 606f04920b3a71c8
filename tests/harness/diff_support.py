"""Wrong kernels, imitated on the inputs: the data are changed and the reference is asked, or parts of
the right answer are moved. No code is shared with the hypotheses.
"""

from __future__ import annotations

import torch

from harness.diagnosis.diff import explain
from reference import generate_input, ref_kernel
from utils import clone_data, dequantize

GEMM = {"m": 128, "n": 256, "k": 512, "l": 2, "seed": 5}
GEMV = {"m": 256, "k": 512, "l": 1, "seed": 5}
DUAL = {"m": 128, "n": 256, "k": 256, "l": 1, "seed": 5}


def gemm():
    return generate_input("nvfp4_gemm", **GEMM)


def dual():
    return generate_input("nvfp4_dual_gemm", **DUAL)


def bytes_of(tensor):
    """A view of the tensor's storage, in the order of memory."""
    return (
        tensor.view(torch.uint8).permute(2, 0, 1) if tensor.ndim == 3 else tensor.view(torch.uint8)
    )


def with_bytes(data, index, change):
    """The reference's answer to data whose operand `index` has other bytes."""
    other = list(clone_data(data))
    raw = other[index].view(torch.uint8)
    raw.copy_(change(raw.clone()))
    return ref_kernel(tuple(other))


def swap_nibbles(raw):
    return (raw >> 4) | (raw << 4)


def products(data):
    """float64 p1, p2 of a dual case."""
    a, b1, b2, sfa, sfb1, sfb2 = data[:6]
    x = dequantize(a[:, :, 0], sfa[:, :, 0]).double()
    return [x @ dequantize(b[:, :, 0], s[:, :, 0]).double().T for b, s in ((b1, sfb1), (b2, sfb2))]


def matrices(data):
    """float64 operands of each batch of a gemm."""
    for l in range(data[0].shape[2]):
        a, b, sfa, sfb = (t[:, :, l] for t in data[:4])
        yield dequantize(a, sfa).double(), dequantize(b, sfb).double()


def half(x):
    return x.half().unsqueeze(2)


def explained(data, output) -> str:
    right, report = explain(data, output)
    assert not right
    lines = [line for line in report.splitlines() if line.startswith(("  explained:", "  or:"))]
    assert lines, report
    return "\n".join(lines)


def small(m, n):
    data = generate_input("nvfp4_gemm", m=m, n=n, k=256, l=1, seed=5)
    return data, ref_kernel(data)
