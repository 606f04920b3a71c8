"""The report: one HTML page without outside resources."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from harness.qualify import plots
from harness.qualify.plan import STEPS, Scope, plan, timed_cases
from harness.qualify.state import Given
from harness.qualify.summary import BAD, errors

STYLE = """body{font:15px/1.5 system-ui,sans-serif;max-width:66em;margin:2em auto;padding:0 1em;
color:#222}table{border-collapse:collapse;margin:.5em 0 1.5em;font-size:14px}td,th{padding:.15em
.8em .15em 0;text-align:left;border-bottom:1px solid #ddd;vertical-align:top}td.n{text-align:right;
font-variant-numeric:tabular-nums}h2{margin-top:2.2em;border-bottom:2px solid #222}h3{margin:1.4em 0
.3em}.wrong{color:#a00}svg{max-width:100%;height:auto}pre{background:#f4f4f4;padding:.8em;
overflow-x:auto}summary{cursor:pointer}dl{display:grid;grid-template-columns:max-content 1fr;
gap:.2em 1.5em}dt{color:#666}dd{margin:0}"""
CASE = {"problem": "problem", "case": "case"}
CLOCK = {"before_us": "clock us", "after_us": "with those found us", "message": "message"}
TABLES: dict[str, dict[str, str]] = {  # mode of a row -> its columns: key -> heading
    "machine": {"fact": "", "value": "value", "assumed": "assumed"},
    "test": {**CASE, "status": "status", "message": "message"},
    "benchmark": {
        **CASE,
        "status": "status",
        "time_us": "us",
        "low_us": "lowest",
        "high_us": "highest",
        "sol_us": "speed of light",
        "best_known_us": "best published",
        "bound_by": "bound by",
        "message": "message",
    },
    "tune": {
        **CASE,
        "status": "status",
        "config": "pick",
        "time_us": "us",
        "best": "best",
        "best_us": "us",
        "loss": "loss",
    },
    "probe": {
        "probe": "probe",
        "unit": "unit",
        "measured": "measured",
        "before": "clock",
        "after": "clock, fitted",
        "constant": "constant",
        "table": "table",
        "fitted": "found",
    },
    "clock": {
        **CASE,
        "told": "configuration",
        "measured_us": "timed us",
        **CLOCK,
    },
    "pipeline": {
        **CASE,
        "measured_us": "pipeline us",
        "loads_us": "ordinary loads us",
        **CLOCK,
    },
}
SHARES = ("loss",)  # columns in per cent
LONG = 16  # rows of a table that is folded away


def page(scope: Scope, given: Mapping[str, Given], wrong: Sequence[str], not_run: str = "") -> str:
    """The whole page. wrong, not_run: of summary.py."""
    rows = [row for each in given.values() for row in each.rows]
    drawn = dict(plots.drawn(rows)) if plots.possible() else {}
    parts = [f"<h1>Qualification on {escape(_device(scope, rows))}</h1>", _numbers(scope, rows)]
    if scope.rehearsal:
        parts.append("<p>A rehearsal: a wrong kernel, a hang and a slow pick are planted.</p>")
    if not drawn:
        parts.append(f"<p>{escape(plots.MISSING)}</p>")
    parts.append("<h2>What is wrong</h2>" + (_list(wrong) if wrong else "<p>Nothing.</p>"))
    if not_run:
        parts.append(f"<p>{escape(not_run)}.</p>")
    for step, title in STEPS.items():
        mine = [(c, given[c.key]) for c in plan(scope) if c.step == step and c.key in given]
        parts.append(f"<h2>{escape(title)}</h2>")
        parts += _right(mine) if step == "right" else []
        parts += [f"<h3>{escape(t)}</h3>{drawn[t]}" for t in PLACES[step] if t in drawn]
        told = [row for _, each in mine for row in each.rows]
        parts += _costs(told)
        parts += _tables(step, told)
    head = f"<meta charset=utf-8><title>Qualification</title><style>{STYLE}</style>"
    return f"<!doctype html><html lang=en>{head}<body>{''.join(parts)}</body></html>\n"


PLACES = {  # step -> titles of its pictures
    "machine": (),
    "right": (),
    "fast": ("Times", "Load pipelines alone", "The pick among what was tried"),
    "true": ("Constants found", "The clock's error"),
}


def _device(scope: Scope, rows: Sequence[Mapping[str, Any]]) -> str:
    named = next((str(row["value"]) for row in rows if row.get("fact") == "device"), scope.device)
    where = {"hopper": ", tcgen05 in software", "emulator": ", every time modelled"}
    played = ", with altered constants" if scope.chip else ""
    return named + where.get(scope.device, "") + played + (": rehearsal" * scope.rehearsal)


def _numbers(scope: Scope, rows: Sequence[Mapping[str, Any]]) -> str:
    """What a reader wants to know first."""
    lines = {}
    tested = [r for r in rows if r.get("mode") in ("test", "covering", "repeats")]
    if tested:
        passed = sum(r["status"] == "pass" for r in tested)
        lines["right"] = f"{passed} of {len(tested)} cases, configurations and repeats"
    known = [r for r in rows if r.get("mode") == "benchmark" and r.get("best_known_us")]
    if known:
        ratio = statistics.geometric_mean(r["time_us"] / r["best_known_us"] for r in known)
        lines["fast"] = (
            f"{ratio:.2f} times the best published times, geometric mean of {len(known)} shapes, "
            f"{known[0]['kind']}"
        )
    losses = [r["loss"] for r in rows if r.get("loss") is not None]
    if losses:
        lines["choice"] = (
            f"the pick loses {statistics.mean(losses):.1%} in the mean, {max(losses):.1%} at worst,"
            f" of {len(losses)} of {sum(1 for _ in timed_cases(scope))} shapes"
        )
    off = {end: [abs(e) for e in errors(rows, end)] for end in ("before", "after")}
    if off["before"]:
        lines["clock"] = (
            f"{statistics.mean(off['before']):.1%} off in the mean of {len(off['before'])} times, "
            f"{statistics.mean(off['after']):.1%} with the constants found here"
        )
    items = "".join(f"<dt>{escape(k)}<dd>{escape(v)}" for k, v in lines.items())
    return f"<dl>{items}</dl>"


def _list(lines: Sequence[str]) -> str:
    return "<ul>" + "".join(f"<li class=wrong>{escape(line)}" for line in lines) + "</ul>"


def _right(mine: Sequence[tuple[Any, Given]]) -> Iterator[str]:
    """A line a command: how many of its cases passed."""
    lines = []
    for command, each in mine:
        states = [row["status"] for row in each.rows if "status" in row]
        bad = sum(state in BAD for state in states)
        skipped = sum(state == "skipped" for state in states)
        said = f"{len(states) - bad - skipped} of {len(states)} right"
        said += f", {skipped} not possible here" if skipped else ""
        shown = f"<span class=wrong>{said}</span>" if bad or not states else said
        lines.append(f"<tr><td>{escape(command.title)}<td>{shown}")
    yield f"<table>{''.join(lines)}</table>"


def _costs(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The coefficients of the kernel's estimate, as a line to paste."""
    for row in rows:
        if row.get("mode") != "costs":
            continue
        yield "<h3>Coefficients of the kernel's estimate</h3>"
        if row["status"] != "pass":
            yield f"<p>None: {escape(row['message'])}.</p>"
            continue
        held = row["loss_held_out"]
        yield (
            f"<p>Fitted to {row['shapes']} shapes. The best estimate of those tried loses "
            f"{row['loss_before']:.1%} in the mean as it is, {row['loss_after']:.1%} with these"
        )
        yield f", {held:.1%} on shapes left out of the fit.</p>" if held is not None else ".</p>"
        yield f"<pre>{escape(row['paste'])}</pre>"
        if row["untried"]:
            yield (
                f"<p>With them the pick of {len(row['untried'])} of the shapes is a configuration "
                "that was not timed: paste, and run <code>python eval.py tune</code> again.</p>"
            )


def _tables(step: str, rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """A table a kind of row."""
    kinds: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        mode = "probe" if "probe" in row else row.get("mode", step)
        kinds.setdefault("test" if step == "right" else mode, []).append(row)
    for mode, mine in kinds.items():
        if mode not in TABLES:
            continue
        if mode == "clock":
            mine = [{**row, "told": _told(row)} for row in mine]
        table = _table(mine, TABLES[mode])
        many = len(mine) > LONG or step == "right"
        yield f"<details><summary>{len(mine)} rows</summary>{table}</details>" if many else table


def _told(row: Mapping[str, Any]) -> str:
    return " ".join(f"{k}={v}" for k, v in row["config"].items()) or "the pick"


def _table(rows: Sequence[Mapping[str, Any]], columns: dict[str, str]) -> str:
    used = {k: v for k, v in columns.items() if any(row.get(k) not in (None, "") for row in rows)}
    head = "".join(f"<th>{escape(name)}" for name in used.values())
    lines = ["<tr>" + "".join(_cell(key, row.get(key)) for key in used) for row in rows]
    return f"<table><tr>{head}{''.join(lines)}</table>"


def _cell(key: str, value: Any) -> str:
    if isinstance(value, float):
        return f"<td class=n>{value:.1%}" if key in SHARES else f"<td class=n>{value:.4g}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"<td class=n>{value}"
    text = escape(str(value).strip().splitlines()[0]) if value else ""
    return f"<td class=wrong>{text}" if key == "status" and text in BAD else f"<td>{text}"
