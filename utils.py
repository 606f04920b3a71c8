"""What the reference and the harness share: NVFP4 and its exact product, seeding, cloning, clearing
the L2, mismatches.

It also has the names that submissions import from the leaderboards' `utils`: make_match_reference,
match_reference, verbose_allclose, verbose_allequal, set_seed, get_device, clear_l2_cache and
clear_l2_cache_large.

NVFP4: e2m1 codes in pairs, a ue4m3 scale for every 16 of them along K, an fp32 scale for the whole
tensor. Codes are (rows, K/2, L), element 2i in the low nibble; scales are (rows, K/16, L). The
tensor cores read the scales in atoms of 128 rows x 4 scales, 512 bytes: shape (32, 4,
ceil(rows/128), 4, ceil(K/64), L), stored as (L, rows/128, K/64, 32, 4, 4) (cuBLAS documentation,
"1D block scaling factors layout"). Independent of the emulator's own tables, so that one can catch
the other. Works on the tensor's device.
"""

from __future__ import annotations

import functools
import itertools
import operator
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

TILE = 128  # rows and columns of a tile in the mismatch report: the rows of one MMA
MAP_TILES = 48  # widest and highest map printed
FIRST = 5  # mismatches quoted

BLOCK = 16  # elements that share a scale
ATOM_ROWS, ATOM_SCALES = 128, 4
MAX_E2M1, MAX_UE4M3 = 6.0, 448.0
MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # of code & 7; bit 3 is the sign

# Rows dequantised at a time. It bounds the memory; for larger blocks malloc asks the system for
# fresh pages each time, which costs more than the arithmetic.
ROWS_AT_ONCE = 256
LIMB_BITS = 7  # a limb is in [-64, 63], so that a CPU without VNNI can add two products in 16 bits
BASE, HALF = 1 << LIMB_BITS, 1 << LIMB_BITS - 1
LARGEST = HALF - 1, (HALF - 1) * (1 + BASE)  # of a number of one limb, of two

_NIBBLE = np.array([*MAGNITUDES, *(-v for v in MAGNITUDES)], np.float32)
_BYTE = np.stack([_NIBBLE[np.arange(256) & 15], _NIBBLE[np.arange(256) >> 4]], axis=1)

# Half way between neighbouring magnitudes. A tie goes to the even code.
_HALF_WAY = tuple((a + b) / 2 for a, b in zip(MAGNITUDES, MAGNITUDES[1:]))


