"""Zeroed memory: that takes no room before it is touched, however large, as programs reserve far
more than they use; and at multiples of a size.
"""

from __future__ import annotations

import mmap

import numpy as np
from numpy.typing import DTypeLike

_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)  # named from Python 3.13 on
SMALL = 1 << 20  # bytes; below, an ordinary allocation is quicker


def pages(nbytes: int) -> mmap.mmap:
    """An anonymous mapping of at least one byte."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE
    return mmap.mmap(-1, max(nbytes, 1), flags=flags)


def zeros(count: int, dtype: DTypeLike) -> np.ndarray:
    """np.zeros(count, dtype) that does not fail for want of memory it never touches."""
    nbytes = count * np.dtype(dtype).itemsize
    if nbytes < SMALL:
        return np.zeros(count, dtype)
    return np.frombuffer(pages(nbytes), dtype, count)


def aligned(nbytes: int, alignment: int) -> np.ndarray:
    """uint8 [nbytes], at a multiple of `alignment`."""
    room = np.zeros(nbytes + alignment, np.uint8)
    return room[-room.ctypes.data % alignment :][:nbytes]
