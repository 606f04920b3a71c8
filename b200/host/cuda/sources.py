"""CUDA sources on their way to the compiler, and the way of their lines back to the user's file.

Tensors are CPU tensors: what a program's C++ code says of their device is said of the CPU instead,
in place, so that lines keep their numbers. What it asks of their device is answered by the call:
`b200_on_gpu` (shim/table.cpp) is 1 while a function works on tensors on the GPU.

Headers of a program's own are compiled from copies that say the CPU where they say CUDA. A copy
lies under a folder as its original does under the root, so that headers find each other as before;
`#line` names the original to compilers.
"""

from __future__ import annotations

import difflib
import os
import re
import sys
import sysconfig
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

# Names in capitals are macros of include/b200/device.h.
_CUDA, _CPU = (rf"(?:\w+::)*(?:k{name}|DeviceType::{name})\b" for name in ("CUDA", "CPU"))
_DEVICE_WORDS = (
    (re.compile(r"\.type\(\)\s*\.\s*is_cuda\s*\(\s*\)"), ".is_cuda()"),
    (re.compile(r"(\.|->)\s*is_cpu\s*\(\s*\)"), r"\1is_cpu() != B200_ON_GPU"),
    (re.compile(r"(\.|->)\s*is_cuda\s*\(\s*\)"), r"\1is_cpu() == B200_ON_GPU"),
    (re.compile(rf"([!=]=\s*){_CUDA}"), r"\1B200_CUDA"),
    (re.compile(rf"([!=]=\s*){_CPU}"), r"\1B200_CPU"),
    (re.compile(rf"(?<![\w:]){_CUDA}(\s*[!=]=)"), r"B200_CUDA\1"),
    (re.compile(rf"(?<![\w:]){_CPU}(\s*[!=]=)"), r"B200_CPU\1"),
    (re.compile(r"\bkCUDA\b"), "kCPU"),
    (re.compile(r"\b(DeviceType|Backend)::CUDA\b"), r"\1::CPU"),
    (re.compile(r'(\bDevice\s*[({]\s*)"cuda(:\d+)?"'), r'\1"cpu"'),
)


_LIBRARIES = (
    str(Path(__file__).resolve().parents[1]) + os.sep,
    sysconfig.get_path("stdlib"),
    os.sep + "site-packages",
)


def on_cpu(text: str) -> str:
    """C++ or CUDA source whose tensors are CPU tensors."""
    for pattern, replacement in _DEVICE_WORDS:
        text = pattern.sub(replacement, text)
    return text


@dataclass(frozen=True)
class Origin:
    """Where the lines of a compiled file come from: `places[i]` is (file, line) of line i + 1, None
    where that is not known.
    """

    places: tuple[tuple[str, int] | None, ...]

    def place(self, line: int) -> tuple[str, int] | None:
        return self.places[line - 1] if 0 < line <= len(self.places) else None


def origin(text: str, files: Sequence[str]) -> Origin | None:
    """Finds a source string in the Python files that may hold it, by its lines.

    files: the likeliest first. Lines that differ there (an f-string's, an escaped one) count on
    from the line before.
    """
    ours = text.splitlines()
    places: list[tuple[str, int] | None] = [None] * len(ours)
    for file in files:
        if Path(file).is_file() and None in places:
            _align(ours, places, file)
    if not any(places):
        return None
    for i in range(1, len(places)):
        before = places[i - 1]
        if places[i] is None and before is not None:
            places[i] = (before[0], before[1] + 1)
    return Origin(tuple(places))


def _align(ours: list[str], places: list[tuple[str, int] | None], file: str) -> None:
    """Give the lines that a file holds their places; a block counts if it has a telling line."""
    theirs = Path(file).read_text(errors="replace").splitlines()
    open_lines = [i for i, place in enumerate(places) if place is None]
    matcher = difflib.SequenceMatcher(None, [ours[i] for i in open_lines], theirs, autojunk=False)
    for at, there, count in matcher.get_matching_blocks():
        if any(len(ours[i].strip()) > 3 for i in open_lines[at : at + count]):
            for k in range(count):
                places[open_lines[at + k]] = (file, there + k + 1)


def callers() -> list[str]:
    """The Python files on the way to a compile, the nearest first, libraries left out."""
    found, frame = {}, sys._getframe(1)
    while frame is not None:
        file = os.path.abspath(frame.f_code.co_filename)
        if not any(part in file for part in _LIBRARIES) and os.path.isfile(file):
            found[file] = True
        frame = frame.f_back
    return list(found)


_FILE = re.compile(r'^\s*\.file\s+(\d+)\s+"([^"]*)"', re.M)
_LOC = re.compile(r"(\.loc\s+|inlined_at\s+)(\d+)\s+(\d+)")


def relocate(ptx: str, origins: dict[str, Origin]) -> str:
    """PTX whose line information names the user's files; origins: by a compiled file's name."""
    listed = [(n, origins.get(Path(file).name)) for n, file in _FILE.findall(ptx)]
    known = {n: found for n, found in listed if found is not None}
    first = 1 + max((int(n) for n, _ in listed), default=0)
    files = {place[0] for found in known.values() for place in found.places if place}
    numbers = {file: first + i for i, file in enumerate(sorted(files))}

    def renumber(match: re.Match) -> str:
        found = known.get(match.group(2))
        place = found.place(int(match.group(3))) if found else None
        if place is None:
            return match.group(0)
        return f"{match.group(1)}{numbers[place[0]]} {place[1]}"

    moved = _LOC.sub(renumber, ptx)
    return moved + "".join(f'\n.file {n} "{file}"' for file, n in numbers.items()) + "\n"


_INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.M)


def copy_headers(folder: Path, source: str, at: str | None, looked: Sequence[str]) -> None:
    """Put copies of the headers into `folder` that a source includes, directly or not. at: the
    source's own folder; looked: the folders of `-I`.
    """
    places = [Path(place).resolve() for place in (*([at] if at else []), *looked)]
    found: dict[Path, str] = {}
    _collect(source, [], places, found)
    if all(on_cpu(text) == text for text in found.values()):
        return
    for path, text in found.items():
        copy = folder / path.relative_to("/")
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(f'#line 1 "{path}"\n{on_cpu(text)}')


def header_of_copy(folder: Path, path: Path) -> Path:
    """The header that a file under `folder` is a copy of; any other file is itself."""
    return Path("/", path.relative_to(folder)) if path.is_relative_to(folder) else path


def _collect(
    text: str, beside: Iterable[Path], places: Sequence[Path], found: dict[Path, str]
) -> None:
    for name in _INCLUDE.findall(text):
        candidates = (place / name for place in (*beside, *places))
        path = next((made.resolve() for made in candidates if made.is_file()), None)
        if path is not None and path not in found:
            found[path] = path.read_text(errors="replace")
            _collect(found[path], [path.parent], places, found)
