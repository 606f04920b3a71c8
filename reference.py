"""Ground truth for the four problems: `generate_input`, `ref_kernel`, `check_implementation`.

Inputs of three kinds, laid out as the leaderboards' generators lay them out: "official" draws the
leaderboards' values in the leaderboards' order, so that the same seed on the same kind of device
gives the same bits; "quantized" quantises real matrices; "full" uses all 16 e2m1 codes and all 127
finite ue4m3 scales, with the scales of the two sides opposed so that c stays finite in fp16.

Everything works on the device the tensors live on. On a CUDA GPU of compute capability 10 the truth
is the public method, `torch._scaled_mm` per batch or group. Elsewhere it is the exact product
(utils.py). Sums rounded to float32 would not do for dual, where silu(p1) * p2 multiplies the error
of p1 by p2, a hundred and more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from task import DUAL, GEMM, GEMV, GROUP, INPUT_KINDS, PROBLEMS
from utils import (
    ATOM_ROWS,
    BLOCK,
    MAX_UE4M3,
    compare,
    dequantize,
    exact_product,
    pack_gemm,
    permute_scales,
    quantize_nvfp4,
)

__all__ = [
    "check_implementation",
    "dequantize",
    "generate_input",
    "pack_gemm",
    "quantize_nvfp4",
    "ref_kernel",
]

RTOL = ATOL = 1e-3
TAKEN = (torch.float32, torch.float64, torch.bfloat16)  # by the boards, in place of float16
GEMV_ROWS = 128  # rows that b is padded to
# Clears bit 2 of both e2m1 codes of a byte: 0, 0.5, 1, 1.5 and their negatives remain.
SIGN_AND_LOW = 0b1011_1011

# Standard deviation that a product of the made-up inputs is given: c stays finite in fp16 with a
# wide margin, also for dual, where c is a product of two such numbers.
SPREAD = {GEMV.name: 2000.0, GEMM.name: 2000.0, DUAL.name: 15.0, GROUP.name: 2000.0}

Shape = tuple[int, ...]


@dataclass
class Operand:
    """One matrix of a problem while it is made. side: "a" or "b" of the product a b^T."""

    side: str
    l: int
    rows: int
    k: int
    codes: torch.Tensor | None = None  # (L, rows, K/2) bytes
    scales: torch.Tensor | None = None  # (L, rows, K/16) float8_e4m3fn
    permuted: torch.Tensor | None = None

    @property
    def codes_shape(self) -> Shape:
        return self.l, self.rows, self.k // 2

    @property
    def scales_shape(self) -> Shape:
        return self.l, self.rows, self.k // BLOCK

    @property
    def stored_shape(self) -> Shape:
        return self.l, -(-self.rows // 128), -(-self.k // (4 * BLOCK)), 32, 4, 4


class Source(Protocol):
    """Draws the values of operands. `_flat` and `_grouped` call it in the leaderboards' order."""

    def codes(self, operand: Operand, device: str) -> None:
        """Set operand.codes."""

    def scales(self, operand: Operand, device: str) -> None:
        """Set operand.scales."""

    def padding(self, operand: Operand, device: str) -> torch.Tensor | None:
        """What stands in the permuted scales where there is no row or no scale: of the shape
        stored_shape; zeros if None."""


def _integers(low: int, high: int, dtype: torch.dtype) -> Callable[[Shape, str], torch.Tensor]:
    return lambda shape, device: torch.randint(low, high, shape, dtype=dtype, device=device)


def _small_nibbles(shape: Shape, device: str) -> torch.Tensor:
    return torch.randint(255, shape, dtype=torch.uint8, device=device) & SIGN_AND_LOW


def _fractions(shape: Shape, device: str) -> torch.Tensor:
    return torch.rand(shape, dtype=torch.float32, device=device)


def _leftovers(shape: Shape, device: str) -> torch.Tensor:
    """Uninitialised on the leaderboard; here every int8 in turn, so that runs are repeatable."""
    return torch.arange(math.prod(shape), device=device).to(torch.int8).view(shape)


