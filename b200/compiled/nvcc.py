"""nvcc as `b200 exec` has it on PATH: the real one, which compiles for a B200 alone, with the lines
of the source, and links the kit's CUDA runtime.

    python nvcc.py REAL LIBRARIES [what the build gives to nvcc]

What a project asks of architectures is replaced: its device code has to be PTX for a B200. What it
asks for as machine code (-cubin) is a fat binary with both, which drivers load and cuobjdump reads
alike. A debug build of device code (-G) has no line information that optimised code has; LTO's has
no PTX.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

_ARCHITECTURES = {
    *("-gencode", "--generate-code", "-arch", "--gpu-architecture", "-code", "--gpu-code"),
    *("-cudart", "--cudart"),
}
_DROPPED = {
    *("-G", "--device-debug", "-lineinfo", "--generate-line-info", "-dlto"),
    *("--dlink-time-opt", "-lcuda_static"),
}
_ASKS = {
    *("--version", "-V", "--help", "-h"),
    *("--list-gpu-arch", "-arch-ls", "--list-gpu-code", "-code-ls"),
}
_PTX, _MACHINE_CODE = {"-ptx", "--ptx"}, {"-cubin", "--cubin"}
_BOTH = "-gencode=arch=compute_100a,code=[compute_100a,sm_100a]"


def rewritten(words: Sequence[str], libraries: str) -> list[str]:
    """nvcc's arguments instead of a build's. libraries: the folder of the kit's runtime."""
    if _ASKS & set(words):
        return list(words)
    kept: list[str] = []
    given = iter(words)
    for word in given:
        name, equals, _ = word.partition("=")
        if name in _ARCHITECTURES:
            if not equals:
                next(given, None)
        elif word not in _DROPPED:
            kept.append(word)
    wanted = "-arch=compute_100a" if _PTX & set(kept) else _BOTH
    kept = ["-fatbin" if word in _MACHINE_CODE else word for word in kept]
    return [wanted, "-lineinfo", "-cudart", "shared", f"-L{libraries}", *kept]


def without_kit(environment: Mapping[str, str], libraries: str) -> dict[str, str]:
    """The environment of nvcc's own programs: nvlink asks a driver that it finds for a GPU."""
    left = dict(environment)
    for name in ("LD_PRELOAD", "LD_LIBRARY_PATH"):
        paths = left.pop(name, "").split(":")
        if kept := [p for p in paths if p and libraries not in (p, os.path.dirname(p))]:
            left[name] = ":".join(kept)
    return left


if __name__ == "__main__":
    real, libraries, *words = sys.argv[1:]
    os.execve(real, [real, *rewritten(words, libraries)], without_kit(os.environ, libraries))
