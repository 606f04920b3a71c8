"""The CUDA runtime and driver in software as a library: shim/*.cpp, with a part that knows who
answers their calls. Every function that CUDA's headers declare is in it; what is not modelled
refuses by name when it is called.
"""

from __future__ import annotations

import concurrent.futures
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from b200.host.cuda import stand_in
from b200.host.cuda.stand_in import DRIVER_GRAPHS, FOLDER
from b200.host.cuda.toolkit import Toolkit, check_run

_DRIVER = ("driver.cpp", *DRIVER_GRAPHS, "pools.cpp", "queries.cpp", "virtual_memory.cpp")
_RUNTIME = ("graphs.cpp", "memory.cpp", "registration.cpp", "runtime.cpp")
SHIM = tuple(FOLDER / name for name in (*_DRIVER, *_RUNTIME))
NVRTC = FOLDER / "nvrtc.cpp"
PARTS = (*sorted(FOLDER.glob("*.h")), *map(Path, (__file__, stand_in.__file__)))  # decide, too
_HEADERS = ("cuda_runtime_api.h", "cuda.h", "cuda_profiler_api.h")
_IN_NO_HEADER = ("__cudaRegisterHostVar", "__cudaRegisterUnifiedTable")
_FUNCTION = re.compile(r"\b(cuda[A-Z]\w+|cu[A-Z]\w+)\s*\(")
_RENAMED = re.compile(r"^\s*#\s*define\s+cu[A-Z]\w+\s+(cu[A-Z]\w+)\s*$", re.M)
_FLAGS = ("-std=c++17", "-O1", "-fPIC", "-w")
# Built with a compiler of its own libraries, so that a program need not have the same.
_LINK = ("-shared", "-static-libstdc++", "-static-libgcc", "-Wl,-Bsymbolic")


def make(
    toolkit: Toolkit,
    sources: Sequence[Path],
    out: Path,
    work: Path,
    exported: str,
    flags: Sequence[str] = (),
) -> Path:
    """Build it, at `out`. work: a folder for what is in between. exported: a version script. flags:
    of the linker.
    """

    def compiled(source: Path) -> str:
        return stand_in.kept(source, _FLAGS, toolkit)

    with concurrent.futures.ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        objects = list(pool.map(compiled, sources))
    (work / "exported").write_text(exported)
    link = [toolkit.cxx, *_LINK, f"-Wl,--version-script={work / 'exported'}"]
    end = ["-ldl", *flags, "-o", str(out)]
    check_run([*link, *objects, *end], work)
    listed = check_run(["nm", "--defined-only", str(out)], work)
    have = {line.split()[-1].partition("@")[0] for line in listed.splitlines() if line.strip()}
    absent = work / "absent.cpp"
    absent.write_text(stand_in.stubs(sorted(set(_named(toolkit)) - have)))
    check_run([*link, *objects, compiled(absent), *end], work)
    return out


def _named(toolkit: Toolkit) -> Iterator[str]:
    """Functions of the runtime and the driver, by CUDA's headers."""
    yield from _IN_NO_HEADER
    for header in (root / name for root in toolkit.includes for name in _HEADERS):
        if header.is_file():
            text = header.read_text(errors="replace")
            yield from _FUNCTION.findall(text)
            yield from _RENAMED.findall(text)
