"""The clock's error on what was timed, with its own constants and with those that were found: JSON
lines, one a shape and configuration.

python -m harness.qualify.clock_error --state qualify/state.json --constants qualify/constants.json

Each configuration that `fast` timed is modelled twice. Modelled microseconds stand beside those of
the device, by the same protocol.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from b200.clock.overrides import read_file
from b200.command_line import Parser
from harness.evaluator import cases, devices
from harness.evaluator.case.job import Job
from harness.evaluator.pool import Pool
from harness.qualify.state import read
from task import find_problem


@dataclass(frozen=True)
class Timed:
    """A configuration of a shape, () for the submission's pick, and its microseconds."""

    problem: str
    case: str
    config: tuple[tuple[str, Any], ...]
    us: float
    mode: str


def timed(rows: list[dict[str, Any]]) -> Iterator[Timed]:
    """What was timed, from the rows of `eval.py benchmark` and `eval.py tune`."""
    for row in rows:
        if row.get("mode") == "benchmark" and row.get("time_us"):
            yield Timed(row["problem"], row["case"], (), row["time_us"], "benchmark")
        for trial in row.get("tried", ()):
            if trial["time_us"]:
                config = tuple(trial["config"].items())
                yield Timed(row["problem"], row["case"], config, trial["time_us"], "tune")


def job_of(item: Timed, options: argparse.Namespace, constants: dict[str, float]) -> Job:
    case = cases.make_case(find_problem(item.problem), cases.parse(item.case))
    told = {"mode": "tune", "device": "emulator", "timeout": options.timeout}
    told |= {"constants": tuple(constants.items()), "config": item.config}
    return Job.of(case, options.submission, **told)


def main(argv: list[str] | None = None) -> int:
    parser = Parser("python -m harness.qualify.clock_error", __doc__)
    parser.add_argument("--state", type=Path, required=True)
    parser.add_argument("--constants", type=Path, required=True, help="those that were found")
    parser.add_argument("--submission", type=Path, required=True)
    parser.add_argument("--timeout", type=float, default=900.0, help="seconds a configuration")
    parser.add_argument("--jobs", type=int)
    options = parser.parse_args(argv)
    found = read_file(options.constants)
    items = list(timed([row for given in read(options.state).values() for row in given.rows]))
    if not items:
        print(f"clock_error: {options.state} has no time to compare", file=sys.stderr)
        return 2
    device = devices.resolve("emulator")
    devices.start_emulator()
    workers, threads = devices.parallel_cases(device, "tune", options.jobs)
    work = [
        replace(job_of(item, options, constants), threads=threads)
        for item in items
        for constants in ({}, found)
    ]
    outcomes = Pool(device.method, workers).run(work)
    for item in items:
        before, after = next(outcomes), next(outcomes)
        bad = next((o for o in (before, after) if o.status != "pass"), None)
        row: dict[str, Any] = {"problem": item.problem, "case": item.case, "mode": "clock"}
        row |= {"of": item.mode, "config": dict(item.config)}
        if bad:
            row |= {"status": bad.status, "message": bad.message}
        else:
            assert before.modelled and after.modelled
            row |= {"status": "pass", "measured_us": item.us}
            row |= {"before_us": before.modelled["time_us"], "after_us": after.modelled["time_us"]}
        print(json.dumps(row), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
