"""The stand-in for the CUDA runtime and driver (shim/) as objects that a library is linked with:
which of its files the library needs, and functions that refuse by name in the place of the rest.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from b200.host.cuda.cache import cache_folder, digest_of, made_once
from b200.host.cuda.toolkit import Toolkit, check_run

FOLDER = Path(__file__).parent / "shim"
ALWAYS = ("driver.cpp", "registration.cpp", "runtime.cpp")  # its files that each library has
DRIVER_GRAPHS = ("driver_graphs.cpp", "driver_graph_nodes.cpp", "driver_graph_objects.cpp")
# Its files that few programs need -> a word of the functions that are in them.
ON_DEMAND: dict[tuple[str, ...], re.Pattern[str]] = {
    ("graphs.cpp",): re.compile("cuda.*(?:Graph|Capture|HostFunc)"),
    DRIVER_GRAPHS: re.compile("cu(?:Graph|Stream.*Capture|UserObject|Device.*GraphMem)"),
    ("virtual_memory.cpp",): re.compile(
        "cuMem(?:Address|Create|Map|Unmap|SetAccess|Release|GetAllocationGran)"
    ),
    ("memory.cpp",): re.compile(
        "Pitch|Memset2D|HostRegister|HostUnreg|HostGetDev|MemPool|FromPool"
        "|CanAccessPeer|Profiler|Prefetch|MemAdvise|AttachMem"
    ),
    ("cublas.cpp",): re.compile("cublasLt(?:Create|Destroy)$"),
}
_CUDA_SYMBOL = re.compile(r"(?:cu[A-Z]|cuda[A-Z]|__cuda|nvrtc|cublas|cusparse|cudnn|nvml|nvtx)\w*")
_FLAGS = ("-std=c++17", "-O1", "-fPIC", "-fvisibility=hidden")


def compiled(name: str, toolkit: Toolkit) -> str:
    """A file of shim/ as an object, compiled once for each content and compiler."""
    return kept(FOLDER / name, _FLAGS, toolkit)


def kept(part: Path, flags: Sequence[str], toolkit: Toolkit) -> str:
    """A source that includes headers beside it, of shim/ and of CUDA, as an object of the cache."""
    headers = [path for folder in {part.parent, FOLDER} for path in folder.glob("*.h")]
    texts = [path.read_text() for path in (part, *sorted(headers))]
    key = digest_of(*flags, *texts, toolkit.build, toolkit.cxx_version)

    def make(work: Path) -> Path:
        out = work / "part.o"
        includes = [flag for path in toolkit.includes for flag in ("-isystem", str(path))]
        looked = [f"-I{FOLDER}", *includes]
        check_run([toolkit.cxx, *flags, *looked, "-c", str(part), "-o", str(out)], work)
        return out

    return str(made_once(cache_folder() / f"shim-{part.stem}-{key}.o", make))


def missing(symbols: str) -> list[str]:
    """CUDA functions that a library calls and the stand-in does not have."""
    words = (line.split()[-1].split("@")[0] for line in symbols.splitlines() if line.split())
    return sorted({word for word in words if _CUDA_SYMBOL.fullmatch(word)})


def stubs(names: list[str]) -> str:
    """A function for each name that says, when it is called, that it is not there."""
    refuse = 'int {0}() {{ return b200::call("missing", "{0}"); }}\n'
    known = '  if (std::strcmp(name, "{0}") == 0) return true;\n'
    body, absent = ("".join(map(each.format, names)) for each in (refuse, known))
    asked = f"bool b200_is_absent(const char* name) {{\n{absent}  return false;\n}}\n"
    return f'#include "backend.h"\nextern "C" {{\n{body}{asked}}}\n'
