"""The report: one HTML page without outside resources."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from harness.qualify.plan import STEPS, Scope, plan
from harness.qualify.state import Given

STYLE = """body{font:15px/1.5 sans-serif;max-width:70em;margin:2em auto;padding:0 1em;color:#222}
table{border-collapse:collapse;margin:.5em 0 1.5em}td,th{padding:.15em .8em;text-align:left;
border-bottom:1px solid #ddd;vertical-align:top}td.n{text-align:right;
font-variant-numeric:tabular-nums}h2{margin-top:2em}.wrong{color:#a00}.bar{background:#4a7;
height:.7em;display:inline-block}"""
SHOWN = {  # columns of a table: key of a row -> heading
    "machine": {"fact": "", "value": "value", "assumed": "assumed"},
    "right": {"problem": "problem", "case": "case", "status": "status", "message": "message"},
    "fast": {
        "problem": "problem",
        "case": "case",
        "status": "status",
        "kind": "kind",
        "time_us": "us",
        "floor_us": "floor us",
        "best_known_us": "best known us",
        "bound_by": "bound by",
        "config": "configuration",
        "loss": "loss of the pick",
        "message": "message",
    },
    "true": {
        "probe": "probe",
        "measured": "measured",
        "before": "clock",
        "after": "clock, fitted",
        "unit": "unit",
        "constant": "constant",
        "table": "table",
        "fitted": "found",
    },
}


def page(scope: Scope, given: Mapping[str, Given], wrong: Sequence[str]) -> str:
    """The whole page. wrong: the lines of summary.py."""
    parts = [f"<h1>Qualification on {escape(scope.device)}</h1>"]
    parts.append("<h2>What is wrong</h2>" + (_list(wrong) if wrong else "<p>Nothing.</p>"))
    for step, title in STEPS.items():
        parts.append(f"<h2>{escape(title)}</h2>")
        rows: list[dict[str, Any]] = []
        for command in plan(scope):
            if command.step == step:
                rows += given[command.key].rows
        if step == "fast":
            parts.append(_bars(rows))
        parts.append(_table(rows, SHOWN[step]))
    head = f"<meta charset=utf-8><title>Qualification</title><style>{STYLE}</style>"
    return f"<!doctype html><html lang=en>{head}<body>{''.join(parts)}</body></html>\n"


def _list(lines: Sequence[str]) -> str:
    return "<ul>" + "".join(f"<li class=wrong>{escape(line)}" for line in lines) + "</ul>"


def _table(rows: Sequence[dict[str, Any]], columns: dict[str, str]) -> str:
    used = {k: v for k, v in columns.items() if any(row.get(k) not in (None, "") for row in rows)}
    head = "".join(f"<th>{escape(name)}" for name in used.values())
    lines = ["<tr>" + "".join(_cell(row.get(key)) for key in used) for row in rows]
    return f"<table><tr>{head}{''.join(lines)}</table>"


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"<td class=n>{value:.4g}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"<td class=n>{value}"
    return f"<td>{escape(str(value).strip().splitlines()[0]) if value else ''}"


def _bars(rows: Sequence[dict[str, Any]]) -> str:
    """Times beside the best known, as bars; says whether they are measured or modelled."""
    timed = [row for row in rows if row.get("time_us") and row.get("best_known_us")]
    if not timed:
        return ""
    longest = max(max(row["time_us"], row["best_known_us"]) for row in timed)
    lines = []
    for row in timed:
        for name, key, colour in (
            (row["kind"], "time_us", "#4a7"),
            ("best known", "best_known_us", "#bbb"),
        ):
            width = 30 * row[key] / longest
            bar = f"<span class=bar style='width:{width:.2f}em;background:{colour}'></span>"
            label = f"{row['problem']} {row['case']}" if key == "time_us" else ""
            lines.append(f"<tr><td>{escape(label)}<td>{bar} {row[key]:.2f} us {escape(name)}")
    return f"<table>{''.join(lines)}</table>"
