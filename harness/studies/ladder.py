"""Modelled against published times of many versions of a kernel, to tell how good the clock is.

    python eval.py ladder TIMES.csv FOLDER --json points.jsonl --jobs 16
    python eval.py ladder TIMES.csv FOLDER --json points.jsonl --only gemm/v3b dual/v2

TIMES.csv has the columns problem, version, benchmark_shape (1 for the first), published_us, note.
FOLDER holds the submissions: nvfp4_gemm/submission_v3b.py for version v3b of gemm. A version whose
file is not there is left out.

Each point is one run of the clock at its nominal constants, in a process of its own; results are
not looked at (`eval.py test` does that). Points go to --json as they come. A point that stands
there already, of the same file by the same clock, is not run again.

The kind of kernel is what the clock says of the launch (b200/clock/kind.py). Where the points are
those of docs/results, `python -m harness figures --write` makes of them, besides the tables, what
ranges beside modelled times come from (b200/clock/published_errors.json).

Versions are halved by sha256("problem/version"): mechanisms are looked for and constants fitted on
the half whose first byte is even; what is said of the clock's error is said of the odd half.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import hashlib
import json
import operator
import os
import statistics
import sys
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from b200.clock.digest import clock_digest
from harness.evaluator import cases, devices
from harness.evaluator.case.job import Job, Outcome
from harness.evaluator.pool import Pool
from harness.evaluator.progress import Progress
from task import Problem, find_problem

COLUMNS = ("problem", "version", "benchmark_shape", "published_us")
TIMEOUT = 1800.0  # seconds a point may take
FEWEST_TO_RANK = 3  # versions of a shape, for a rank correlation
PUBLISHED = (  # of what the project keeps points of, docs/results/ladder.jsonl
    "gau-nernst/gpu-mode-kernels, aee9cda, folder nvidia: times on a B200; eval.py ladder,"
    " docs/results/ladder.jsonl, the odd half of the versions"
)
OTHERS = "; the odd half of docs/results/others.json, each with its source"


Name = TypeVar("Name", bound=Hashable)


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


# --- running ------------------------------------------------------------------------------------


def key(point: Point, folder: Path) -> dict[str, Any]:
    """What a point's record must agree in to be taken for this point's."""
    source = hashlib.sha256(point.file(folder).read_bytes()).hexdigest()[:16]
    return {"name": point.name, "source": source, "clock": clock_digest()}


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


def _job(point: Point, folder: Path, timeout: float) -> Job:
    case = point.case()
    return Job(
        mode="benchmark",
        device="emulator",
        problem=case.problem.name,
        args=dict(case.args),
        inputs="official",
        submission=str(point.file(folder).resolve()),
        timeout=timeout,
        check=False,
    )


def _record(point: Point, folder: Path, outcome: Outcome) -> dict[str, Any]:
    modelled = outcome.modelled or {}
    kept = ("time_us", "kernel_us", "bound_by", "dram_bytes", "l2_bytes", "phases")
    return {
        **key(point, folder),
        **asdict(point),
        "parity": point.parity,
        "kind": modelled.get("kernel_kind", ""),
        "status": "pass" if outcome.good else outcome.status,
        "message": "" if outcome.good else outcome.message,
        "seconds": round(outcome.seconds, 1),
        **{name: modelled.get(name) for name in kept},
    }


def run(
    points: Sequence[Point],
    folder: Path,
    workers: int,
    timeout: float,
    done: Callable[[dict[str, Any]], None],
) -> None:
    """Model the points, `workers` at a time; hand each record to `done`."""
    os.environ.setdefault("CUTE_DSL_DISABLE_FILE_CACHING", "1")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    devices.start_emulator()
    progress = Progress([point.name for point in points])
    pool = Pool("fork", workers, progress.tick)
    try:
        with contextlib.closing(pool.run([_job(p, folder, timeout) for p in points])) as outcomes:
            for point, outcome in zip(points, outcomes):
                progress.clear()
                done(_record(point, folder, outcome))
    finally:
        progress.clear()


# --- what the points say ------------------------------------------------------------------------


def error(record: dict[str, Any]) -> float:
    """Modelled over published, less one."""
    return record["time_us"] / record["published_us"] - 1


def ranks(values: Sequence[float]) -> list[float]:
    """Ranks from 1, ties share their mean."""
    return [
        sum(other < value for other in values) + (values.count(value) + 1) / 2 for value in values
    ]


def spearman(records: Sequence[dict[str, Any]]) -> float | None:
    """Rank correlation of modelled and published times; None where one of them is all the same."""
    if len(records) < FEWEST_TO_RANK:
        return None
    pairs = [[r[name] for r in records] for name in ("time_us", "published_us")]
    if any(len(set(values)) == 1 for values in pairs):
        return None
    return statistics.correlation(*map(ranks, pairs))


def most_spearman(records: Sequence[dict[str, Any]]) -> float | None:
    """The highest rank correlation of the published times with any that all differ: versions that
    publish the same time share a rank, which no clock gives them."""
    published = sorted(r["published_us"] for r in records)
    if len(published) < FEWEST_TO_RANK or published[0] == published[-1]:
        return None
    return statistics.correlation(ranks(published), range(len(published)))


def summary(name: str, records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """name, count, and the errors of some points: median and worst size, mean with its sign."""
    errors = [error(record) for record in records]
    sizes = [abs(e) for e in errors]
    return {
        "name": name,
        "count": len(records),
        "median": statistics.median(sizes),
        "worst": max(sizes),
        "mean": statistics.mean(errors),
    }


def groups(records: Iterable[dict], name: Callable[[dict], Name]) -> dict[Name, list[dict]]:
    """Records by name, in the order in which names come first."""
    found: dict[Name, list[dict]] = {}
    for record in records:
        found.setdefault(name(record), []).append(record)
    return found


def halves(records: Sequence[dict[str, Any]]) -> list[tuple[str, list[dict[str, Any]]]]:
    """The odd half, which is reported, and the even one."""
    return sorted(groups(records, lambda r: r["parity"]).items(), reverse=True)


def summaries(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Errors of both halves, and of each problem and each kind of kernel in each half."""
    found = []
    for parity, half in halves(records):
        found.append(summary(f"{parity} half", half))
        for by in ("problem", "kind"):
            parts = groups(half, operator.itemgetter(by))
            found += [summary(f"{parity}: {by} {name}", parts[name]) for name in parts]
    return found


