"""Which architecture a program's nvcc flags ask for, and whether a B200 runs it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence

from b200.host.cuda.errors import BuildError

_WITH_VALUE = {"-gencode", "--generate-code", "-arch", "--gpu-architecture", "-code", "--gpu-code"}
_KEEP = {"--keep-dir", "-keep-dir"}
_DROPPED = {"--keep", "-keep", "-lineinfo", "--generate-line-info", "-G", "--device-debug"}
_SEPARATE = {"-dc", "--device-c", "-rdc=true", "--relocatable-device-code=true"}
_ARCH = re.compile(r"(?:sm|compute|lto)_(\d+)([af]?)")


SEPARATE = "-rdc=true"


def split_flags(flags: Sequence[str]) -> tuple[str, list[str]]:
    """The virtual architecture to compile for ("compute_100a"), and nvcc's other flags, of those
    for relocatable device code SEPARATE.

    BuildError if nothing that the flags ask for runs on a B200, as on the chip ("no kernel image").
    """
    asked, others = [], []
    for flag, value in _pairs(flags):
        if flag in _WITH_VALUE:
            asked.append(value or "")
        elif flag in _SEPARATE:
            others.append(SEPARATE)
        elif flag in _KEEP or flag in _DROPPED:
            continue
        else:
            others += [flag] if value is None else [f"{flag}={value}"]
    return _choose(asked), others


def _pairs(flags: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    """Flags and their values, both "-arch=x" and "-arch", "x"."""
    words = iter(word for flag in flags for word in _split(flag.strip()))
    for word in words:
        name, equals, value = word.partition("=")
        if name in _WITH_VALUE | _KEEP:
            yield name, value if equals else next(words, "")
        elif word in _SEPARATE or not equals:
            yield word, None
        else:
            yield name, value


def _split(flag: str) -> list[str]:
    """A flag as nvcc's command line would see it: torch joins flags with spaces."""
    return flag.split() if flag.startswith("-") and " " in flag else [flag] if flag else []


def _choose(asked: list[str]) -> str:
    if not asked:
        listed = os.environ.get("TORCH_CUDA_ARCH_LIST", "")
        asked = [f"sm_{x.replace('.', '')}" for x in re.findall(r"\d+\.\d[af]?", listed)]
    if not asked:
        return "compute_100"  # what torch compiles for on a B200 unless told otherwise
    found = {(int(n), suffix) for text in asked for n, suffix in _ARCH.findall(text)}
    for wanted in ((100, "a"), (100, "f"), (100, "")):
        if wanted in found:
            return f"compute_{wanted[0]}{wanted[1]}"
    portable = [
        int(n)
        for text in asked
        for n, suffix in re.findall(r"(?:code|^)[^\s]*compute_(\d+)([af]?)", text)
        if not suffix and int(n) < 100
    ]
    if portable:
        return f"compute_{max(portable)}"
    names = ", ".join(sorted(f"sm_{n}{suffix}" for n, suffix in found)) or ", ".join(asked)
    raise BuildError(
        f"no kernel image for this device: the flags compile for {names}, a B200 is sm_100a"
        " (-gencode=arch=compute_100a,code=sm_100a)"
    )
