"""CUDA sources on their way to the compiler, and the way of their lines back to the user's file.

Tensors are CPU tensors: what a program's C++ code says of their device is said of the CPU instead,
in place, so that lines keep their numbers.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from pathlib import Path

_DEVICE_WORDS = (
    (re.compile(r"\.type\(\)\s*\.\s*is_cuda\s*\(\s*\)"), ".is_cpu()"),
    (re.compile(r"\bis_cuda\s*\(\s*\)"), "is_cpu()"),
    (re.compile(r"\bkCUDA\b"), "kCPU"),
    (re.compile(r"\b(DeviceType|DispatchKey|Backend)::CUDA\b"), r"\1::CPU"),
    (re.compile(r"(\bTORCH_LIBRARY_IMPL\s*\(\s*\w+\s*,\s*)CUDA\b"), r"\1CPU"),
    (re.compile(r'(\bDevice\s*[({]\s*)"cuda(:\d+)?"'), r'\1"cpu"'),
)


def on_cpu(text: str) -> str:
    """C++ or CUDA source whose tensors are CPU tensors."""
    for pattern, replacement in _DEVICE_WORDS:
        text = pattern.sub(replacement, text)
    return text


@dataclass(frozen=True)
class Origin:
    """Where the lines of a compiled file come from: `lines[i]` is the line of `file` that line
    i + 1 stands in, 0 where that is not known.
    """

    file: str
    lines: tuple[int, ...]

    def line(self, compiled: int) -> int:
        return self.lines[compiled - 1] if 0 < compiled <= len(self.lines) else 0


def origin(text: str, user_file: str | None) -> Origin | None:
    """Finds a source string in the Python file that holds it, by its lines.

    Lines that differ there (an f-string's, an escaped one) count on from the line before.
    """
    if user_file is None or not Path(user_file).is_file():
        return None
    theirs = Path(user_file).read_text(errors="replace").splitlines()
    ours = text.splitlines()
    lines = [0] * len(ours)
    matcher = difflib.SequenceMatcher(None, ours, theirs, autojunk=False)
    for at, there, count in matcher.get_matching_blocks():
        if any(len(line.strip()) > 3 for line in ours[at : at + count]):
            lines[at : at + count] = range(there + 1, there + count + 1)
    if not any(lines):
        return None
    for i in range(1, len(lines)):
        if not lines[i] and lines[i - 1]:
            lines[i] = min(lines[i - 1] + 1, len(theirs))
    return Origin(user_file, tuple(lines))


_FILE = re.compile(r'^(\s*\.file\s+)(\d+)(\s+)"([^"]*)"', re.M)
_LOC = re.compile(r"(\.loc\s+|inlined_at\s+)(\d+)(\s+)(\d+)")
_INLINED = re.compile(r"\.loc\s+(\d+)\s+\d+\s+\d+[^\n]*inlined_at\s+(\d+)(\s+\d+\s+\d+)")


def relocate(ptx: str, origins: dict[str, Origin]) -> str:
    """PTX whose line information names the user's files; origins: by a compiled file's name.

    Code of a header (CUDA's own wrappers) stands at the line that it is inlined into.
    """
    found: dict[str, Origin] = {}

    def rename(match: re.Match) -> str:
        known = origins.get(Path(match.group(4)).name)
        if known is None:
            return match.group(0)
        found[match.group(2)] = known
        return f'{match.group(1)}{match.group(2)}{match.group(3)}"{known.file}"'

    def hoist(match: re.Match) -> str:
        if match.group(1) in found or match.group(2) not in found:
            return match.group(0)
        return f".loc {match.group(2)}{match.group(3)}"

    def renumber(match: re.Match) -> str:
        known = found.get(match.group(2))
        line = known.line(int(match.group(4))) if known else 0
        return f"{match.group(1)}{match.group(2)}{match.group(3)}{line or match.group(4)}"

    renamed = _FILE.sub(rename, ptx)
    return _LOC.sub(renumber, _INLINED.sub(hoist, renamed))
