"""The pictures of the report, as SVG for a page: what was timed, what was chosen, the clock."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from b200 import pictures
from b200.clock.constants import BY_NAME
from harness.evaluator import cases
from harness.evaluator.report import benchmark_of
from task import find_problem

Rows = Sequence[Mapping[str, Any]]
BLUE, RED, GREY, LIGHT = "#466ebe", "#c85a3c", "#888888", "#dddddd"
WIDTH, LINE = 9.5, 0.34  # inches of a figure; of one of its lines


def drawn(rows: Rows) -> Iterator[tuple[str, str]]:
    """(title, SVG) of each picture that the rows have something for."""
    for title, draw in PICTURES.items():
        figure = draw(rows)
        if figure is not None:
            yield title, pictures.svg(figure)


def name_of(row: Mapping[str, Any]) -> str:
    """A shape, short: `gemm 2` for a benchmark, else its sizes."""
    problem = find_problem(row["problem"])
    case = cases.make_case(problem, cases.parse(row["case"]))
    known = benchmark_of(case)
    if known:
        return f"{problem.short} {1 + problem.benchmarks.index(known)}"
    sizes = " x ".join(str(case.args[k]) for k in ("m", "n", "k") if k in case.args)
    return f"{problem.short} {sizes}"


def _lined(names: Sequence[str]) -> tuple[Any, Any]:
    """A figure and its axes with a line a name, the first on top."""
    figure = pictures.new(WIDTH, 1.1 + LINE * len(names))
    axes = figure.subplots()
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.grid(axis="x", color=LIGHT, linewidth=0.6)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(length=0)
    axes.set_axisbelow(True)
    return figure, axes


def _times(rows: Rows) -> Any:
    """Microseconds of each timed shape beside the best known and the speed of light."""
    timed = [row for row in rows if row.get("mode") == "benchmark" and row.get("time_us")]
    if not timed:
        return None
    figure, axes = _lined([name_of(row) for row in timed])
    kind = timed[0]["kind"]
    places = range(len(timed))
    axes.barh(places, [row["time_us"] for row in timed], 0.55, color=BLUE, label=f"this, {kind}")
    spread = [row for row in timed if row.get("low_us")]
    for row in spread:
        axes.plot([row["low_us"], row["high_us"]], [timed.index(row)] * 2, color="#22396b")
    for key, label, mark, colour in (
        ("best_known_us", "best published", "D", RED),
        ("sol_us", "speed of light", "|", "black"),
    ):
        known = [(row[key], place) for place, row in enumerate(timed) if row.get(key)]
        if known:
            axes.plot(*zip(*known), mark, color=colour, label=label, markersize=6)
    axes.set(xlabel=f"us a call, {kind} (line: lowest to highest)", xlim=(0, None))
    axes.legend(fontsize=8, frameon=False)
    return figure


def _choices(rows: Rows) -> Any:
    """Each configuration that was tried, over the best of its shape."""
    tuned = [row for row in rows if row.get("mode") == "tune" and row.get("loss") is not None]
    if not tuned:
        return None
    figure, axes = _lined([name_of(row) for row in tuned])
    for place, row in enumerate(tuned):
        over = [100 * (t["time_us"] / row["best_us"] - 1) for t in row["tried"] if t["time_us"]]
        axes.plot(over[1:], [place] * (len(over) - 1), "o", color=BLUE, alpha=0.7, markersize=5,
                  label="" if place else "tried")  # fmt: skip
        axes.plot(over[:1], [place], "o", markerfacecolor="none", markeredgecolor=RED, markersize=9,
                  markeredgewidth=1.8, label="" if place else "the pick")  # fmt: skip
    axes.axvline(0, color=GREY, linewidth=1)
    axes.set(xlabel=f"% longer than the best of the shape, {tuned[0]['kind']}")
    axes.set_xlim(left=-1)
    axes.legend(fontsize=8, frameon=False)
    return figure


def _constants(rows: Rows) -> Any:
    """What the probes found over what the clock's table says, with the table's ranges."""
    found = [row for row in rows if row.get("fitted")]
    if not found:
        return None
    figure, axes = _lined([row["constant"] for row in found])
    label = "the table's range"
    for place, row in enumerate(found):
        known = BY_NAME[row["constant"]]
        if known.low and known.high and row["table"] == known.value:
            ends = known.low / known.value, known.high / known.value
            axes.plot(ends, [place, place], "-", color=LIGHT, linewidth=7, label=label)
            label = ""
    ratios = [row["fitted"] / row["table"] for row in found]
    axes.plot(ratios, range(len(found)), "o", color=BLUE, label="found")
    axes.axvline(1, color=GREY, linewidth=1)
    axes.set_xscale("log", base=2)
    most = max(1.3, *(max(r, 1 / r) for r in ratios)) * 1.1
    ticks = [t for t in (0.125, 0.25, 0.5, 0.75, 1, 1.5, 2, 4, 8) if 1 / most <= t <= most]
    axes.set_xticks(ticks, [f"{t:g}" for t in ticks])
    axes.xaxis.set_minor_locator(_no_ticks())
    axes.set(xlabel="over the clock's table", xlim=(1 / most, most))
    axes.legend(fontsize=8, frameon=False)
    return figure


def _no_ticks() -> Any:
    from matplotlib.ticker import NullLocator

    return NullLocator()


def _clock(rows: Rows) -> Any:
    """The clock's error on what was timed, with its own constants and with those found."""
    timed = [row for row in rows if row.get("measured_us") and row.get("before_us")]
    if not timed:
        return None
    names = list(dict.fromkeys(name_of(row) for row in timed))
    figure, axes = _lined(names)
    for key, label, colour, up in (
        ("before_us", "with its own constants", GREY, 0.13),
        ("after_us", "with those found", BLUE, -0.13),
    ):
        off = [100 * (row[key] / row["measured_us"] - 1) for row in timed]
        places = [names.index(name_of(row)) - up for row in timed]
        axes.plot(off, places, "o", color=colour, alpha=0.7, markersize=5, label=label)
    axes.axvline(0, color=GREY, linewidth=1)
    most = max(5.0, *(abs(100 * (r[k] / r["measured_us"] - 1)) for r in timed
                      for k in ("before_us", "after_us")))  # fmt: skip
    most = math.ceil(most / 5) * 5 + 1
    axes.set(xlabel="modelled over timed, %", xlim=(-most, most))
    axes.legend(fontsize=8, frameon=False)
    return figure


def _pipelines(rows: Rows) -> Any:
    """Load pipelines beside ordinary loads of as many bytes."""
    timed = [row for row in rows if row.get("mode") == "pipeline"]
    if not timed:
        return None
    figure, axes = _lined([name_of(row) for row in timed])
    places = range(len(timed))
    axes.barh(places, [row["measured_us"] for row in timed], 0.55, color=BLUE, label="pipeline")
    loads = [row["loads_us"] for row in timed]
    axes.plot(loads, places, "D", color=RED, markersize=6, label="ordinary loads")
    axes.set(xlabel="us a call, measured, loads alone", xlim=(0, None))
    axes.legend(fontsize=8, frameon=False)
    return figure


PICTURES: dict[str, Callable[[Rows], Any]] = {
    "Times": _times,
    "Load pipelines alone": _pipelines,
    "The pick among what was tried": _choices,
    "Constants found": _constants,
    "The clock's error": _clock,
}
MISSING = "Pictures need matplotlib: `python -m pip install '.[plot]'`, then --resume draws them."


def possible() -> bool:
    """Whether pictures can be drawn here."""
    try:
        pictures.check(Path("figure.svg"))
    except pictures.NoPicture:
        return False
    return True
