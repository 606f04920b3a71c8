"""A list of tests that several processes take from, and the rows that they write."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

VARIABLE = "LAB_SUITES"  # of a worker's environment: JSON of Share's fields


class Share:
    """What a worker is told. folder: where the lists lie. worker: its number. limit: CPU seconds
    that a test may take. until: of time.time(), after which no test is begun. collect: write down
    which tests there are, run none.
    """

    def __init__(self, folder: Path, worker: int, limit: float, until: float, collect: bool):
        self.folder, self.worker, self.limit = Path(folder), worker, limit
        self.until, self.collect = until, collect

    @classmethod
    def of_environment(cls) -> Share:
        return cls(**json.loads(os.environ[VARIABLE]))

    def told(self) -> str:
        """The value of VARIABLE."""
        return json.dumps({**vars(self), "folder": str(self.folder)})

    @property
    def rows(self) -> Path:
        return self.folder / f"rows.{self.worker}.jsonl"

    def write(self, line: str) -> None:
        with self.rows.open("a") as file:
            file.write(line + "\n")

    def claims(self) -> Iterator[str]:
        """The tests that this process is to run, until there are none or the time is over."""
        todo = read_list(self.folder / "todo.json")
        while time.time() < self.until and (at := self._next()) < len(todo):
            yield todo[at]

    def _next(self) -> int:
        with (self.folder / "next").open("r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            at = int(file.read())
            file.seek(0)
            file.write(str(at + 1))
        return at


def deal(folder: Path, tests: list[str]) -> None:
    """Begin a list."""
    (folder / "todo.json").write_text(json.dumps(tests))
    (folder / "next").write_text("0")


def read_list(path: Path) -> list[str]:
    return json.loads(path.read_text())


def begun(rows: Path) -> str:
    """The test that a process was running at its end, "" if it was between two."""
    last = ""
    for line in rows.read_text().splitlines() if rows.exists() else ():
        try:
            fields = json.loads(line)
        except ValueError:
            continue
        last = fields.get("begun", "")
    return last
