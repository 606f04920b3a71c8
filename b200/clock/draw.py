"""Draws the timeline of a timed launch: a trace for ui.perfetto.dev, and a picture of one CTA."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from b200 import pictures
from b200.clock import profile
from b200.clock.profile import roles
from b200.clock.strip import K_TILES, WAITS, WORKS, Row, Strip, strip_of
from b200.clock.timeline import Timeline

COLOURS = {
    WORKS: "#5a965a",
    WAITS: "#e6e6e6",
    "TMA": "#466ebe",
    "shared-memory fill": "#6ea0dc",
    "tensor core": "#c85a3c",
    "tcgen05.cp": "#dca05a",
    "tensor memory": "#9664b4",
}
OTHER = "#787878"
GREYS = ("#d0d0d0", "#b4b4b4", "#989898", "#7c7c7c", "#606060", "#444444")  # of waits, by barrier
WIDTH, ROW_INCHES = 11, 0.24
NUMBERS_APART = 0.018  # of the axes' width, at least
TIME = "modelled time since the start of the kernel, us"


def write_trace(record: Timeline, path: Path) -> None:
    """Write Chrome trace events (JSON): one process for each traced CTA, one track for each warp
    and each unit, times in microseconds.
    """
    names = roles(record)
    events: list[dict[str, object]] = []

    def name(what: str, said: str, cta: int, **track: int) -> None:
        events.append({"ph": "M", "name": what, "pid": cta, **track, "args": {"name": said}})

    def span(what: str, cta: int, track: int, start: float, end: float, **more: object) -> None:
        times = {"ts": record.us(start), "dur": record.us(end - start)}
        events.append({"ph": "X", "name": what, "pid": cta, "tid": track, **times, **more})

    for number, index, sm, start, end in record.ctas[: record.trace]:
        name("process_name", f"CTA {index} on SM {sm}", number)
        for warp, role in names.items():
            name("thread_name", f"warp {warp} ({role})", number, tid=warp)
            until = record.exits.get((number, warp), end or record.end)
            span(role, number, warp, start, until)
    for wait in record.spans:
        said = {"line": wait.line, "ptx": wait.ins.text}
        what = f"waits for {wait.barrier or wait.what}"
        span(what, wait.cta, wait.warp, wait.start, wait.end, args=said)
    tracks: dict[str, int] = {}
    for number, unit, start, end, what in record.units:
        span(what, number, 1000 + tracks.setdefault(unit, len(tracks)), start, end)
    for number in {u[0] for u in record.units}:
        for unit, tid in tracks.items():
            name("thread_name", unit, number, tid=1000 + tid)
    meta = {
        "kernel": record.launch.kernel,
        "time": "modelled, not measured",
        "clock_ghz": record.ghz,
    }
    path.write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ns", "otherData": meta}))


def write_picture(record: Timeline, path: Path, what: str = "") -> None:
    """Write the timeline of the first CTA, with a row for each warp and each unit, as PNG, SVG, PDF
    or HTML by the suffix of `path`.

    what: the problem, for the title. In an HTML page the mouse shows what each wait is for and at
    which line; the profile stands below. Raises pictures.NoPicture.
    """
    strip = strip_of(record, what)
    figure = pictures.new(WIDTH, height(strip) + 1.3)
    axes: Any = figure.subplots()  # matplotlib leaves the types of its methods open
    hints = draw(axes, strip, strip.time_us)
    heading = pictures.set_title(axes, strip.title, path)
    axes.set_xlabel(TIME)
    legend(figure, [strip])
    pictures.save(figure, path, heading, profile.text(record), hints)


def height(strip: Strip) -> float:
    """Inches of a strip's axes."""
    return 0.6 + ROW_INCHES * len(strip.rows)


def draw(axes: Any, strip: Strip, until: float, prefix: str = "bars") -> dict[str, list[str]]:
    """Draw a strip, up to a time in us. Returns the words under the mouse, by gid of the bars;
    the gids begin with `prefix`.
    """
    hints: dict[str, list[str]] = {}
    greys = _greys(strip)
    known = COLOURS | greys
    for index, row in enumerate(strip.rows):
        if row.name == K_TILES:
            _numbers(axes, index, row, until)
            continue
        for kind in dict.fromkeys(bar.kind for bar in row.bars):
            bars = [bar for bar in row.bars if bar.kind == kind]
            spans = [(bar.start, bar.end - bar.start) for bar in bars]
            colour = known.get(kind, OTHER)
            made = axes.broken_barh(spans, (index - 0.36, 0.72), facecolors=colour, linewidth=0)
            gid = f"{prefix}-{index}-{len(hints)}"
            made.set_gid(gid)
            hints[gid] = [bar.said for bar in bars]
    axes.set_yticks(range(len(strip.rows)), [row.name for row in strip.rows], fontsize=8)
    axes.set_ylim(len(strip.rows) - 0.5, -0.5)
    axes.set_xlim(0, until or 1e-3)
    axes.grid(axis="x", color="#cccccc", linewidth=0.5)
    axes.set_axisbelow(True)
    if greys:
        place = {"loc": "upper left", "bbox_to_anchor": (1, 1.02), "frameon": False}
        axes.legend(handles=_patches(greys), fontsize=6.5, **place)
    return hints


def _numbers(axes: Any, index: int, row: Row, until: float) -> None:
    """The number of each k-tile over its MMAs; where they stand too close, of some of them."""
    last = -until
    for number, bar in enumerate(row.bars):
        middle = (bar.start + bar.end) / 2
        if middle - last >= until * NUMBERS_APART:
            axes.text(middle, index, str(number), fontsize=6, ha="center", va="center")
            last = middle


def _greys(strip: Strip) -> dict[str, str]:
    """A grey for each barrier that its warps wait for, from light to dark."""
    found = sorted({k for k in _kinds([strip]) if k.startswith("waits for")})
    return {kind: GREYS[i % len(GREYS)] for i, kind in enumerate(found)}


def _kinds(strips: Sequence[Strip]) -> list[str]:
    """The kinds of bars in strips: WORKS and WAITS first."""
    found = [b.kind for s in strips for row in s.rows for b in row.bars if row.name != K_TILES]
    return [kind for kind in dict.fromkeys((WORKS, WAITS, *found)) if kind in found]


def _patches(known: Mapping[str, str]) -> list[Any]:
    from matplotlib.patches import Patch

    return [Patch(color=colour, label=kind) for kind, colour in known.items()]


def legend(figure: Any, strips: Sequence[Strip]) -> None:
    """What the colours mean, below the figure; waits for a barrier stand beside their strip."""
    shown = [kind for kind in _kinds(strips) if not kind.startswith("waits for")]
    handles = _patches({kind: COLOURS.get(kind, OTHER) for kind in shown})
    figure.legend(handles=handles, loc="outside lower center", ncols=5, fontsize=8, frameon=False)
