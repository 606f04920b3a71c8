"""The picture of compare: a bar a call, cut into phases, and below it the timelines of the kernels,
one above the other on one scale.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from b200 import pictures
from b200.clock import draw
from b200.clock.strip import Strip
from harness.evaluator.quantities import CALL, KERNEL_ALONE

WIDTH = 12.5  # inches
BAR, MARGIN = 0.34, 1.9  # inches: of a bar; of the axis and the legend
WIDE = 0.028  # of the axis: a part at least as long has its time written into it
REST = "launch gap and events"
COLOURS = ("#a9c9e8", "#7fb27f", "#e7c27d", "#d98b73", "#b39bc8", "#8fb9b5", "#c9a0a0", "#bdbdbd")


@dataclass(frozen=True)
class Timed:
    """A submission on a case. us: of a call, None where there is none. low, high: its range.
    phases: of the kernel alone, (name, us).
    """

    name: str
    us: float | None
    low: float
    high: float
    ratio: float | None
    phases: tuple[tuple[str, float], ...]


def plot(
    rows: Mapping[str, Sequence[Timed]],
    strips: Sequence[Strip],
    path: Path,
    title: str,
    kind: str,
) -> None:
    """rows: by case. strips: timelines on the first case. kind: modelled or measured. Raises
    NoPicture.
    """
    count = sum(len(row) + 1 for row in rows.values())
    heights = [MARGIN + BAR * count, *(draw.height(strip) + 0.75 for strip in strips)]
    figure = pictures.new(WIDTH, sum(heights) + 0.6)
    axes, *below = figure.subplots(
        len(heights), 1, squeeze=False, gridspec_kw={"height_ratios": heights}
    ).ravel()
    _bars(axes, rows, kind)
    until = max((strip.time_us for strip in strips), default=0.0)
    hints: dict[str, list[str]] = {}
    for number, (strip, place) in enumerate(zip(strips, below)):
        hints |= draw.draw(place, strip, until, f"strip{number}")
        place.set_title(strip.title, fontsize=9, loc="left")
    if below:
        below[-1].set_xlabel(draw.TIME)
        draw.legend(figure, strips)
    figure.suptitle(title, fontsize=11, x=0.01, ha="left")
    pictures.save(figure, path, f"{title}, {kind}", hints=hints)


def _bars(axes: Any, rows: Mapping[str, Sequence[Timed]], kind: str) -> None:
    """Horizontal bars, those of a case together; the number of a part is that of the legend."""
    every = [timed for row in rows.values() for timed in row]
    names = list(dict.fromkeys(name for timed in every for name, _ in timed.phases))
    longest = max((timed.high for timed in every if timed.us is not None), default=1.0)
    places, labels = [], []
    at, seen = 0.0, set[str]()
    for case, row in rows.items():
        axes.text(0, at, f" {case}", fontsize=8, fontweight="bold", va="center")
        at += 1
        for timed in row:
            places.append(at)
            labels.append(timed.name)
            _bar(axes, at, timed, names, longest, seen)
            at += 1
    axes.set_yticks(places, labels, fontsize=8)
    axes.set_ylim(at - 0.3, -0.6)
    axes.set_xlim(0, longest * 1.22)
    whiskers = "fastest to slowest round" if kind == "measured" else "the clock's errors"
    axes.set_xlabel(f"{CALL}, {kind}, us; black whiskers: {whiskers}", fontsize=9)
    axes.grid(axis="x", color="#dddddd", linewidth=0.5)
    axes.set_axisbelow(True)
    if seen:
        axes.legend(
            fontsize=7, ncols=4, loc="upper center", bbox_to_anchor=(0.5, -0.32 * 5 / (at + 3))
        )


def _bar(
    axes: Any, at: float, timed: Timed, names: Sequence[str], longest: float, seen: set[str]
) -> None:
    """One call; `seen` holds what the legend has already."""
    if timed.us is None:
        axes.text(0, at, " failed, or not timed", fontsize=8, va="center", color="#a03030")
        return
    phases = dict(timed.phases)
    parts = [
        (f"({i + 1}) {name}", phases.get(name, 0.0), COLOURS[i % len(COLOURS)])
        for i, name in enumerate(names)
    ]
    rest = max(timed.us - sum(phases.values()), 0.0)
    parts.append((REST if phases else "time", rest, "#e8e8e8"))
    begin = 0.0
    for name, width, colour in parts:
        label = None if name in seen else name
        axes.barh(at, width, left=begin, height=0.7, color=colour, label=label)
        seen.add(name)
        if width >= longest * WIDE:
            axes.text(begin + width / 2, at, f"{width:.2f}", fontsize=7, ha="center", va="center")
        begin += width
    spread = [[max(timed.us - timed.low, 0)], [max(timed.high - timed.us, 0)]]
    axes.errorbar(timed.us, at + 0.28, xerr=spread, color="black", capsize=2, linewidth=0.8)
    axes.text(
        max(timed.high, timed.us) + longest * 0.008, at, _said(timed), fontsize=8, va="center"
    )


def _said(timed: Timed) -> str:
    """A bar's own words: the time of a call, how many times the first one's, and the kernel's."""
    said = f"{timed.us:.2f} us"
    if timed.ratio not in (None, 1.0):
        said += f", {timed.ratio:.3f} of the first"
    if timed.phases:
        said += f"\n{KERNEL_ALONE} {sum(us for _, us in timed.phases):.2f}"
    return said