def dequantize(
    codes: torch.Tensor, scales: torch.Tensor, tensor_scale: float = 1.0
) -> torch.Tensor:
    """The values of one matrix: codes (rows, K/2), scales (rows, K/16) -> fp32 (rows, K).

    Exact for tensor_scale 1: a value has at most 6 significant bits.
    """
    rows, pairs = codes.shape
    values = _unpack(codes.view(torch.uint8).contiguous()).view(rows, pairs * 2 // BLOCK, BLOCK)
    values *= scales.float().unsqueeze(2)
    if tensor_scale != 1.0:
        values *= tensor_scale
    return values.view(rows, pairs * 2)


def _unpack(codes: torch.Tensor) -> torch.Tensor:
    """(rows, K/2) bytes -> (rows, K/2, 2) fp32."""
    if codes.is_cuda:
        return torch.from_numpy(_BYTE).to(codes.device)[codes.int()]
    # One 8-byte gather for both elements: much faster than an index into a (256, 2) tensor.
    pairs = np.take(_BYTE.view(np.int64).ravel(), codes.numpy())
    return torch.from_numpy(pairs.view(np.float32))


def permute_scales(scales: torch.Tensor, padding: torch.Tensor | None = None) -> torch.Tensor:
    """Scales (rows, K/16, L) -> (32, 4, ceil(rows/128), 4, ceil(K/64), L), stored as (L, rows/128,
    K/64, 32, 4, 4).

    padding: what stands where there is no row or no scale, of the stored shape; zeros if None.
    """
    rows, columns, batches = scales.shape
    row_atoms, column_atoms = -(-rows // ATOM_ROWS), -(-columns // ATOM_SCALES)
    stored = (batches, row_atoms, column_atoms, 32, 4, ATOM_SCALES)
    if padding is None:
        padding = torch.zeros(stored, dtype=torch.uint8, device=scales.device)
    # To (L, row atom, row / 32, row % 32, K atom, scale), which reads as rows x scales.
    grid = padding.view(torch.uint8).permute(0, 1, 4, 3, 2, 5)
    grid = grid.reshape(batches, row_atoms * ATOM_ROWS, column_atoms * ATOM_SCALES).clone()
    grid[:, :rows, :columns] = scales.view(torch.uint8).permute(2, 0, 1)
    atoms = (
        grid.view(batches, row_atoms, 4, 32, column_atoms, ATOM_SCALES)
        .permute(0, 1, 4, 3, 2, 5)
        .contiguous()
    )
    return atoms.view(torch.float8_e4m3fn).permute(3, 4, 1, 5, 2, 0)


@dataclass(frozen=True)
class Quantized:
    """One matrix in NVFP4: value = tensor_scale * scale of the block * e2m1.

    codes: float4_e2m1fn_x2 (rows, K/2). scales: float8_e4m3fn (rows, K/16). scales_permuted:
    float8_e4m3fn (32, 4, ceil(rows/128), 4, ceil(K/64), 1).
    """

    codes: torch.Tensor
    scales: torch.Tensor
    scales_permuted: torch.Tensor
    tensor_scale: float

    def dequantize(self) -> torch.Tensor:
        """fp32 (rows, K)."""
        return dequantize(self.codes, self.scales, self.tensor_scale)


def quantize_nvfp4(x: torch.Tensor, top: float = MAX_UE4M3) -> Quantized:
    """Quantise a real matrix (rows, K), K a multiple of 16, with two levels of scales.

    The tensor's scale is amax / (6 * top): the block with the largest element gets the scale `top`,
    448 as a rule. (The four kernels write fp16 and know no tensor scale, so a test takes a smaller
    top to keep c finite.) A block's scale, an fp32 quotient, is rounded to ue4m3 first. Its
    elements are divided by the rounded scale, then rounded to e2m1, to nearest even, saturating. A
    block whose scale rounds to zero becomes zeros. Raises ValueError for a shape or values that
    cannot be quantised.
    """
    if x.dim() != 2 or x.shape[1] % BLOCK or not x.numel():
        raise ValueError(
            f"quantize_nvfp4 takes a matrix (rows, K) with K a multiple of {BLOCK}, not"
            f" {tuple(x.shape)}"
        )
    if not 0 < top <= MAX_UE4M3:
        raise ValueError(f"top is a ue4m3 scale, in (0, {MAX_UE4M3:g}], not {top}")
    if not bool(torch.isfinite(x).all()):
        raise ValueError("quantize_nvfp4 takes finite values")
    rows, columns = x.shape
    blocks = x.double().view(rows, columns // BLOCK, BLOCK)
    amax = float(blocks.abs().max())
    # Kept as fp32, and positive also where the quotient is below fp32's range.
    tensor_scale = (
        max(float(np.float32(amax / (MAX_E2M1 * top))), float(np.finfo(np.float32).tiny))
        if amax
        else 1.0
    )
    wanted = blocks.abs().amax(2) / (MAX_E2M1 * tensor_scale)
    scales = wanted.clamp(max=MAX_UE4M3).float().to(torch.float8_e4m3fn)
    step = scales.double().unsqueeze(2) * tensor_scale
    quotient = torch.where(step > 0, blocks / step, torch.zeros_like(blocks))
    codes = _round_e2m1(quotient).view(rows, columns)
    packed = (codes[:, ::2] | (codes[:, 1::2] << 4)).view(torch.float4_e2m1fn_x2)
    return Quantized(packed, scales, permute_scales(scales.unsqueeze(2)), tensor_scale)


def _round_e2m1(x: torch.Tensor) -> torch.Tensor:
    """The e2m1 codes (uint8) nearest to x, ties to even, saturating at 6; -0 keeps its sign."""
    magnitude = x.abs()
    codes = torch.signbit(x).to(torch.uint8) << 3
    for upper, half_way in enumerate(_HALF_WAY, start=1):
        codes += (magnitude > half_way) if upper % 2 else (magnitude >= half_way)
    return codes


def pack_gemm(a: Quantized, b: Quantized) -> tuple:
    """The data of nvfp4_gemm for two quantised matrices, a (M, K) and b (N, K).

    c times both tensor scales is the product of the real matrices, as well as NVFP4 can tell.
    """
    m, n = len(a.codes), len(b.codes)
    c = torch.zeros(1, m, n, dtype=torch.float16, device=a.codes.device)
    both = (a, b)
    return (
        *(q.codes.unsqueeze(2) for q in both),
        *(q.scales.unsqueeze(2) for q in both),
        *(q.scales_permuted for q in both),
        c.permute(1, 2, 0),
    )


class Limbs(NamedTuple):
    """How a matrix is written in int8: an element is `unit` times a number of `count` limbs."""

    unit: float
    count: int


def exact_product(
    a: torch.Tensor, b: torch.Tensor, sfa: torch.Tensor, sfb: torch.Tensor
) -> torch.Tensor:
    """a @ b^T, float64 (M, N). a, b: codes (M, K/2), (N, K/2). sfa, sfb: scales (rows, K/16).

    A dequantised element has at most 6 significant bits (2 of e2m1, 4 of ue4m3), a product of two
    at most 12, which leaves float64 41 bits for the spread of the exponents and the sum. So the sum
    of the leaderboards' inputs is exact in any order, any other is rounded far below fp16. On an
    x86 CPU int8 has the same sums in an eighth of the time, where few limbs make an element.

    The operand with fewer rows is kept dequantised as a whole, to bound the memory.
    """
    if len(a) < len(b):
        return exact_product(b, a, sfb, sfa).T
    kept = torch.cat(list(_blocks(b, sfb)))
    form_a, form_b = limbs_of(sfa), limbs_of(sfb)
    in_int8 = form_a and form_b and multiplies_int8(kept)
    if not in_int8:
        form_a = form_b = None
    multiply = torch._int_mm if in_int8 else torch.mm
    parts_b = _parts(kept, form_b)
    out = torch.zeros(len(a), len(b), dtype=torch.float64, device=kept.device)
    for block, rows in zip(_blocks(a, sfa), out.split(ROWS_AT_ONCE)):
        for (x, unit_x), (y, unit_y) in itertools.product(_parts(block, form_a), parts_b):
            rows.add_(multiply(x, y.T), alpha=unit_x * unit_y)
    return out


def _blocks(codes: torch.Tensor, scales: torch.Tensor) -> Iterator[torch.Tensor]:
    """The dequantised matrix in float32, which is exact, some rows at a time."""
    scales = scales.to(codes.device)
    for rows, row_scales in zip(codes.split(ROWS_AT_ONCE), scales.split(ROWS_AT_ONCE)):
        yield dequantize(rows, row_scales)


def multiplies_int8(matrix: torch.Tensor) -> bool:
    """Whether torch._int_mm is there and oneDNN's for x86, which elsewhere may be a loop, and int32
    holds the sums along K.
    """
    x86 = torch.backends.cpu.get_cpu_capability().startswith("AVX")
    onednn = torch.backends.mkldnn.is_available() and hasattr(torch, "_int_mm")
    fast = x86 and onednn and not matrix.is_cuda
    return fast and matrix.shape[1] * HALF**2 < 2**31


def limbs_of(scales: torch.Tensor) -> Limbs | None:
    """How an operand with these scales is written in int8; None if two limbs are too few."""
    used = torch.bincount(scales.reshape(-1).view(torch.uint8), minlength=256).nonzero()
    in_512ths = 2**9 * used.to(torch.uint8).view(torch.float8_e4m3fn).double()  # of ue4m3: whole
    if not bool(in_512ths.isfinite().all()):
        return None
    sizes = [int(size) for size in in_512ths.abs().flatten()]
    bits = functools.reduce(operator.or_, sizes)
    step = (bits & -bits) or 1  # the largest power of two of which all are multiples
    largest = max(sizes) // step * round(2 * MAX_E2M1)  # e2m1 is a multiple of 1/2
    counts = (count for count, most in enumerate(LARGEST, start=1) if largest <= most)
    count = next(counts, None)
    return Limbs(step / 2**10, count) if count else None


def _parts(matrix: torch.Tensor, form: Limbs | None) -> list[tuple[torch.Tensor, float]]:
    """What adds up to a matrix, each times its unit: its limbs in int8, or itself in float64."""
    if form is None:
        return [(matrix.double(), 1.0)]
    rest = (matrix / form.unit).to(torch.int16)
    if form.count == 1:
        return [(rest.to(torch.int8), form.unit)]
    low = ((rest + HALF) & (BASE - 1)) - HALF
    high = (rest - low) >> LIMB_BITS
    return [(low.to(torch.int8), form.unit), (high.to(torch.int8), form.unit * BASE)]


def set_seed(seed: int = 42) -> None:
    """Seed every random generator a run may use."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def clone_data(data: Any) -> Any:
    """A deep copy of tuples, lists and tensors; strides of permuted tensors are kept."""
    if isinstance(data, torch.Tensor):
        if data.dtype == torch.float4_e2m1fn_x2:  # torch 2.9 copies none on a CPU
            return data.view(torch.uint8).clone().view(data.dtype)
        return data.clone()
    if isinstance(data, (list, tuple)):
        return type(data)(clone_data(item) for item in data)
    return data


def tensors_of(data: Any) -> list[torch.Tensor]:
    """The tensors in nested tuples and lists, in order."""
    if isinstance(data, (list, tuple)):
        return [found for item in data for found in tensors_of(item)]
    return [data] if isinstance(data, torch.Tensor) else []


def bits_of(x: torch.Tensor) -> torch.Tensor:
    """A tensor's elements as integers: of every dtype, with all that torch does for those."""
    kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return x.view(kinds[x.element_size()])


def outputs_of(data: tuple) -> list[torch.Tensor]:
    """The tensors c of a case's data, one a group."""
    return [c for _, _, c in data[0]] if isinstance(data[0], list) else [data[-1]]


def get_device(use_cuda: bool = True) -> torch.device:
    """The GPU if there is one and it is wanted, else the CPU."""
    return torch.device("cuda" if use_cuda and torch.cuda.is_available() else "cpu")


def clear_l2_cache(gib: float = 4) -> None:
    """Clear the L2: write `gib` GiB of normal random numbers, while the host runs ahead.

    The leaderboards write 4 GiB (gemv) or 62.5 GiB (the others); less where the GPU has less free
    memory.
    """
    free, _ = torch.cuda.mem_get_info()
    numbers = int(min(gib * 2**30, 0.9 * free)) // 4
    torch.randn(numbers, device="cuda")


def clear_l2_cache_large() -> None:
    """As the leaderboards of gemm, dual and group do it."""
    clear_l2_cache(62.5)


def verbose_allclose(
    received: torch.Tensor,
    expected: torch.Tensor,
    rtol: float = 1e-5,
    atol: float = 1e-8,
    max_print: int = FIRST,
) -> list[str]:
    """Lines on where `received` differs from `expected`, as the leaderboards' function gives them;
    empty where it does not. Tensors of one shape, of any rank.
    """
    if received.shape != expected.shape:
        return [
            "SIZE MISMATCH",
            f"received {tuple(received.shape)}, {tuple(expected.shape)} expected",
        ]
    got, want = received.float(), expected.float()
    close = (got == want) | ((got - want).abs() <= atol + rtol * want.abs())
    close |= torch.isnan(got) & torch.isnan(want)
    return _listed(got, want, ~close, max_print)


def verbose_allequal(
    received: torch.Tensor, expected: torch.Tensor, max_print: int = FIRST
) -> list[str]:
    """As verbose_allclose, for equality."""
    return _listed(received, expected, received != expected, max_print)


def _listed(got: torch.Tensor, want: torch.Tensor, bad: torch.Tensor, most: int) -> list[str]:
    count = int(bad.sum())
    if not count:
        return []
    places = bad.nonzero()[:most].tolist()
    quotes = [f"ERROR AT {tuple(p)}: {got[tuple(p)]} {want[tuple(p)]}" for p in places]
    more = [f"... and {count - most} more mismatched elements."] if count > most else []
    return [f"Number of mismatched elements: {count}", *quotes, *more]


def match_reference(
    data: Any, output: Any, reference: Any, rtol: float = 1e-5, atol: float = 1e-8
) -> tuple[bool, str]:
    """(right, what is wrong) of `output` against reference(data)."""
    lines = verbose_allclose(output, reference(data), rtol=rtol, atol=atol)
    if not lines:
        return True, ""
    return False, (
        "mismatch found! custom implementation doesn't match reference: " + " ".join(lines)
    )


def make_match_reference(reference: Any, **tolerances: float) -> Any:
    """check_implementation(data, output) against `reference`."""
    return lambda data, output: match_reference(data, output, reference, **tolerances)


def compare(received: torch.Tensor, expected: torch.Tensor, rtol: float, atol: float) -> str:
    """Where and how `received` differs from `expected`; empty where it does not.

    Both are (M, N, L) tensors of one shape. An element differs if |received - expected| > atol +
    rtol * |expected|, in fp32, or if one of them is NaN or an infinity that the other is not: the
    leaderboards' criterion.
    """
    unequal = received != expected  # seldom, but a NaN always is
    if not bool(_differs(received[unequal], expected[unequal], rtol, atol).any()):
        return ""
    bad = _differs(received, expected, rtol, atol)
    got, want = received.float(), expected.float()
    error = (got - want).abs()
    where = bad.nonzero().cpu()
    count, share = f"{len(where):,} of {bad.numel():,}", percent(len(where), bad.numel())
    lines = [
        f"{count} elements differ ({share}), rtol {rtol:g}, atol {atol:g}",
        *_worst(got, want, error, bad),
        _extent(where),
        *_nature(got[bad], want[bad]),
        *_tile_map(bad),
        *(_quote(got, want, index) for index in where[:FIRST].tolist()),
    ]
    return "\n".join(lines)


def _differs(
    received: torch.Tensor, expected: torch.Tensor, rtol: float, atol: float
) -> torch.Tensor:
    """Which elements differ."""
    got, want = received.float(), expected.float()
    bad = (got - want).abs() > atol + rtol * want.abs()
    bad |= torch.isnan(got) != torch.isnan(want)
    bad |= (torch.isinf(got) | torch.isinf(want)) & (got != want)
    return bad


def percent(part: int, whole: int) -> str:
    """A share in words, with three digits: "25 %"; "100 %" only if it is all."""
    share = 100 * part / whole
    return f"{share if part == whole else min(share, 99.9):.3g} %"


def _quote(got: torch.Tensor, want: torch.Tensor, index: list[int]) -> str:
    at = tuple(index)
    return f"c[{', '.join(map(str, at))}]: got {got[at].item():g}, expected {want[at].item():g}"


def _worst(
    got: torch.Tensor, want: torch.Tensor, error: torch.Tensor, bad: torch.Tensor
) -> list[str]:
    """The largest error that is a number; nothing where no element that differs has one."""
    finite = torch.where(bad & torch.isfinite(error), error, torch.zeros_like(error)).contiguous()
    flat = int(finite.argmax())
    worst = finite.view(-1)[flat].item()
    at = [int(i) for i in np.unravel_index(flat, tuple(finite.shape))]
    return [f"worst finite error {worst:g} at {_quote(got, want, at)}"] if worst else []


def _extent(where: torch.Tensor) -> str:
    low, high = where.min(0).values.tolist(), where.max(0).values.tolist()
    axes = ("rows", "columns", "batches")
    return "within " + ", ".join(f"{axis} {a}..{b}" for axis, a, b in zip(axes, low, high))


def _nature(got: torch.Tensor, want: torch.Tensor) -> list[str]:
    """What is telling of the wrong values: NaN and infinities, and zeros and values of the wrong
    sign if they are more than a few by chance.
    """
    kinds = {
        "zero": got == 0,
        "NaN": torch.isnan(got),
        "infinite": torch.isinf(got),
        "the negative of what was expected": (got == -want) & (want != 0),
    }
    counts = ((name, int(hit.sum())) for name, hit in kinds.items())
    by_chance = len(got) // 100
    return [
        f"{count:,} of them {'is' if count == 1 else 'are'} {name}"
        for name, count in counts
        if count > (0 if name in ("NaN", "infinite") else by_chance)
    ]


def _tile_map(bad: torch.Tensor) -> list[str]:
    """A character for each tile of 128 x 128 of the first batch that differs: `.` right, `+`
    partly, `#` all wrong.
    """
    batch = int(bad.any(0).any(0).nonzero()[0])
    plane = bad[:, :, batch].float()
    if max(plane.shape) <= TILE:
        return []
    wrong = _sum_of_tiles(plane).cpu()
    elements = _sum_of_tiles(torch.ones_like(plane)).cpu()
    rows, columns = wrong.shape
    symbols = torch.where(wrong == 0, 0, torch.where(wrong == elements, 2, 1))
    drawn = symbols[:MAP_TILES, :MAP_TILES].tolist()
    picture = ["".join(".+#"[symbol] for symbol in line) for line in drawn]
    cut = " (cut)" if max(rows, columns) > MAP_TILES else ""
    tiles = (
        f"{int((wrong > 0).sum())} of {rows * columns} tiles of {TILE} x {TILE} differ in batch"
        f" {batch}{cut}:"
    )
    return [tiles, *("  " + line for line in picture)]


def _sum_of_tiles(plane: torch.Tensor) -> torch.Tensor:
    """Of each tile of TILE x TILE elements, those at the edges being smaller."""
    rows, columns = (-(-size // TILE) for size in plane.shape)
    padded = torch.zeros(rows * TILE, columns * TILE, device=plane.device)
    padded[: plane.shape[0], : plane.shape[1]] = plane
    return padded.view(rows, TILE, columns, TILE).sum((1, 3))
