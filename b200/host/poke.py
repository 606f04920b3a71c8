"""Writes values where a program has asked for them, and reads texts of its own."""

from __future__ import annotations

import ctypes
import struct


def poke(address: int, code: str, *values: float) -> None:
    """Put values at an address of the program. code: as struct has it."""
    ctypes.memmove(address, struct.pack(code, *values), struct.calcsize(code))


def text_at(address: int) -> str:
    """A string of C."""
    return ctypes.string_at(address).decode()