def shapes(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """A record a shape: how many versions, rank correlation over all of them, the most that it can
    be, and over the odd ones.
    """
    found = []
    for name, part in groups(records, lambda r: f"{r['problem']} {r['shape']}").items():
        odd = [r for r in part if r["parity"] == "odd"]
        found.append(
            {
                "shape": name,
                "versions": len(part),
                "spearman": spearman(part),
                "most": most_spearman(part),
                "odd": len(odd),
                "odd_spearman": spearman(odd),
            }
        )
    return found


def published_errors(
    records: Iterable[dict[str, Any]], others: Sequence[dict[str, Any]] = ()
) -> dict[str, Any]:
    """What b200/clock/spread.py makes ranges of: the errors of the odd half and of other kernels,
    by kind of kernel. others: points of the judging half of docs/results/others.json.
    """
    odd = [r for r in records if r["parity"] == "odd" and r.get("time_us") is not None]
    by_kind = groups([*odd, *others], operator.itemgetter("kind"))
    return {
        "what": "modelled over published time, less one, of B200 kernels nothing was fitted to",
        "source": PUBLISHED + (OTHERS if others else ""),
        "grade": "published",
        "clocks": sorted({r["clock"] for r in (*odd, *others)}),
        "errors": {k: sorted(round(error(r), 4) for r in by_kind[k]) for k in sorted(by_kind)},
    }


def text(records: Sequence[dict[str, Any]]) -> str:
    """What a person reads."""
    timed = [record for record in records if record.get("time_us") is not None]
    lines = ["point               half  published  modelled   error  kind"]
    for r in records:
        begin = f"{r['name']:18}  {r['parity']:4}  {r['published_us']:9.2f}"
        if r.get("time_us") is None:
            lines.append(f"{begin}  {r['status'].upper()}: {r['message'].splitlines()[0][:100]}")
        else:
            lines.append(f"{begin}  {r['time_us']:8.2f}  {error(r):+6.1%}  {r['kind']}")
    lines += ["", "modelled over published      points  median   worst    mean"]
    for s in summaries(timed):
        errors = f"{s['median']:6.1%}  {s['worst']:6.1%}  {s['mean']:+6.1%}"
        lines.append(f"  {s['name']:27} {s['count']:5}  {errors}")
    lines += ["", "rank correlation (Spearman)  versions     at most        odd ones"]
    for s in shapes(timed):
        most, *both = (
            "   -" if s[name] is None else format(s[name], "4.2f")
            for name in ("most", "spearman", "odd_spearman")
        )
        cells = f"{s['versions']:4} {both[0]}         {most}     {s['odd']:4} {both[1]}"
        lines.append(f"  {s['shape']:27} {cells}")
    return "\n".join(lines)


# --- the command --------------------------------------------------------------------------------


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise LadderError(message)


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = _Parser(
        prog="eval.py ladder",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("times", type=Path, metavar="TIMES.csv", help="the published times")
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="where the submissions are")
    parser.add_argument(
        "--json", type=Path, required=True, metavar="FILE", help="add the points here, one a line"
    )
    parser.add_argument(
        "--only", nargs="+", metavar="PROBLEM/VERSION", help="model these versions, or problems"
    )
    parser.add_argument("--half", choices=("odd", "even"), help="model the versions of one half")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="points at a time")
    parser.add_argument(
        "--timeout", type=float, default=TIMEOUT, metavar="S", help="seconds that a point may take"
    )
    arguments = parser.parse_args(argv)
    if not 1 <= arguments.jobs <= 256:
        parser.error(f"--jobs must be 1..256, got {arguments.jobs}")
    if not arguments.timeout > 0:
        parser.error(f"--timeout must be positive, got {arguments.timeout}")
    if not arguments.folder.is_dir():
        parser.error(f"there is no folder {arguments.folder}")
    return arguments


