"""The files that a report is written to, and what goes to stderr with it."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from b200.checker.finding import ERROR, NOTE
from b200.command_line import cannot_write
from b200.reports import sarif

LEVELS = {ERROR: "error", NOTE: "notice"}  # of annotations; portability: warning


@dataclass
class Outputs:
    """report, sarif: files to write, if any. annotate: print GitHub's annotations. root: the folder
    that SARIF's and GitHub's paths are relative to.
    """

    report: Path | None = None
    sarif: Path | None = None
    annotate: bool = False
    root: Path = Path()

    def write(self, found: dict[str, Any]) -> Iterator[str]:
        """Write both files; a line for each that cannot be written, which stays as it was."""
        for path, option in ((self.report, "--report"), (self.sarif, "--sarif")):
            if path is not None:
                text = found if option == "--report" else sarif.of(found, self.root)
                try:
                    write_whole(path, json.dumps(text, indent=1) + "\n")
                except OSError as error:
                    yield f"{option}: {cannot_write(path, error)}"

    @property
    def can_be_rewritten(self) -> bool:
        """Whether its files may be written more than once."""
        paths = [path for path in (self.report, self.sarif) if path is not None]
        return bool(paths) and all(map(replaceable, paths))

    def print_annotations(self, found: dict[str, Any]) -> None:
        if self.annotate:
            root = os.environ.get("GITHUB_WORKSPACE") or str(self.root)
            for text in for_github(found, root):
                print(text, file=sys.stderr)


def replaceable(path: Path) -> bool:
    """Whether the file can be exchanged for another: not a device, a pipe, or what lies in a folder
    that is closed.
    """
    return (path.is_file() or not path.exists()) and os.access(path.absolute().parent, os.W_OK)


def write_whole(path: Path, text: str) -> None:
    """Write a file that is whole at any moment, the old text or the new one, where it is
    replaceable. Raises OSError, and leaves what was there.
    """
    if not replaceable(path):
        path.write_text(text)
        return
    target = path.resolve()
    beside = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        beside.write_text(text)
        os.replace(beside, target)
    except OSError:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise


def for_github(found: dict[str, Any], root: str) -> Iterator[str]:
    """Findings as commands in the log of a job on GitHub, which shows them beside the lines. root:
    the folder of the repository, that paths are relative to.
    """
    for finding in found["findings"]:
        place = finding["place"]
        values = {"title": f"{finding['kind']} in {finding['kernel']}"}
        if place["file"]:
            file = os.path.relpath(place["file"], root)
            values |= {"file": file, "line": str(max(place["line"], 1))}
        given = ",".join(f"{name}={_property(value)}" for name, value in values.items())
        level = LEVELS.get(finding["severity"], "warning")
        yield f"::{level} {given}::{_data(finding['text'])}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
