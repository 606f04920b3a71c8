"""Ground truth for the four problems: `generate_input`, `ref_kernel`, `check_implementation`,
`quantize_nvfp4`.

Everything works on the device the tensors live on. On a CUDA GPU of compute capability 10 the truth
is the public method, `torch._scaled_mm` per batch or group. Elsewhere the operands are dequantised
exactly and multiplied in float64: a dequantised element has at most 6 significant bits (2 of e2m1,
4 of ue4m3), a product of two at most 12, which leaves 41 bits for the spread of the exponents and
the sum. So the sum of the official inputs is exact in any order, and any other is rounded far below
fp16. float32 would do for gemv and gemm, whose sums are small multiples of 1/4, but not for dual,
where silu(p1) * p2 multiplies the error of p1 by p2, a hundred and more.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from harness.inputs import generate_input
from harness.nvfp4 import ATOM_ROWS, Quantized, dequantize, permute_scales, quantize_nvfp4
from utils import compare

__all__ = [
    "check_implementation",
    "dequantize",
    "generate_input",
    "pack_gemm",
    "quantize_nvfp4",
    "ref_kernel",
]

RTOL = ATOL = 1e-3
ROWS_AT_ONCE = (
    1024  # rows dequantised at a time: bounds the memory to a few hundred MB at K = 16384
)


def ref_kernel(data: tuple) -> torch.Tensor | list[torch.Tensor]:
    """The right answer to `data` of any of the four problems, as new fp16 tensors of c's shape and
    strides.
    """
    if isinstance(data[0], list):
        abc, scales, _, _ = data
        return [_gemm(a, b, sfa, sfb, c) for (a, b, c), (sfa, sfb) in zip(abc, scales)]
    if len(data) == 10:
        return _dual(*data[:6], data[9])
    a, b, sfa, sfb, _, _, c = data
    return _gemm(a, b, sfa, sfb, c)


def check_implementation(data: tuple, output: Any) -> tuple[bool, str]:
    """Hold `output` against the reference, rtol = atol = 1e-3. Returns (right, what is wrong)."""
    like = [c for _, _, c in data[0]] if isinstance(data[0], list) else data[-1]
    wrong = _form(output, like)
    if wrong:
        return False, wrong
    expected = ref_kernel(data)
    if not isinstance(expected, list):
        report = compare(output, expected, RTOL, ATOL)
        return not report, report
    for index, (got, want) in enumerate(zip(output, expected)):
        report = compare(got, want, RTOL, ATOL)
        if report:
            return False, f"group {index} of {len(expected)}: {report}"
    return True, ""


def pack_gemm(tokens: Quantized, weights: Quantized) -> tuple:
    """The data of nvfp4_gemm for two quantised matrices, (M, K) and (N, K).

    c times both tensor scales is the product of the real matrices, as well as NVFP4 can tell.
    """
    c = torch.zeros(
        1,
        tokens.codes.shape[0],
        weights.codes.shape[0],
        dtype=torch.float16,
        device=tokens.codes.device,
    )
    both = (tokens, weights)
    return (
        *(q.codes.unsqueeze(2) for q in both),
        *(q.scales.unsqueeze(2) for q in both),
        *(q.scales_permuted for q in both),
        c.permute(1, 2, 0),
    )


def _form(output: Any, like: torch.Tensor | list[torch.Tensor]) -> str:
    """What is wrong with the kind, number, shape, dtype or device of the output; empty if nothing
    is.
    """
    if isinstance(like, list):
        if not isinstance(output, (list, tuple)) or len(output) != len(like):
            got = (
                f"{len(output)} items"
                if isinstance(output, (list, tuple))
                else type(output).__name__
            )
            return (
                f"custom_kernel must return a list of {len(like)} tensors, one a group; got {got}"
            )
        reports = (_form(got, c) for got, c in zip(output, like))
        return next(
            (f"group {index}: {report}" for index, report in enumerate(reports) if report), ""
        )
    if not isinstance(output, torch.Tensor):
        return f"custom_kernel must return a tensor; got {type(output).__name__}"
    for what in ("shape", "dtype", "device"):
        got, expected = getattr(output, what), getattr(like, what)
        if got != expected:
            pretty = (tuple(v) if isinstance(v, torch.Size) else v for v in (expected, got))
            return "c must have {} {}; got {}".format(what, *pretty)
    return ""


def _gemm(
    a: torch.Tensor, b: torch.Tensor, sfa: torch.Tensor, sfb: torch.Tensor, c: torch.Tensor
) -> torch.Tensor:
    """a @ b^T in fp16. Only the first c.shape[1] rows of b count: gemv pads b to 128 rows."""
    out = torch.empty_like(c)
    for batch, product in enumerate(_products(a, b, sfa, sfb, c.shape[1], torch.float16)):
        out[:, :, batch] = product
    return out


def _dual(
    a: torch.Tensor,
    b1: torch.Tensor,
    b2: torch.Tensor,
    sfa: torch.Tensor,
    sfb1: torch.Tensor,
    sfb2: torch.Tensor,
    c: torch.Tensor,
) -> torch.Tensor:
    """silu(a @ b1^T) * (a @ b2^T), in fp32 or better until the last rounding."""
    out = torch.empty_like(c)
    gates = _products(a, b1, sfa, sfb1, c.shape[1], torch.float32)
    ups = _products(a, b2, sfa, sfb2, c.shape[1], torch.float32)
    for batch, (gate, up) in enumerate(zip(gates, ups)):
        out[:, :, batch] = torch.nn.functional.silu(gate) * up
    return out


def _products(
    a: torch.Tensor,
    b: torch.Tensor,
    sfa: torch.Tensor,
    sfb: torch.Tensor,
    columns: int,
    dtype: torch.dtype,
) -> Iterator[torch.Tensor]:
    """For each batch, a @ b^T (M, columns): of `dtype` where the GPU does it, float64 elsewhere."""
    scaled_mm = a.is_cuda and torch.cuda.get_device_capability(a.device)[0] == 10
    for batch in range(a.shape[2]):
        operands = [t[:, :, batch] for t in (a, b, sfa, sfb)]
        yield _scaled_mm(*operands, dtype)[:, :columns] if scaled_mm else _exact(*operands, columns)


def _exact(
    a: torch.Tensor, b: torch.Tensor, sfa: torch.Tensor, sfb: torch.Tensor, columns: int
) -> torch.Tensor:
    """a (M, K/2) @ b (N, K/2)^T in float64, for the first `columns` rows of b. The side with fewer
    rows is kept.
    """
    if a.shape[0] > columns:
        return _exact_kept(b[:columns], sfb[:columns], a, sfa).T
    return _exact_kept(a, sfa, b[:columns], sfb[:columns])


def _exact_kept(
    few: torch.Tensor, sf_few: torch.Tensor, many: torch.Tensor, sf_many: torch.Tensor
) -> torch.Tensor:
    """few @ many^T in float64: `few` dequantised once as a whole, `many` in blocks of rows."""
    kept = torch.cat(list(_blocks(few, sf_few)))
    return torch.cat([kept @ block.T for block in _blocks(many, sf_many)], dim=1)


def _blocks(codes: torch.Tensor, scales: torch.Tensor) -> Iterator[torch.Tensor]:
    """The dequantised matrix in float64, some rows at a time."""
    scales = scales.to(codes.device)
    for rows, row_scales in zip(codes.split(ROWS_AT_ONCE), scales.split(ROWS_AT_ONCE)):
        yield dequantize(rows, row_scales).double()


def _scaled_mm(
    a: torch.Tensor, b: torch.Tensor, sfa: torch.Tensor, sfb: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    """The public method. b is padded to whole atoms of rows, since cuBLAS wants N to be a multiple
    of 16.
    """
    rows = -(-b.shape[0] // ATOM_ROWS) * ATOM_ROWS
    if rows != b.shape[0]:
        padded = torch.zeros(rows, b.shape[1], dtype=torch.uint8, device=b.device)
        padded[: b.shape[0]] = b.view(torch.uint8)
        b = padded.view(b.dtype)
    atoms = [
        permute_scales(s.unsqueeze(2)).permute(5, 2, 4, 0, 1, 3).flatten().to(a.device)
        for s in (sfa, sfb)
    ]
    return torch._scaled_mm(a, b.transpose(0, 1), *atoms, bias=None, out_dtype=dtype)
