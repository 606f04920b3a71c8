"""What a kernel of any problem may have done wrong: to an input, in which case the reference of
other inputs has its output, or to the output.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from utils import bits_of

STEPS = (1, 2, 4, 8, 16, 32, 64, 128, 256)  # rows or columns of a slip, of a tile
# Powers of two; the largest e2m1 and e4m3 numbers; the bases of exp and exp2.
FACTORS = (2, 4, 8, 16, 32, 6, 448, 6 * 448, math.log2(math.e))
ROUNDINGS = (torch.bfloat16, torch.float16)
Changed = Iterator[tuple[str, torch.Tensor]]


def of_inputs(data: tuple[Any, ...], names: Sequence[str]) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Inputs that a kernel may have read in their place, with what it did then."""
    tensors = [i for i, x in enumerate(data) if isinstance(x, torch.Tensor)]
    for n, i in enumerate(tensors):
        for j in tensors[n + 1 :]:
            if (data[i].shape, data[i].dtype) == (data[j].shape, data[j].dtype):
                other = list(data)
                other[i], other[j] = data[j], data[i]
                yield f"{names[i]} and {names[j]} are exchanged", tuple(other)
    for i in tensors:
        for text, changed in of_input(data[i], names[i]):
            yield text, (*data[:i], changed, *data[i + 1 :])


def of_input(x: torch.Tensor, name: str) -> Changed:
    """What may be read in the place of a tensor."""
    if x.dtype.is_floating_point and x.element_size() == 1:  # torch has few operations for these
        for text, changed in of_input(x.view(torch.uint8), name):
            yield text, changed.view(x.dtype)
        return
    yield f"{name} is not read: zeros stand for it", torch.zeros_like(x)
    if x.dtype.is_floating_point and x.element_size() > 1:
        yield f"{name} is not read: ones stand for it", torch.ones_like(x)
    if x.dtype == torch.uint8:
        yield f"the two halves of the bytes of {name} are exchanged", x >> 4 | x << 4
    for kind in ROUNDINGS:
        if x.dtype in (torch.float32, torch.float64):
            rounded = x.to(kind).to(x.dtype)
            yield f"{name} is rounded to {str(kind).partition('.')[2]} first", rounded
    for axis, what in _axes(x):
        size = x.shape[axis]
        for step in (s for s in STEPS if s < size):
            for by in (step, -step):
                there = (torch.arange(size) + by).clamp(0, size - 1)
                text = f"{name} is read {abs(by)} {what} {'on' if by > 0 else 'back'}"
                yield text, _at(x, axis, there)
            rest = size % step or step
            if rest < size:
                kept = torch.arange(size) < size - rest
                shape = [size if a == axis else 1 for a in range(x.dim())]
                text = f"the last {rest} {what} of {name} are dropped"
                yield text, _times(x, kept.view(shape))
        for step in (s for s in STEPS[1:] if s < size):
            again = torch.arange(size) % step
            text = f"the first {step} {what} of {name} are read for each {step}"
            yield text, _at(x, axis, again)
        if size % 2 == 0:
            text = f"neighbouring {what} of {name} are exchanged in pairs"
            yield text, _at(x, axis, torch.arange(size) ^ 1)
        for step in (s for s in STEPS[1:] if size % (2 * s) == 0):
            text = f"groups of {step} {what} of {name} are exchanged in pairs"
            yield text, _at(x, axis, torch.arange(size) ^ step)
        text = f"the first of the {what} of {name} is read for all"
        yield text, _at(x, axis, torch.zeros(size, dtype=torch.int64))
    if x.dim() >= 2 and x.shape[-1] == x.shape[-2]:
        yield f"{name} is read transposed", x.transpose(-1, -2).contiguous()
    yield from _swizzled(x, name)


