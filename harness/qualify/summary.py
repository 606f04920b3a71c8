"""What is wrong, a line each: the first thing a reader of the report wants."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from harness.qualify.plan import Scope, plan
from harness.qualify.state import Given

SLOW_PICK = 0.03  # loss of the pick against the best configuration tried
CONSTANT_OFF = 0.1  # of a constant from the table's value


def summary(scope: Scope, given: Mapping[str, Given]) -> list[str]:
    """Wrong results, hangs, failed commands, slow picks, false assumptions, constants that are
    off.
    """
    lines = []
    for command in plan(scope):
        found = given[command.key]
        lines += _failed(command.title, found)
        lines += _rows(found)
    return lines


def _failed(title: str, given: Given) -> Iterator[str]:
    if given.status == "timeout":
        yield f"{title}: did not end and was stopped"
    elif given.status not in (0, 112, 114):
        last = given.told.strip().splitlines()[-1:] or ["no reason given"]
        yield f"{title}: ended with status {given.status}: {last[0]}"


def _rows(given: Given) -> Iterator[str]:
    for row in given.rows:
        if row.get("status") in ("fail", "error", "timeout"):
            message = (row.get("message") or "").strip().splitlines()[:1] or [""]
            yield f"{row['problem']} {row['case']}: {row['status']}: {message[0]}"
        if (row.get("loss") or 0) > SLOW_PICK:
            where = f"{row['problem']} {row['case']}"
            yield f"{where}: the pick loses {row['loss']:.1%} to {row['best']}"
        if row.get("assumed") is not None and row["value"] != row["assumed"]:
            yield f"{row['fact']} is {row['value']}, assumed is {row['assumed']}"
        if row.get("fitted") and abs(row["fitted"] / row["table"] - 1) > CONSTANT_OFF:
            yield (
                f"constant {row['constant']} is {row['fitted']:.4g} by its probe, "
                f"{row['table']:.4g} in the table"
            )
