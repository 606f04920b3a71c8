"""The functions that CUDA's headers declare, read from their text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# header: what it is called on the page.
HEADERS = {
    "cuda_fp16.h": "cuda_fp16",
    "cuda_fp16.hpp": "cuda_fp16",
    "cuda_bf16.h": "cuda_bf16",
    "cuda_bf16.hpp": "cuda_bf16",
    "cuda_fp8.h": "cuda_fp8",
    "cuda_fp6.h": "cuda_fp6",
    "cuda_fp4.h": "cuda_fp4",
    "cuda_fp8.hpp": "cuda_fp8",
    "cuda_fp6.hpp": "cuda_fp6",
    "cuda_fp4.hpp": "cuda_fp4",
    "crt/math_functions.h": "math",
    "crt/device_functions.h": "intrinsics",
    "crt/device_double_functions.h": "intrinsics",
    "sm_20_intrinsics.h": "intrinsics",
    "sm_30_intrinsics.h": "intrinsics",
    "sm_32_intrinsics.h": "intrinsics",
    "sm_61_intrinsics.h": "intrinsics",
    "crt/sm_70_rt.h": "intrinsics",
    "crt/sm_80_rt.h": "intrinsics",
    "crt/sm_90_rt.h": "intrinsics",
    "crt/sm_100_rt.h": "intrinsics",
    "device_atomic_functions.h": "atomics",
    "sm_20_atomic_functions.h": "atomics",
    "sm_32_atomic_functions.h": "atomics",
    "sm_60_atomic_functions.h": "atomics",
}
_COMMENTS = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
_DIRECTIVE = re.compile(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", re.MULTILINE)
_MARK = r"(?:\w+_DECL__|__CUDA_HOSTDEVICE__|__CUDA_HOSTDEVICE_\w+__|__device__|__device_builtin__)"
_DECLARED = re.compile(
    rf"(?P<before>{_MARK}[\w\s\"()*]*?)\b(?P<returns>(?:(?:const|unsigned|signed|enum|volatile)\s+)*"
    r"(?!const\b|unsigned\b|signed\b|return\b)\w+(?:\s+(?:int|long|char))*\s*[*&]?)\s*"
    r"\b(?P<name>operator\s*[^\s\w(]+|\w+)\s*\((?P<parameters>[^()]*)\)[^;{}]*[;{]"
)
_MEMBER = re.compile(
    r"(?:explicit\s+)?__CUDA_HOSTDEVICE\w*__\s+(?:"
    r"(?P<made>\w+)\s*\((?P<of>[^()]+)\)|\w+\s*&\s*operator=\s*\((?P<given>[^()&]+)\)"
    r"|operator\s+(?P<to>[\w ]+?)\s*\(\s*\)\s*const)\s*[{:;]"
)
_STRUCT = re.compile(r"\bstruct\s+(?:__CUDA_ALIGN__\(\d+\)\s+)?(?P<name>\w+)\s*\{")
# Words of a declaration that say nothing of the type.
_NOISE = re.compile(
    r"\b(?:__cdecl|__THROW|__CRTDECL|_ACRTIMP|__CUDA_MATH_CRTIMP|extern|static|inline|__inline__"
    r"|__forceinline__|__CUDA_\w+INLINE__|__cudart_builtin__|__device_builtin__|enum|struct)\b"
)
_DEPRECATED = re.compile(r"__(?:CUDA_\w+_)?DEPRECATED__\s*\(.*?\)\)+")
_INTERNAL = re.compile(
    r"__internal_|__host_|__nv_\w+_impl|_kernel$|__nv_associate|__nv_fp128|__nv_bswap"
)
_NO_TYPE = ("operator", "T", "__CUDA_FP16_CONSTEXPR__", "__CUDA_BF16_CONSTEXPR__", "return")


@dataclass(frozen=True)
class Parameter:
    """type: as C++ writes it, without const. pointer: an address of such a value."""

    type: str
    name: str
    pointer: bool = False
    constant: bool = False
    default: bool = False


@dataclass(frozen=True)
class Function:
    """A declaration. on_host: whether the header has it for the host, too. kind: "function",
    "constructor" (returns the class), or "conversion" (of its one parameter to `returns`).
    """

    header: str
    name: str
    returns: str
    parameters: tuple[Parameter, ...]
    on_host: bool
    kind: str = "function"

    @property
    def signature(self) -> str:
        of = ", ".join(p.type + "*" * p.pointer for p in self.parameters)
        return f"{self.name}({of})" + (f" to {self.returns}" if self.kind == "conversion" else "")


def read(include: Path) -> list[Function]:
    """Every function that the headers of HEADERS declare, each signature once, sorted by header."""
    found: dict[tuple[str, str], Function] = {}
    for header, page in HEADERS.items():
        text = _DIRECTIVE.sub("", _COMMENTS.sub(" ", (include / header).read_text()))
        text = text.replace("__DEF_IF_HOST", ";")  # a macro that ends declarations
        for function in (*_functions(header, text), *_members(header, text)):
            found.setdefault((page, function.signature), function)
    return list(found.values())


def _functions(header: str, text: str) -> Iterator[Function]:
    if header.startswith(("cuda_fp8.hpp", "cuda_fp6.hpp", "cuda_fp4.hpp")):
        return  # only members are public there
    for match in _DECLARED.finditer(_DEPRECATED.sub(" ", text)):
        name = re.sub(r"\s", "", match["name"])
        returns = " ".join(_NOISE.sub(" ", match["returns"]).split())
        if header.endswith(".hpp") and not name.startswith("operator"):
            continue
        if (
            _INTERNAL.search(name)
            or name in ("operator=", "long")
            or not returns
            or returns.split()[0] in _NO_TYPE
        ):
            continue
        parameters = tuple(_parameters(match["parameters"]))
        on_host = "HOST" in match["before"] or header == "crt/math_functions.h"
        yield Function(header, name, _plain(returns), parameters, on_host)


def _members(header: str, text: str) -> Iterator[Function]:
    """Constructors and conversions of the classes."""
    structs = [(match.start(), match["name"]) for match in _STRUCT.finditer(text)]
    for match in _MEMBER.finditer(text):
        owner = next((name for start, name in reversed(structs) if start < match.start()), "")
        if not owner or (match["made"] and match["made"] != owner):
            continue
        if match["given"]:
            it = (Parameter(owner, "it"), *_parameters(match["given"]))
            yield Function(header, "operator=", "void", it, True)
        elif match["to"]:
            it = (Parameter(owner, "a"),)
            yield Function(header, owner, _plain(match["to"]), it, True, "conversion")
        elif "&" not in match["of"]:
            of = tuple(_parameters(match["of"]))
            yield Function(header, owner, owner, of, True, "constructor")


def _plain(kind: str) -> str:
    """A type without const and references, its words in one order."""
    words = kind.replace("&", " ").replace("const", " ").replace("volatile", " ").split()
    if words in (["short", "int"], ["long", "int"], ["long", "long", "int"]):
        words.remove("int")
    if words[:1] == ["unsigned"]:
        words = [w for w in words if w != "int"] or words
        words = ["unsigned", "int"] if words == ["unsigned"] else words
    return " ".join(words)


def _parameters(text: str) -> Iterator[Parameter]:
    for number, written in enumerate(text.split(",")):
        written, _, default = written.partition("=")
        written = _NOISE.sub(" ", written).strip()
        if not written or written == "void":
            continue
        pointer, constant = "*" in written, bool(re.match(r"\s*(const\b|\w+ const\b)", written))
        words = written.replace("*", " ").replace("&", " ").split()
        kinds = {"unsigned", "int", "long", "short", "char", "signed", "const", "float", "double"}
        bare = [w for w in words if w != "const"]
        name = bare.pop() if len(bare) > 1 and bare[-1] not in kinds else f"a{number}"
        yield Parameter(_plain(" ".join(bare)), name, pointer, constant, bool(default.strip()))
