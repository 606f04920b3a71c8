"""Places of the elements of a TMA box in global and in shared memory, and the copy between them.

A box in shared memory is row-major, dimension 0 fastest; a row is `box[0]` elements and takes the
span of the swizzle mode. The swizzle then exchanges address bits of the absolute shared-memory
address (PTX ISA 5.5.7). Element-wise rules (bounds, fill, traversal strides, padding): PTX ISA 5.5.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from b200.chip.copies.tensormap import TensorMap
from b200.chip.global_memory import Region
from b200.chip.memory.reductions import Combine
from b200.errors import Fault

PATTERN = 1024  # bytes after which every swizzle pattern repeats
NAN_FILL = 0x7FF7  # every 16 bits of an element read out of bounds (measured on H200)
TF32_NAN = 0x7FFFE000
# 16 bytes, and 8 where the swizzle exchanges halves of 16; moved as bits, the types mean nothing.
CHUNK, HALF_CHUNK = np.dtype(np.complex128), np.dtype(np.uint64)


def swizzle(address: np.ndarray, mode: int, atomicity: int = 0) -> Any:
    """Shared-memory address of a byte of a box whose linear address is `address`, an int or array.

    mode: 0 none, 1 32B, 2 64B, 3 128B; atomicity, of 128B only: 0 16B, 1 32B, 2 32B with 8B flip
    (taken to flip in odd 128-byte lines), 3 64B.
    """
    line = address >> 7
    if mode == 0:
        return address
    if mode < 3:
        return address ^ (line & (1, 3)[mode - 1]) << 4
    if atomicity == 0:
        return address ^ (line & 7) << 4
    if atomicity == 3:
        return address ^ (line & 1) << 6
    return address ^ (line & 3) << 5 ^ (line & (atomicity == 2)) << 3


@lru_cache(maxsize=1024)
def _chunks(rows: int, row_bytes: int, pitch: int, mode: int, atomicity: int, phase: int):
    """Chunk type, and index of each chunk of a box, from `phase` bytes before its start."""
    dtype = HALF_CHUNK if mode == 3 and atomicity == 2 else CHUNK
    size = dtype.itemsize
    linear = phase + np.arange(rows)[:, None] * pitch + np.arange(0, row_bytes, size)
    index = swizzle(linear, mode, atomicity) // size
    index.flags.writeable = False
    return dtype, index


def _swizzled(t: TensorMap, smem: Region, at: int, rows: int):
    """Shared memory as chunks, and the index [rows, chunks a row] of the box at offset `at`."""
    phase = at % PATTERN
    dtype, index = _chunks(rows, t.smem_row_bytes, t.pitch, t.swizzle, t.atomicity, phase)
    return smem.u8[at - phase :].view(dtype), index


def put_shared(t: TensorMap, smem: Region, at: int, data: np.ndarray) -> None:
    """Write box rows `data` (uint8 [rows, smem_row_bytes], contiguous) at offset `at`."""
    if t.swizzle:
        chunks, index = _swizzled(t, smem, at, len(data))
        chunks[index] = data.view(chunks.dtype)
    else:
        smem.u8[at : at + data.size] = data.reshape(-1)


def get_shared(t: TensorMap, smem: Region, at: int, rows: int) -> np.ndarray:
    """The inverse of `put_shared`: uint8 [rows, smem_row_bytes]."""
    if t.swizzle:
        chunks, index = _swizzled(t, smem, at, rows)
        return chunks[index].view(np.uint8)
    return smem.u8[at : at + rows * t.smem_row_bytes].reshape(rows, -1)


class Window:
    """The part of a box inside the tensor. Raises Fault if it leaves the allocation `region`.

    whole: whether the tensor holds the box, if that is known.

    shape: of the box in global memory as bytes, slowest dimension first, [.., row_bytes]. inside:
    slices of the box that are in bounds, None if all of it is. view: uint8 view of these bytes in
    global memory, None if there are none.
    """

    __slots__ = ("shape", "inside", "view")

    def __init__(self, t: TensorMap, region: Region, coords: list[int], whole: bool | None = None):
        if t.holds(coords) if whole is None else whole:
            self.shape, self.inside = t.box_shape, None
            start = t.address - region.base + t.offset(coords)
            if start < 0 or start + t.box_extent > region.size:
                raise Fault(t.too_large(region))
            self.view = np.ndarray(t.box_shape, np.uint8, region.u8, start, t.box_strides)
            return
        row_bytes, bits = t.row_bytes, t.element.bits
        at = coords[0] * bits // 8
        low, high = max(0, -at), min(row_bytes, t.dims[0] * bits // 8 - at)
        start = t.address - region.base + at + low
        shape, strides = [max(0, high - low)], [1]
        inside, full = [slice(low, high)], [row_bytes]
        for d in range(1, t.rank):
            coord, count, step = coords[d], t.counts[d], t.steps[d] if t.steps else 1
            low, high = max(0, -(coord // step)), min(count, -((coord - t.dims[d]) // step))
            start += coord * t.strides[d - 1] + low * t.jumps[d - 1]
            shape.append(max(0, high - low))
            strides.append(t.jumps[d - 1])
            inside.append(slice(low, high))
            full.append(count)
        self.shape = tuple(reversed(full))
        self.inside = tuple(reversed(inside))
        self.view = None
        if 0 not in shape:
            last = start + sum((n - 1) * s for n, s in zip(shape, strides))
            if start < 0 or last >= region.size:
                raise Fault(t.too_large(region))
            self.view = np.ndarray(
                tuple(reversed(shape)), np.uint8, region.u8, start, tuple(reversed(strides))
            )


def check_coords(t: TensorMap, coords: list[int]) -> None:
    """Raise Fault for a box that does not start at a multiple of 16 bytes in its row, in bounds or
    not.

    Measured on an H200 (tests/hopper/test_fixtures.py): anything else is an illegal
    instruction there.
    """
    unit = 128 if t.element.padded else 128 // t.element.bits
    if coords[0] % unit:
        raise Fault(
            f"coordinate {coords[0]} of dim0 must be a multiple of {unit} for {t.element.name}: a "
            "box starts on a 16-byte boundary of its row"
        )


def check_store(coords: list[int]) -> None:
    """Raise Fault for a store or a reduction that starts before the tensor (measured likewise)."""
    for dim, c in enumerate(coords):
        if c < 0:
            raise Fault(
                f"coordinate {c} of dim{dim} must not be negative: only loads may start before the "
                "tensor"
            )


def load(t: TensorMap, region: Region, coords: list[int], whole: bool | None = None) -> np.ndarray:
    """A box as it will stand in shared memory before the swizzle: uint8 [rows, smem_row_bytes].
    whole: as for Window.
    """
    window = Window(t, region, coords, whole)
    if window.inside is None:
        data = np.ascontiguousarray(window.view)
    else:
        data = _filled(t, window.shape)
        if window.view is not None:
            data[window.inside] = window.view
    data = data.reshape(-1, t.row_bytes)
    if t.element.padded:
        return _padded(t, data)
    return _rounded(data) if t.tf32 else data


def _filled(t: TensorMap, shape: tuple[int, ...]) -> np.ndarray:
    if t.fill_nan:
        return np.full((*shape[:-1], shape[-1] // 2), NAN_FILL, np.uint16).view(np.uint8)
    return np.zeros(shape, np.uint8)


def _padded(t: TensorMap, data: np.ndarray) -> np.ndarray:
    """16 elements take 16 bytes; the padding is written as zeros."""
    groups = t.box[0] // 16
    out = np.zeros((len(data), groups, 16), np.uint8)
    out[:, :, : 2 * t.element.bits] = data.reshape(len(data), groups, -1)
    return out.reshape(len(data), -1)


def _rounded(data: np.ndarray) -> np.ndarray:
    """f32 rounded to tf32: nearest even at 10 mantissa bits; any NaN becomes TF32_NAN."""
    x = data.view(np.uint32)
    rounded = (x + np.uint32(0xFFF) + (x >> 13 & 1)) & np.uint32(0xFFFFE000)
    rounded[x & 0x7FFFFFFF > 0x7F800000] = TF32_NAN
    return rounded.view(np.uint8)


def store(
    t: TensorMap,
    region: Region,
    coords: list[int],
    data: np.ndarray,
    combine: Combine | None = None,
) -> None:
    """Write box rows (uint8 [rows, smem_row_bytes]) to the tensor; drop what is out of bounds.

    combine: function of (old, new) bytes, both contiguous uint8 of one shape, for reductions.
    """
    window = Window(t, region, coords)
    if window.view is None:
        return
    if t.element.padded:
        data = data.reshape(len(data), t.box[0] // 16, 16)[:, :, : 2 * t.element.bits]
    data = data.reshape(window.shape)
    if window.inside is not None:
        data = data[window.inside]
    if combine is not None:
        data = combine(np.ascontiguousarray(window.view), np.ascontiguousarray(data))
    window.view[...] = data
