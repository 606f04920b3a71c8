"""Headers of a program's own, compiled from copies that say the CPU where they say CUDA.

A copy lies under a folder as its original does under the root, so that headers find each other as
before; `#line` names the original to compilers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from b200.host.cuda.sources import on_cpu

_INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.M)


def copied(folder: Path, source: str, at: str | None, looked: Sequence[str]) -> None:
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


def original(folder: Path, path: Path) -> Path:
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
