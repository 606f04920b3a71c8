"""Modelled against published times of many versions of a kernel, to tell how good the clock is.

    python eval.py ladder TIMES.csv FOLDER --out points.jsonl --jobs 16
    python eval.py ladder TIMES.csv FOLDER --out points.jsonl --only gemm/v3b dual/v2

TIMES.csv has the columns problem, version, benchmark_shape (1 for the first), published_us, note.
FOLDER holds the submissions: nvfp4_gemm/submission_v3b.py for version v3b of gemm. A version whose
file is not there is left out.

Each point is one run of the clock at its nominal constants, in a process of its own; results are
not looked at (`eval.py test` does that). Points go to --out as they come. A point that stands
there already, of the same file by the same clock, is not run again.

The kind of kernel is what the clock says of the launch (b200/clock/kind.py). Where the points are
those of docs/results, `python -m lab figures --write` makes of them, besides the tables, what
ranges beside modelled times come from (b200/clock/published_errors.json).

Versions are halved by sha256("problem/version"): mechanisms are looked for and constants fitted on
the half whose first byte is even; what is said of the clock's error is said of the odd half.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from b200.command_line import Parser
from harness.evaluator import devices
from harness.evaluator.case.job import Job, Outcome
from harness.evaluator.ladder.errors import text
from harness.evaluator.ladder.points import LadderError, Point, key, read_points, read_records
from harness.evaluator.pool import Pool
from harness.evaluator.progress import Progress

TIMEOUT = 1800.0  # seconds a point may take


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
    told = {"mode": "benchmark", "device": "emulator", "timeout": timeout, "check": False}
    jobs = [Job.of(p.case(), p.file(folder), **told) for p in points]
    try:
        with contextlib.closing(pool.run(jobs)) as outcomes:
            for point, outcome in zip(points, outcomes):
                progress.clear()
                done(_record(point, folder, outcome))
    finally:
        progress.clear()


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = Parser("eval.py ladder", __doc__, LadderError)
    parser.add_argument("times", type=Path, metavar="TIMES.csv", help="the published times")
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="where the submissions are")
    parser.add_argument(
        "--out", type=Path, required=True, metavar="FILE", help="add the points here, one a line"
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
        kept = read_records(arguments.out)
        keys = {p.name: key(p, arguments.folder) for p in points}
        found = {
            r["name"]: r
            for r in kept
            if r["status"] == "pass"
            and {n: r.get(n) for n in ("name", "source", "made_by")} == keys.get(r["name"])
        }
        todo = [p for p in points if p.name not in found]
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        with arguments.out.open("a") as out:

            def done(record: dict[str, Any]) -> None:
                found[record["name"]] = record
                print(json.dumps(record), file=out, flush=True)

            if todo:
                run(todo, arguments.folder, arguments.jobs, arguments.timeout, done)
    except (LadderError, devices.SetupError, OSError) as error:
        print(f"eval.py ladder: {error}", file=sys.stderr)
        return 2
    records = [found[p.name] for p in points]
    _rewrite(arguments.out, kept, records)
    print(text(records))
    return 0 if all(record["status"] == "pass" for record in records) else 112


def _rewrite(path: Path, kept: Sequence[dict[str, Any]], records: Sequence[dict[str, Any]]) -> None:
    """One record a point: these, and of other points what stood there."""
    latest = {record["name"]: record for record in (*kept, *records)}
    whole = path.with_name(path.name + ".new")
    whole.write_text("".join(f"{json.dumps(record)}\n" for record in latest.values()))
    whole.replace(path)
