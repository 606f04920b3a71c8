"""Triton's compiler for NVIDIA's chips, whose last stage keeps the PTX.

ptxas, which Triton brings along, judges the PTX as always. Triton gives its machine code (a cubin,
an ELF file) to `load_binary` of the driver, and keeps it in the cache on disk. So the PTX is
appended to it: readers of ELF files go by the headers and do not see it.
"""

from __future__ import annotations

import hashlib
import os
import struct
import sys
from typing import Any

_MARK = b"\0b200-ptx\0"
_END = "<Q"  # bytes of the PTX


def software_backend(original: Any) -> Any:
    class SoftwareBackend(original):
        def make_cubin(self, src: str, *args: Any) -> bytes:
            try:
                code = super().make_cubin(src, *args)
            except (RuntimeError, FileNotFoundError) as error:
                if "Cannot find" not in str(error):  # a verdict of ptxas
                    raise
                code = b""
            return with_ptx(code, src)

        def hash(self) -> str:
            """Keeps the machine code apart from that of a GPU in Triton's cache, and from that of
            the same source in another folder: PTX names files by their paths, findings name them,
            and Triton's own key has the text of a kernel only.
            """
            folders = f"{os.getcwd()}\n{sys.path[0] if sys.path else ''}"
            return f"{super().hash()}-b200-{hashlib.sha256(folders.encode()).hexdigest()[:16]}"

    SoftwareBackend.__name__ = SoftwareBackend.__qualname__ = original.__name__
    return SoftwareBackend


def with_ptx(code: bytes, ptx: str) -> bytes:
    text = ptx.encode()
    return code + text + struct.pack(_END, len(text)) + _MARK


def ptx_of(image: bytes) -> str | None:
    if not image.endswith(_MARK):
        return None
    end = len(image) - len(_MARK) - struct.calcsize(_END)
    (size,) = struct.unpack_from(_END, image, end)
    return image[end - size : end].decode()