def _select(arguments: argparse.Namespace) -> list[Point]:
    """The points asked for whose files are there."""
    points = read_points(arguments.times)
    for name in arguments.only or ():
        if not any(name in (p.problem, f"{p.problem}/{p.version}") for p in points):
            raise LadderError(f"--only {name}: no such problem or version in {arguments.times}")
    chosen = [
        p
        for p in points
        if (not arguments.only or {p.problem, f"{p.problem}/{p.version}"} & set(arguments.only))
        and arguments.half in (None, p.parity)
    ]
    there = [p for p in chosen if p.file(arguments.folder).is_file()]
    if not there:
        example = (chosen or points)[0].file(arguments.folder)
        raise LadderError(f"no submission of these times is there; expected {example}")
    for version in dict.fromkeys(f"{p.problem}/{p.version}" for p in chosen if p not in there):
        print(f"ladder: no file for {version}", file=sys.stderr)
    return there


def main(argv: Sequence[str]) -> int:
    """The command. 0 if every point was modelled, else 112; 2 for bad arguments."""
    try:
        arguments = _arguments(argv)
        points = _select(arguments)
        kept = read_records(arguments.json)
        keys = {p.name: key(p, arguments.folder) for p in points}
        found = {
            r["name"]: r
            for r in kept
            if r["status"] == "pass"
            and {n: r.get(n) for n in ("name", "source", "clock")} == keys.get(r["name"])
        }
        todo = [p for p in points if p.name not in found]
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        with arguments.json.open("a") as out:

            def done(record: dict[str, Any]) -> None:
                found[record["name"]] = record
                print(json.dumps(record), file=out, flush=True)

            if todo:
                run(todo, arguments.folder, arguments.jobs, arguments.timeout, done)
    except (LadderError, devices.SetupError, OSError) as error:
        print(f"eval.py ladder: {error}", file=sys.stderr)
        return 2
    records = [found[p.name] for p in points]
    _rewrite(arguments.json, kept, records)
    print(text(records))
    return 0 if all(record["status"] == "pass" for record in records) else 112


def _rewrite(path: Path, kept: Sequence[dict], records: Sequence[dict]) -> None:
    """One record a point: these, and of other points what stood there."""
    latest = {record["name"]: record for record in (*kept, *records)}
    whole = path.with_name(path.name + ".new")
    whole.write_text("".join(f"{json.dumps(record)}\n" for record in latest.values()))
    whole.replace(path)
