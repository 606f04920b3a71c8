"""Arrays of numpy as global memory, for a program without PyTorch."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.lib.array_utils import byte_bounds

from b200.chip.global_memory import GlobalMemory, Region


def make_legal(memory: GlobalMemory, arguments: Iterable[Any]) -> None:
    """Make the memory of the arrays among some arguments legal: of a view, all of its array.

    Raises TypeError for an array that a kernel could not read, or must not write: of objects, or
    read-only.
    """
    for index, array in enumerate(arguments):
        if isinstance(array, np.ndarray):
            if array.dtype.hasobject or not array.flags.writeable:
                what = "of objects" if array.dtype.hasobject else "read-only: pass a copy"
                raise TypeError(f"argument {index}: the array is {what}")
            _register(memory, _root(array))


def address_of(array: np.ndarray) -> int:
    """Where its first element lies."""
    return array.ctypes.data


def is_held(region: Region, owner: np.ndarray) -> bool:
    """Whether an allocation is still that of its array."""
    low, high = byte_bounds(owner)
    return (region.base, region.size) == (low, high - low)


def _root(array: np.ndarray) -> np.ndarray:
    """The array that a view looks into."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def _register(memory: GlobalMemory, array: np.ndarray) -> None:
    low, high = byte_bounds(array)
    known = memory.find(low, high - low) if array.size else None
    if known is None or known.owner is None or known.owner() is not array:
        name = f"an array of {array.shape} {array.dtype}"
        memory.register(low, high - low if array.size else 0, name, weakref.ref(array))
