"""Writes values where a program has asked for them, and reads its own. code: as struct has it."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence

from b200.program.module import Kernel


def poke(address: int, code: str, *values: float) -> None:
    ctypes.memmove(address, struct.pack(code, *values), struct.calcsize(code))


def peek(address: int, code: str) -> tuple:
    return struct.unpack(code, ctypes.string_at(address, struct.calcsize(code)))


def text_at(address: int) -> str:
    return ctypes.string_at(address).decode()


def parameters_at(kernel: Kernel, places: Sequence[int]) -> bytes:
    """A kernel's parameters as they lie in memory. places: where the program has each."""
    data = bytearray(kernel.param_bytes)
    for parameter, place in zip(kernel.params, places, strict=True):
        end = parameter.offset + parameter.size
        data[parameter.offset : end] = ctypes.string_at(place, parameter.size)
    return bytes(data)
