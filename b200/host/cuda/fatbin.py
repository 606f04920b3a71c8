"""PTX out of a fat binary, as nvcc puts it into a host object.

The layout is not documented by NVIDIA; it is the one that cuobjdump and LLVM's clang-linker-wrapper
agree on: a wrapper {magic, version, data, ...} points at a header {magic, version, header size,
size}, and entries follow, each {kind, version, header size, size, ...} and its bytes.
"""

from __future__ import annotations

import ctypes
import struct

from b200.errors import EmulatorError

_WRAPPER_MAGIC, _MAGIC = 0x466243B1, 0xBA55ED50
_PTX = 1
_COMPRESSED = 0x2000  # of an entry's flags


def ptx_of(wrapper: int) -> str:
    """The PTX text of the fat binary whose wrapper lies at an address; "" if it has no code."""
    magic, _, data = struct.unpack("<IIQ", ctypes.string_at(wrapper, 16))
    if magic != _WRAPPER_MAGIC:
        raise EmulatorError("unsupported", f"a fat binary with the magic number {magic:#x}")
    magic, _, header, size = struct.unpack("<IHHQ", ctypes.string_at(data, 16))
    if magic != _MAGIC:
        raise EmulatorError("unsupported", f"a fat binary with the magic number {magic:#x}")
    at, end = data + header, data + header + size
    while at < end:
        kind, _, entry_header, entry_size = struct.unpack("<HHIQ", ctypes.string_at(at, 16))
        flags = struct.unpack("<Q", ctypes.string_at(at + 40, 8))[0]
        if kind == _PTX:
            if flags & _COMPRESSED:
                raise EmulatorError(
                    "unsupported", "the PTX of a library is compressed: compile with --no-compress"
                )
            return ctypes.string_at(at + entry_header, entry_size).rstrip(b"\0").decode()
        at += entry_header + entry_size
    return ""
