"""NVFP4: e2m1 codes in pairs, a ue4m3 scale for every 16 of them along K, an fp32 scale for the
whole tensor.

Independent of the emulator's own tables, so that one can catch the other. Works on the tensor's
device.

Codes are (rows, K/2, L), element 2i in the low nibble; scales are (rows, K/16, L). The tensor cores
read the scales in atoms of 128 rows x 4 scales, 512 bytes: shape (32, 4, ceil(rows/128), 4,
ceil(K/64), L), stored as (L, rows/128, K/64, 32, 4, 4) (cuBLAS documentation, "1D block scaling
factors layout").
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

BLOCK = 16  # elements that share a scale
ATOM_ROWS, ATOM_SCALES = 128, 4
MAX_E2M1, MAX_UE4M3 = 6.0, 448.0
MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # of code & 7; bit 3 is the sign

_NIBBLE = np.array([*MAGNITUDES, *(-v for v in MAGNITUDES)], np.float32)
_BYTE = np.stack([_NIBBLE[np.arange(256) & 15], _NIBBLE[np.arange(256) >> 4]], axis=1)

# Half way between neighbouring magnitudes. A tie goes to the even code: up where the upper code is
# even.
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
    # One 8-byte gather for both elements: numpy's take is 20 times as fast as an index into a (256,
    # 2) tensor.
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
    grid = padding.view(torch.uint8).permute(
        0, 1, 4, 3, 2, 5
    )  # L, row atom, row / 32, row % 32, K atom, scale
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