# name -> how codes, scales and the padding of the permuted scales are drawn
_OFFICIAL = {
    GEMV.name: (
        _integers(0, 4, torch.uint8),
        _integers(0, 3, torch.int8),
        _integers(0, 3, torch.int8),
    ),
    GEMM.name: (
        _integers(-128, 128, torch.int8),
        _integers(0, 4, torch.int8),
        _integers(0, 4, torch.int8),
    ),
    DUAL.name: (_small_nibbles, _fractions, _leftovers),
    GROUP.name: (_small_nibbles, _integers(1, 3, torch.int8), _integers(1, 3, torch.int8)),
}


class Official:
    """The leaderboards' values."""

    def __init__(self, problem: str):
        self._codes, self._scales, self._padding = _OFFICIAL[problem]

    def codes(self, operand: Operand, device: str) -> None:
        operand.codes = self._codes(operand.codes_shape, device).view(torch.uint8)

    def scales(self, operand: Operand, device: str) -> None:
        operand.scales = self._scales(operand.scales_shape, device).to(torch.float8_e4m3fn)

    def padding(self, operand: Operand, device: str) -> torch.Tensor:
        return self._padding(operand.stored_shape, device).to(torch.float8_e4m3fn)


class MadeUp:
    """Base of the other kinds: scales are made together with the codes, padding is zero."""

    def __init__(self, problem: str):
        self._spread = SPREAD[problem]

    def scales(self, operand: Operand, device: str) -> None:
        operand.scales = operand.scales.to(device)

    def padding(self, operand: Operand, device: str) -> None:
        return None


