"""Findings as annotations of a job on GitHub: commands in its log, shown beside the lines."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from b200.checker.finding import ERROR, NOTE

LEVELS = {ERROR: "error", NOTE: "notice"}  # portability: warning


def lines(document: dict[str, Any], root: str) -> Iterator[str]:
    """A line a finding. root: the folder of the repository, that paths are relative to."""
    for finding in document["findings"]:
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
