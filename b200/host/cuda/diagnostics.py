"""What compilers say, as one line with the place in the user's file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from b200.host.cuda import headers
from b200.host.cuda.sources import Origin

if TYPE_CHECKING:
    from b200.host.cuda.build import Source

# nvcc: "cuda.cu(35): error: ..."; g++: "main.cpp:3:5: error: ..."; ptxas: "..., line 9; error : ."
PTXAS_LINE = re.compile(
    r"^ptxas (?P<file>[^\n]*?), line (?P<line>\d+); error\s*: (?P<text>.*)", re.M
)
_PATTERNS = (
    re.compile(
        r"^(?P<file>[^\s(]+)\((?P<line>\d+)\): (?:catastrophic )?error(?: #\S+)?: (?P<text>.*)"
    ),
    re.compile(r"^(?P<file>[^\s:]+):(?P<line>\d+):(?:\d+:)? (?:fatal )?error: (?P<text>.*)"),
    PTXAS_LINE,
)
_DEVICE_LAUNCH = "kernel launch from __device__ or __global__ functions"


def explain(output: str, source: Source, extension: str, work: Path) -> tuple[str, str]:
    """One line for a failed compile, and the whole log with the user's file and lines."""
    log = locate(output, source)
    errors = [found for line in log.splitlines() if (found := _parse(line))]
    if not errors:
        plain = [line for line in log.splitlines() if re.search(r"error|fatal", line, re.I)]
        reason = (plain or log.strip().splitlines() or ["the compiler failed"])[0].strip()
        return f"extension {extension!r} does not compile: {reason[:300]}", log
    file, line, text = errors[0]
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    where = f"{file}:{line}" if not file.endswith(".ptx") else f"line {line} of its PTX (ptxas)"
    if _DEVICE_LAUNCH in text:
        text = "a kernel that launches kernels (dynamic parallelism) is not in the software B200"
    text = text.strip()[:300] + headers.advice(text)
    return f"extension {extension!r} does not compile: {where}: {text}{more}", log


def source_lines(output: str, ptx: Path, name: str) -> str:
    """ptxas's errors with the source's lines in place of the PTX's, out of its .loc directives."""
    if not ptx.is_file():
        return output
    lines = ptx.read_text().splitlines()
    files = dict(re.findall(r'\.file\s+(\d+)\s+"([^"]*)"', "\n".join(lines)))

    def place(match: re.Match) -> str:
        for text in reversed(lines[: int(match["line"])]):
            found = re.search(r"(?:\.loc|inlined_at)\s+(\d+)\s+(\d+)\s+\d+\s*$", text)
            if found and Path(files.get(found[1], "")).name == name:
                return f"{name}({found[2]}): error: ptxas: {match['text']}"
        return match.group(0)

    return PTXAS_LINE.sub(place, output)


def _parse(line: str) -> tuple[str, int, str] | None:
    for pattern in _PATTERNS:
        if match := pattern.match(line):
            return match["file"], int(match["line"]), match["text"]
    return None


def locate(output: str, source: Source) -> str:
    """A compiler's output with the lines of the user's file in place of the compiled file's."""
    known: Origin | None = source.origin
    if known is None:
        return output
    pattern = re.compile(rf"(?:[^\s:(]*/)?{re.escape(source.name)}(?P<open>[(:])(?P<line>\d+)")

    def place(match: re.Match) -> str:
        place = known.place(int(match["line"]))
        return f"{place[0]}{match['open']}{place[1]}" if place else match.group(0)

    return pattern.sub(place, output)
