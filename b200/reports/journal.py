"""The journal of a run: a line of JSON for each record, of all its processes.

It lies in memory that has a name below /proc for as long as the process that made it lives. Each
record is one appending write, so records of several processes do not mix, and what a process has
written stays when it is killed.
"""

from __future__ import annotations

import functools
import json
import os
from typing import Any

from b200.records import as_object

VARIABLE = "B200_RUN"  # of the environment: where the journal of the run is, and its settings


class Journal:
    """Records of a run. path: where other processes find it."""

    def __init__(self, path: str):
        self.path = path
        self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)

    @classmethod
    def new(cls) -> Journal:
        """An empty one, which ends with this process."""
        kept = os.memfd_create("b200-journal")
        return cls(f"/proc/{os.getpid()}/fd/{kept}")

    def add(self, record: dict[str, Any]) -> None:
        os.write(self._file, b"\n" + json.dumps(record).encode() + b"\n")

    @property
    def size(self) -> int:
        """In bytes. It grows with each record."""
        return os.fstat(self._file).st_size

    def read(self, begin: int = 0) -> tuple[list[dict[str, Any]], int]:
        """The records from a byte on, and the byte behind them. What a process was killed in the
        midst of is left out.
        """
        end = self.size
        data = os.pread(self._file, end - begin, begin)
        return list(filter(None, map(_record, data.split(b"\n")))), end


def _record(line: bytes) -> dict[str, Any] | None:
    try:
        found: Any = json.loads(line) if line else None
    except ValueError:
        return None
    return as_object(found) or None


def of_the_run() -> tuple[Journal, dict[str, Any]] | None:
    """The journal of the run that this process belongs to, and the settings of its B200; None where
    it belongs to none.
    """
    text = os.environ.get(VARIABLE, "")
    return _told(text) if text else None


@functools.cache
def _told(text: str) -> tuple[Journal, dict[str, Any]] | None:
    found = json.loads(text)
    try:
        return Journal(found["journal"]), found["settings"]
    except OSError:  # the run is over
        return None


def announce(journal: Journal, settings: dict[str, Any]) -> None:
    """Tell the processes that this one starts. settings: keyword arguments of `b200.install`."""
    os.environ[VARIABLE] = json.dumps({"journal": journal.path, "settings": settings})
