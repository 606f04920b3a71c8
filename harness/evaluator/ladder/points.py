"""Published times: the points of a ladder, as a file has them and as they are kept."""

from __future__ import annotations

import csv
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import digest
from harness.evaluator import cases
from harness.evaluator.made_by import sources
from task import Problem, find_problem

COLUMNS = ("problem", "version", "benchmark_shape", "published_us")


class LadderError(Exception):
    """Arguments or files that make no sense; str() is one line."""


def half(name: str) -> str:
    """The half that something of this name belongs to: "odd" or "even"."""
    return "odd" if hashlib.sha256(name.encode()).digest()[0] % 2 else "even"


@dataclass(frozen=True)
class Point:
    """One published time. shape: number of the benchmark case, from 1. note: as in the file."""

    problem: str
    version: str
    shape: int
    published_us: float
    note: str

    @property
    def parity(self) -> str:
        """The half that the version belongs to: "odd" or "even"."""
        return half(f"{self.problem}/{self.version}")

    @property
    def name(self) -> str:
        return f"{self.problem}/{self.version} {self.shape}"

    def file(self, folder: Path) -> Path:
        return folder / find_problem(self.problem).name / f"submission_{self.version}.py"

    def case(self) -> cases.Case:
        problem = find_problem(self.problem)
        return cases.make_case(problem, problem.benchmarks[self.shape - 1].args)


def read_points(path: Path) -> list[Point]:
    """The rows of a file of published times. Raises LadderError."""
    try:
        with path.open(newline="", encoding="utf-8") as lines:
            rows = list(csv.DictReader(lines))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise LadderError(f"cannot read {path}: {error}") from None
    if not rows:
        raise LadderError(f"{path} holds no times; its columns are {', '.join(COLUMNS)}, note")
    if missing := [name for name in COLUMNS if name not in rows[0]]:
        raise LadderError(f"{path} has no column {missing[0]}; expected {', '.join(COLUMNS)}, note")
    return [_point(row, f"{path}:{number}") for number, row in enumerate(rows, 2)]


def _point(row: dict[str, Any], where: str) -> Point:
    try:
        problem: Problem = find_problem(row["problem"] or "")
        shape, us = int(row["benchmark_shape"]), float(row["published_us"])
    except (TypeError, ValueError) as error:
        raise LadderError(f"{where}: {error}") from None
    if not 1 <= shape <= len(problem.benchmarks):
        most = len(problem.benchmarks)
        raise LadderError(f"{where}: benchmark_shape of {problem.short} is 1..{most}, got {shape}")
    if not 0 < us < 1e6:
        raise LadderError(f"{where}: published_us must be positive, got {row['published_us']}")
    version = row["version"] or ""
    if not version or Path(version).name != version:
        raise LadderError(f"{where}: expected a version such as v3b, got {version!r}")
    return Point(problem.short, version, shape, us, (row.get("note") or "").strip())


def key(point: Point, folder: Path) -> dict[str, Any]:
    """What a point's record must agree in to be taken for this point's."""
    source = hashlib.sha256(point.file(folder).read_bytes()).hexdigest()[:16]
    made_by = digest.made_by() | sources(folder.resolve())
    return {"name": point.name, "source": source, "made_by": made_by}


def read_records(path: Path) -> list[dict[str, Any]]:
    """What an earlier run left; a line that was cut short is dropped. Raises LadderError."""
    if not path.exists():
        return []
    records = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if not isinstance(record, dict) or "name" not in record:
            raise LadderError(f"{path}:{number} is no record of a ladder: {line[:60]!r}")
        records.append(record)
    return records
