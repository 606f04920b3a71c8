"""Python modules of kernels with planted bugs: their lines, and those that a comment marks."""

from __future__ import annotations

import re
from pathlib import Path

MARK = re.compile(r"#\s*mark:\s*(.*\S)")


class Listing:
    """The lines of a module of kernels, and those that a comment marks."""

    def __init__(self, path: str):
        self.lines = Path(path).read_text().splitlines()
        self.marks: dict[str, list[int]] = {}
        for number, line in enumerate(self.lines, 1):
            if match := MARK.search(line):
                self.marks.setdefault(match.group(1), []).append(number)