class RealValued(MadeUp):
    """bf16 matrices, normal with outliers eight times as large and some zero blocks, quantised."""

    def codes(self, operand: Operand, device: str) -> None:
        rows, k = operand.l * operand.rows, operand.k
        x = torch.randn(rows, k, device=device)
        x *= torch.where(torch.rand(rows, k, device=device) < 0.002, 8.0, 1.0)
        x = x.view(rows, k // BLOCK, BLOCK)
        x *= torch.rand(rows, k // BLOCK, 1, device=device) > 0.01
        x = x.view(rows, k).bfloat16()
        q = quantize_nvfp4(x, self._top(x.float()))
        operand.codes = q.codes.view(torch.uint8).view(operand.codes_shape)
        operand.scales = q.scales.view(operand.scales_shape)

    def _top(self, x: torch.Tensor) -> float:
        """The largest scale of a matrix, by which c gets the standard deviation SPREAD.

        Codes times scales are the matrix times 6 * top / amax, and c is a sum of K products of two
        such numbers: sqrt(K) * (6 * top / amax * rms)^2, solved for top.
        """
        rms = float(x.square().mean().sqrt())
        if rms == 0:
            return 1.0
        return min(
            MAX_UE4M3,
            float(x.abs().max()) / (6 * rms) * math.sqrt(self._spread / math.sqrt(x.shape[1])),
        )


class FullRange(MadeUp):
    """All 16 codes, all 127 scales. The scales of a block of K lie around a random level in a, and
    around the opposite level in b, so that their product, and with it c, keeps its order of
    magnitude.
    """

    WOBBLE = 8  # codes; 8 codes of ue4m3 are a factor of two
    E2M1_MEAN_SQUARE = 8.5625  # of the 16 values

    def __init__(self, problem: str):
        super().__init__(problem)
        self._level: torch.Tensor | None = None

    def codes(self, operand: Operand, device: str) -> None:
        operand.codes = torch.randint(256, operand.codes_shape, dtype=torch.uint8, device=device)
        level = self._levels(operand, device)
        wobble = torch.randint(-self.WOBBLE, self.WOBBLE + 1, operand.scales_shape, device=device)
        scale_codes = (level + wobble).clamp(0, 126)
        self._add_extremes(scale_codes, operand.side)
        operand.scales = scale_codes.to(torch.uint8).view(torch.float8_e4m3fn)

    def _levels(self, operand: Operand, device: str) -> torch.Tensor:
        """The codes around which the scales of a block of K lie, (L, 1, K/16).

        They are random for a. For b, which comes second, they are what is left of a total that
        gives c its spread.
        """
        total = self._total(operand.k)
        if operand.side == "a":
            shape = (operand.l, 1, operand.k // BLOCK)
            self._level = torch.randint(0, total + 1, shape, device=device)
            return self._level
        return total - self._level

    def _total(self, k: int) -> int:
        """Sum of the codes of two scales: a code is about 2^(code / 8 - 7)."""
        product = self._spread / (self.E2M1_MEAN_SQUARE * math.sqrt(k))
        return min(max(round(8 * (math.log2(product) + 14)), 0), 126)

    def _add_extremes(self, codes: torch.Tensor, side: str) -> None:
        """In two blocks of K every eighth row has 448 on one side, and 2^-9 or 0 on the other."""
        high, low = (0, -1) if side == "a" else (-1, 0)
        codes[:, ::8, high] = 126
        codes[:, :, low] = torch.randint_like(codes[:, :, low], 0, 2)


_SOURCES = {"official": Official, "quantized": RealValued, "full": FullRange}


def generate_input(
    problem: str, *, inputs: str = "official", device: str = "cpu", **args: Any
) -> tuple:
    """The `data` of a case of `problem` (see task.input_t), made on `device`.

    args: the case's own keys (task.Problem.keys), seed included; sizes must be legal (cases.check).
    Shapes, strides and dtypes are the leaderboards': (rows, columns, L) with L outermost in memory,
    c fp16.
    """
    if inputs not in _SOURCES:
        raise ValueError(
            f"unknown kind of inputs {inputs!r}: expected one of {', '.join(INPUT_KINDS)}"
        )
    torch.manual_seed(args["seed"])
    source = _SOURCES[inputs](problem)
    if PROBLEMS[problem].grouped:
        return _grouped(source, args["m"], args["n"], args["k"], device)
    m, k, l = args["m"], args["k"], args["l"]
    n = args.get("n", 1)  # columns of c
    rows = GEMV_ROWS if problem == GEMV.name else n  # of a b operand
    num_b = 2 if problem == DUAL.name else 1
    return _flat(source, m, n, (rows,) * num_b, k, l, device)


# The order of the draws below is the leaderboards': codes of all operands, then c, then scales.


def _flat(source: Source, m: int, n: int, b_rows: Shape, k: int, l: int, device: str) -> tuple:
    operands = [Operand("a", l, m, k), *(Operand("b", l, rows, k) for rows in b_rows)]
    for operand in operands:
        source.codes(operand, device)
    c = torch.randn((l, m, n), dtype=torch.float16, device=device).permute(1, 2, 0)
    for operand in operands:
        source.scales(operand, device)
        _permute(source, operand, device)
    return (
        *(_logical(o.codes).view(torch.float4_e2m1fn_x2) for o in operands),
        *(_logical(o.scales) for o in operands),
        *(o.permuted for o in operands),
        c,
    )


def _grouped(source: Source, m: Shape, n: Shape, k: Shape, device: str) -> tuple:
    abc, scales, permuted, sizes = [], [], [], []
    for mi, ni, ki in zip(m, n, k):
        a, b = Operand("a", 1, mi, ki), Operand("b", 1, ni, ki)
        for operand in (a, b):
            source.codes(operand, device)
        c = torch.randn((1, mi, ni), dtype=torch.float16, device=device).permute(1, 2, 0)
        for operand in (a, b):
            source.scales(operand, "cpu")
        for operand in (a, b):
            _permute(source, operand, device)
        abc.append((*(_logical(o.codes).view(torch.float4_e2m1fn_x2) for o in (a, b)), c))
        scales.append((_logical(a.scales), _logical(b.scales)))
        permuted.append((a.permuted, b.permuted))
        sizes.append((mi, ni, ki, 1))
    return abc, scales, permuted, sizes


def _permute(source: Source, operand: Operand, device: str) -> None:
    padding = source.padding(operand, device)
    operand.permuted = permute_scales(_logical(operand.scales).to(device), padding)


def _logical(stored: torch.Tensor) -> torch.Tensor:
    """(L, rows, columns) in memory -> (rows, columns, L)."""
    return stored.permute(1, 2, 0)


def ref_kernel(data: tuple) -> torch.Tensor | list[torch.Tensor]:
    """The right answer to `data`, as new fp16 tensors of c's shape and strides."""
    if isinstance(data[0], list):
        abc, scales, _, _ = data
        return [_gemm(a, b, sfa, sfb, c) for (a, b, c), (sfa, sfb) in zip(abc, scales)]
    if len(data) == 10:
        return _dual(*data[:6], data[9])
    a, b, sfa, sfb, _, _, c = data
    return _gemm(a, b, sfa, sfb, c)


def check_implementation(data: tuple, output: Any) -> tuple[bool, str]:
    """Hold `output` against the reference, rtol = atol = 1e-3. Returns (right, what is wrong).

    Right values in another type come with a note: the boards compare values of any type
    (verbose_allclose of gpu-mode/reference-kernels f83cb92, problems/nvidia/utils.py).
    """
    like = [c for _, _, c in data[0]] if isinstance(data[0], list) else data[-1]
    wrong = _wrong_form(output, like)
    if wrong:
        return False, wrong
    expected = ref_kernel(data)
    if not isinstance(expected, list):
        report = compare(output, expected, RTOL, ATOL)
        return not report, report or _other_type(output, like)
    for index, (got, want) in enumerate(zip(output, expected)):
        report = compare(got, want, RTOL, ATOL)
        if report:
            return False, f"group {index} of {len(expected)}: {report}"
    return True, next(filter(None, map(_other_type, output, like)), "")


def _wrong_form(output: Any, like: torch.Tensor | list[torch.Tensor]) -> str:
    """What is wrong with the output's kind, number, shape, dtype or device; empty if nothing."""
    if not isinstance(like, list):
        return _wrong_tensor(output, like)
    is_list = isinstance(output, (list, tuple))
    if not is_list or len(output) != len(like):
        got = f"{len(output)} items" if is_list else type(output).__name__
        return f"custom_kernel must return a list of {len(like)} tensors, one a group; got {got}"
    for group, (got, c) in enumerate(zip(output, like)):
        wrong = _wrong_tensor(got, c)
        if wrong:
            return f"group {group}: {wrong}"
    return ""


def _wrong_tensor(output: Any, like: torch.Tensor) -> str:
    if not isinstance(output, torch.Tensor):
        return f"custom_kernel must return a tensor; got {type(output).__name__}"
    for what in ("shape", "dtype", "device"):
        got, expected = getattr(output, what), getattr(like, what)
        if got != expected and got not in TAKEN:
            pretty = (tuple(v) if isinstance(v, torch.Size) else v for v in (expected, got))
            return "c must have {} {}; got {}".format(what, *pretty)
    return ""


def _other_type(output: torch.Tensor, like: torch.Tensor) -> str:
    if output.dtype == like.dtype:
        return ""
    asked, got = (str(dtype).removeprefix("torch.") for dtype in (like.dtype, output.dtype))
    return f"right; the board's harness takes it, task.py's type is {asked}: c is {got}"


def _gemm(
    a: torch.Tensor, b: torch.Tensor, sfa: torch.Tensor, sfb: torch.Tensor, c: torch.Tensor
) -> torch.Tensor:
    """a @ b^T in fp16. Only the first N rows of b count: gemv, with N 1, pads b to 128."""
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
    n: int,
    dtype: torch.dtype,
) -> Iterator[torch.Tensor]:
    """For each batch, a @ b^T (M, N): of `dtype` where the GPU does it, float64 elsewhere."""
    scaled_mm = a.is_cuda and torch.cuda.get_device_capability(a.device)[0] == 10
    if not scaled_mm:
        b, sfb = b[:n], sfb[:n]
    for batch in range(a.shape[2]):
        operands = [t[:, :, batch] for t in (a, b, sfa, sfb)]
        yield _scaled_mm(*operands, dtype)[:, :n] if scaled_mm else exact_product(*operands)


def _scaled_mm(
    a: torch.Tensor, b: torch.Tensor, sfa: torch.Tensor, sfb: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    """The public method; b is padded to whole atoms, since cuBLAS wants N to divide by 16."""
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
