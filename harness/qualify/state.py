"""What the commands gave, kept in a file after each, so that a run that was ended can go on."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from b200 import records


@dataclass(frozen=True)
class Given:
    """What a command gave. status: its exit status, or "timeout". rows: the JSON objects it
    printed. told: the end of what it said on stderr, where it failed.
    """

    status: int | str
    rows: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    told: str = ""


def read(path: Path) -> dict[str, Given]:
    """What the commands gave, from a state.json. Raises StateError."""
    return {key: Given(**value) for key, value in _parsed(path)["given"].items()}


def _parsed(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise StateError(f"{path} cannot be read: {error}") from None


class StateError(Exception):
    """The folder's state is not of this run; str() is one line."""


class State:
    """Results by command, in `folder`/state.json. scope: what was asked for, to go on with no
    other.
    """

    def __init__(self, folder: Path, scope: dict[str, Any], resume: bool):
        self.path = folder / "state.json"
        self.scope = json.loads(json.dumps(scope))
        self.given: dict[str, Given] = {}
        folder.mkdir(parents=True, exist_ok=True)
        if resume:
            self._read()
        elif self.path.exists():
            raise StateError(f"{self.path} is there: --resume goes on with it, --out names another")

    def _read(self) -> None:
        if not self.path.exists():
            return
        found = _parsed(self.path)
        if found["scope"] != self.scope:
            odd = [key for key in self.scope if self.scope[key] != found["scope"].get(key)]
            raise StateError(f"{self.path} is of a run with other arguments: {', '.join(odd)}")
        self.given = read(self.path)

    def add(self, key: str, given: Given) -> None:
        """Keep a result; the file is whole at any moment."""
        self.given[key] = given
        written = {"scope": self.scope, "given": {k: asdict(v) for k, v in self.given.items()}}
        beside = self.path.with_suffix(".new")
        records.write(beside, written)
        os.replace(beside, self.path)
