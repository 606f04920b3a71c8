"""Names of kernels and of files as a person would write them."""

from __future__ import annotations

import os
import re

_DSL = re.compile(r"^kernel_cutlass_(\w+?)(?=_object_at_|_tensorptr|_[A-Z]|__|_\d+$|$)")
_METHOD = re.compile(r"^kernel_cutlass_(\w+?)_[a-z0-9]+([A-Z]\w*?)_object_at_")
_NESTED, _PLAIN = re.compile(r"^_ZN[KVr]*"), re.compile(r"^_Z(?=L?\d)")


def readable(kernel: str) -> str:
    """The name of the function that a kernel's symbol stands for, of the CuTe DSL or of CUDA C++.
    Other symbols are returned unchanged.

    CuTe DSL: kernel_cutlass_FUNCTION[_MODULECLASS_object_at_][_types of the arguments]. C++: the
    names of the Itanium ABI (5.1.2), without template arguments and parameters.
    """
    if found := _METHOD.match(kernel):
        return f"{found[2]}.{found[1]}"
    if found := _DSL.match(kernel):
        return found[1]
    for prefix in (_NESTED, _PLAIN):
        if found := prefix.match(kernel):
            names = _source_names(kernel[found.end() :])
            shown = names if prefix is _NESTED else names[:1]
            return "::".join(name for name in shown if not name.startswith("_GLOBAL__N_")) or kernel
    return kernel


def from_here(text: str) -> str:
    """A report with the paths of files below the current directory made relative to it."""
    here = os.path.join(os.getcwd(), "")
    return re.sub(rf"(?<![\w./-]){re.escape(here)}(?=\w)", "", text)


def _source_names(text: str) -> list[str]:
    """The leading <length><identifier> of a mangled name."""
    names: list[str] = []
    while found := re.match(r"L?(\d+)", text):
        end = found.end() + int(found[1])
        names.append(text[found.end() : end])
        text = text[end:]
    return names
