"""Lines of a program's host code: where it calls CUDA, and where it touches memory.

The addresses of the callers are those of the program's library; binutils' addr2line, which comes
with the C++ compiler, has their lines.
"""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from b200.host.cuda.sources import Origin

UNKNOWN = "(no line information)"
_DEPTH = 48  # frames that are looked at: those of Python stand between the program and its call


class HostLines:
    """The lines of one library. origins: where the lines of its sources come from, by file name."""

    def __init__(self, library: Path, origins: Mapping[str, Origin]):
        self._library, self._origins = library, origins
        self._first, self._end = _code_of(library)
        self._backtrace = ctypes.CDLL(None).backtrace
        self._known: dict[tuple[int, ...], str] = {}

    def calls(self) -> tuple[int, ...]:
        """The callers of this call in the library, innermost first."""
        frames = (ctypes.c_void_p * _DEPTH)()
        count = self._backtrace(frames, _DEPTH)
        return self.own(frames[:count])

    def own(self, frames: Sequence[int | None]) -> tuple[int, ...]:
        """Those of return addresses that lie in the library."""
        return tuple(f for f in frames if f is not None and self._first <= f < self._end)

    def here(self) -> str:
        """The line of the program that makes the call that is being answered."""
        return self.line(self.calls())

    def line(self, frames: tuple[int, ...]) -> str:
        """ "file:line" of the innermost frame in a file of the program."""
        if frames not in self._known:
            self._known[frames] = self._look_up(frames)
        return self._known[frames]

    def _look_up(self, frames: tuple[int, ...]) -> str:
        if not frames:
            return UNKNOWN
        # a return address stands behind its call
        offsets = [hex(frame - self._first - 1) for frame in frames]
        command = ["addr2line", "-i", "-e", str(self._library), *offsets]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=True)
        except (OSError, subprocess.CalledProcessError):
            return UNKNOWN
        places = (self._place(text.split(" ")[0]) for text in done.stdout.splitlines())
        return next((place for place in places if place), UNKNOWN)

    def _place(self, text: str) -> str:
        """A place in the user's own file; "" for one of a header or of ours."""
        file, _, number = text.rpartition(":")
        origin = self._origins.get(Path(file).name)
        place = origin.place(int(number)) if origin is not None and number.isdigit() else None
        return f"{place[0]}:{place[1]}" if place else ""


def _code_of(library: Path) -> tuple[int, int]:
    spans = [
        [int(word, 16) for word in line.split()[0].split("-")]
        for line in Path("/proc/self/maps").read_text().splitlines()
        if line.endswith(str(library))
    ]
    return (min(a for a, _ in spans), max(b for _, b in spans)) if spans else (0, 0)
