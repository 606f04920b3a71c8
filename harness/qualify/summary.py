"""What is wrong, a line each, and what was not run: what a reader of the report wants first."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from harness.qualify.plan import Scope, plan
from harness.qualify.state import Given

SLOW_PICK = 0.03  # loss of the pick against the best configuration tried
CONSTANT_OFF = 0.1  # of a constant from the table's value
CLOCK_OFF = 0.1  # mean of the clock's errors, with its own constants
LONGEST = 300  # characters of a message
BAD = ("fail", "error", "timeout")


def summary(scope: Scope, given: Mapping[str, Given]) -> list[str]:
    """Wrong results, hangs, failed commands, slow picks, false assumptions, constants that are
    off, a clock that is.
    """
    lines = []
    for command in plan(scope):
        if command.key not in given:
            continue
        found = given[command.key]
        lines += _failed(command.title, found)
        lines += _rows(found)
    lines += _clock([row for each in given.values() for row in each.rows])
    return lines if given else ["nothing was run: --minutes left no time"]


def not_run(scope: Scope, given: Mapping[str, Given]) -> str:
    """What was not run for want of time, which is no fault; "" if all was run."""
    missing = [command.title for command in plan(scope) if command.key not in given]
    many = f"{len(missing)} of {len(plan(scope))} parts not run for want of time (--minutes)"
    return f"{many}: {'; '.join(missing)}" if missing else ""


def errors(rows: Sequence[Mapping[str, Any]], end: str) -> list[float]:
    """The clock's error on each thing timed; end: "before" or "after" its constants were found."""
    found = [row for row in rows if row.get("measured_us") and row.get("before_us")]
    return [row[f"{end}_us"] / row["measured_us"] - 1 for row in found]


def _clock(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    off = {end: errors(rows, end) for end in ("before", "after")}
    if off["before"]:
        mean = {end: statistics.mean(map(abs, each)) for end, each in off.items()}
        if max(mean.values()) > CLOCK_OFF:
            yield (
                f"the clock is {mean['before']:.1%} off on {len(off['before'])} times, "
                f"{mean['after']:.1%} with the constants that were found"
            )


def _failed(title: str, given: Given) -> Iterator[str]:
    if given.status == "timeout":
        yield f"{title}: did not end and was stopped"
    elif given.status not in (0, 112, 114):
        last = given.told.strip().splitlines()[-1:] or ["no reason given"]
        yield f"{title}: ended with status {given.status}: {last[0]}"


def _short(text: str, most: int) -> str:
    first = (text.strip().splitlines() or [""])[0]
    return first if len(first) <= most else f"{first[:most]} ..."


def _rows(given: Given) -> Iterator[str]:
    for row in given.rows:
        if row.get("status") in BAD:
            message = _short(row.get("message") or "", LONGEST)
            yield f"{row['problem']} {row['case']}: {row['status']}: {message}"
        if (row.get("loss") or 0) > SLOW_PICK:
            where = f"{row['problem']} {row['case']}"
            yield f"{where}: the pick loses {row['loss']:.1%} to {row['best']}"
        if row.get("assumed") is not None and row["value"] != row["assumed"]:
            yield f"{row['fact']} is {row['value']}, assumed is {row['assumed']}"
        if "fitted" in row and row["fitted"] is None:
            yield (
                f"constant {row['constant']}: no value explains its probe, {row['measured']:.4g} "
                f"{row['unit']}, {row['before']:.4g} by the clock"
            )
        if row.get("fitted") and abs(row["fitted"] / row["table"] - 1) > CONSTANT_OFF:
            yield (
                f"constant {row['constant']} is {row['fitted']:.4g} by its probe, "
                f"{row['table']:.4g} in the table"
            )
