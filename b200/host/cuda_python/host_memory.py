"""Addresses of host memory, as cuda-python's functions take them."""

from __future__ import annotations

from typing import Any

import numpy as np


def address_of(pointer: Any) -> int:
    """The address of an int, None (0), a buffer (bytes, numpy, ctypes) or a handle.

    The object must outlive what is done there.
    """
    if pointer is None:
        return 0
    if isinstance(pointer, int):
        return pointer
    try:
        view = memoryview(pointer)
    except TypeError:
        return int(pointer)
    if not view.c_contiguous:
        raise ValueError("expected host memory without gaps, got a strided buffer")
    return np.frombuffer(view.cast("B"), np.uint8).ctypes.data if view.nbytes else 0