def _swizzled(x: torch.Tensor, name: str) -> Changed:
    """What is read where only one of fill and reader has a swizzle: the chunk of 16 bytes xor the
    row, in rows of the swizzle's width (PTX ISA, swizzling modes).
    """
    chunk = 16 // x.element_size()
    for span in (32, 64, 128):
        chunks = span // 16
        if x.dim() < 2 or x.shape[-1] % (chunk * chunks):
            continue
        row = torch.arange(x.shape[-2])[:, None] * chunks // 8 % chunks
        column = (torch.arange(x.shape[-1]) ^ row * chunk).expand(x.shape)
        yield (
            f"{name} is read with a swizzle of {span} bytes that its fill has not",
            x.gather(-1, column),
        )


def of_output(want: torch.Tensor, name: str) -> Changed:
    """What may be stored in the place of a right value."""
    yield f"{name} is negated", -want
    for factor in FACTORS:
        yield f"{name} is {factor:.5g} times too large", want * factor
        yield f"{name} is {factor:.5g} times too small", want / factor
    if want.dim() >= 1 and want.shape[-1] % 2 == 0:
        pairs = want.reshape(*want.shape[:-1], -1, 2).flip(-1).reshape(want.shape)
        yield f"neighbours of {name} are exchanged in pairs (nibbles of a byte)", pairs
    if want.dim() >= 2 and want.shape[-1] == want.shape[-2]:
        yield f"{name} is transposed", want.transpose(-1, -2)
    yield f"{name} is clamped to be positive (relu)", want.clamp(min=0)
    yield f"{name} is its exponent: a logarithm is missing", want.exp()
    yield f"{name} is squared: a square root is missing", want * want
    yield f"the square root of {name} is taken", want.clamp(min=0).sqrt()


def of_lines(got: torch.Tensor, want: torch.Tensor, near: float) -> list[str]:
    """What rows or columns of a matrix have in common: a factor or an offset a line. got, want:
    float64 [rows, columns]. near: the relative error of a factor, and of an offset beside `want`.
    """
    found: list[str] = []
    for axis, what in ((1, "row"), (0, "column")):
        if want.shape[axis] < 4:
            continue
        scale = want.abs().amax().clamp(min=1e-30)
        use = want.abs() > 1e-3 * scale
        ratio = torch.where(use, got / torch.where(use, want, 1.0), torch.nan)
        middle = ratio.nanmedian(axis, keepdim=True).values
        if bool(use.any()) and _alike(got, want * middle, near, scale) and _varies(middle, near):
            found.append(
                f"each {what} is wrong by a factor of its own (a sum, a maximum or a scale of the"
                f" {what})"
            )
        offset = (got - want).median(axis, keepdim=True).values
        if _alike(got, want + offset, near, scale) and _varies(offset / scale, near):
            found.append(
                f"each {what} is wrong by an offset of its own (a mean, a maximum or a bias of the"
                f" {what})"
            )
    return found


def _alike(got: torch.Tensor, other: torch.Tensor, near: float, scale: torch.Tensor) -> bool:
    error = (got - other).abs() <= near * (other.abs() + scale)
    return bool(error.all())


def _varies(of_lines: torch.Tensor, near: float) -> bool:
    """Whether lines differ: one factor for all is another mistake."""
    finite = of_lines[of_lines.isfinite()]
    return finite.numel() > 1 and bool(finite.max() - finite.min() > 10 * near)


def _axes(x: torch.Tensor) -> list[tuple[int, str]]:
    if x.dim() == 0:
        return []
    if x.dim() == 1:
        return [(0, "elements")]
    return [(x.dim() - 2, "rows"), (x.dim() - 1, "columns")]


def _at(x: torch.Tensor, axis: int, index: torch.Tensor) -> torch.Tensor:
    """x.index_select, for dtypes that torch copies only."""
    return bits_of(x).index_select(axis, index).view(x.dtype)


def _times(x: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
    """x where it is kept, else zero."""
    bits = bits_of(x)
    return torch.where(kept, bits, torch.zeros((), dtype=bits.dtype)).view(x.dtype)
