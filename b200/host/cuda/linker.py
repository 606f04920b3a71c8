"""The linker of the CUDA driver: several modules of PTX become one."""

from __future__ import annotations

import ctypes
import struct

from b200.host import refusals
from b200.host.poke import poke, text_at
from b200.host.refusals import Refused
from b200.program.linking import linked, undefined


class Linker:
    """Calls of shim/driver.cpp."""

    def ptx(self, texts: int, names: int, count: int, out: int) -> None:
        """Write the address of the PTX of `count` modules as one. texts, names: of each."""
        if not count:
            raise Refused(refusals.INVALID_VALUE, "cuLinkComplete: nothing was added")
        modules = _strings(texts, count)
        text = linked(modules)
        for name in undefined(text):
            named = zip(_strings(names, count), modules, strict=True)
            user = next(module for module, its in named if name in undefined(its))
            said = f"error   : Undefined reference to '{name}' in '{user}'"  # nvlink's words
            raise Refused(refusals.INVALID_PTX, said)
        self._linked = ctypes.create_string_buffer(text.encode())
        poke(out, "<Q", ctypes.addressof(self._linked))


def _strings(at: int, count: int) -> list[str]:
    return [*map(text_at, struct.unpack(f"<{count}Q", ctypes.string_at(at, 8 * count)))]
