"""Writes values where a program has asked for them."""

from __future__ import annotations

import ctypes
import struct


def poke(address: int, code: str, *values: float) -> None:
    """Put values at an address of the program. code: as struct has it."""
    ctypes.memmove(address, struct.pack(code, *values), struct.calcsize(code))
