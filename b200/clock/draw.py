"""Draws the timeline of a timed launch: a trace for ui.perfetto.dev, and a picture of one CTA."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from b200 import pictures
from b200.clock import profile
from b200.clock.profile import roles
from b200.clock.timeline import Timeline
from b200.program.names import readable

WORKS, WAITS = "a warp works", "a warp waits"
COLOURS = {
    WORKS: "#5a965a",
    WAITS: "#dddddd",
    "TMA": "#466ebe",
    "shared-memory fill": "#6ea0dc",
    "tensor core": "#c85a3c",
    "tcgen05.cp": "#dca05a",
    "tensor memory": "#9664b4",
}
OTHER = "#787878"
ROW_INCHES = 0.24


def _line(ins) -> str:
    return str(ins.loc) if ins.loc else ins.opcode


def write_trace(record: Timeline, path: Path) -> None:
    """Write Chrome trace events (JSON): one process for each traced CTA, one track for each warp
    and each unit, times in microseconds.
    """
    names, us = roles(record), record.us
    events = []
    for number, index, sm, start, end in record.ctas:
        if number >= record.trace:
            continue
        events.append(
            {
                "ph": "M",
                "name": "process_name",
                "pid": number,
                "args": {"name": f"CTA {index} on SM {sm}"},
            }
        )
        for warp, role in names.items():
            args = {"name": f"warp {warp} ({role})"}
            events.append(
                {"ph": "M", "name": "thread_name", "pid": number, "tid": warp, "args": args}
            )
            events.append(
                {
                    "ph": "X",
                    "name": role,
                    "pid": number,
                    "tid": warp,
                    "ts": us(start),
                    "dur": us(record.exits.get((number, warp), end or record.end) - start),
                }
            )
    for number, warp, start, end, ins, what in record.spans:
        events.append(
            {
                "ph": "X",
                "name": f"waits for {what}",
                "pid": number,
                "tid": warp,
                "ts": us(start),
                "dur": us(end - start),
                "args": {"line": _line(ins), "ptx": ins.text},
            }
        )
    tracks: dict[str, int] = {}
    for number, unit, start, end, what in record.units:
        tid = 1000 + tracks.setdefault(unit, len(tracks))
        events.append(
            {
                "ph": "X",
                "name": what,
                "pid": number,
                "tid": tid,
                "ts": us(start),
                "dur": us(end - start),
            }
        )
    for number in {u[0] for u in record.units}:
        for unit, tid in tracks.items():
            args = {"name": unit}
            events.append(
                {"ph": "M", "name": "thread_name", "pid": number, "tid": 1000 + tid, "args": args}
            )
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
    names = roles(record)
    units = list(dict.fromkeys(u[1] for u in record.units if u[0] == 0))
    rows = [f"warp {warp}, {role}" for warp, role in names.items()] + units
    first = next(cta for cta in record.ctas if cta[0] == 0)
    figure = pictures.new(11, 1.9 + ROW_INCHES * len(rows))
    axes = figure.subplots()
    hints: dict[str, list[str]] = {}

    def bars(row: int, colour: str, spans: list[tuple[float, float, str]]):
        """spans: (start, end, what) in clk."""
        if not spans:
            return
        drawn = [(record.us(a), record.us(b - a)) for a, b, _ in spans]
        face = COLOURS.get(colour, OTHER)
        made = axes.broken_barh(drawn, (row - 0.36, 0.72), facecolors=face, linewidth=0)
        gid = f"bars-{row}-{len(hints)}"
        made.set_gid(gid)
        hints[gid] = [
            f"{said}: {record.us(a):.3f} to {record.us(b):.3f} us, {record.us(b - a):.3f} us"
            for a, b, said in spans
        ]

    for row, (warp, role) in enumerate(names.items()):
        waits = [
            (start, end, f"warp {warp} ({role}) waits for {why} at {_line(ins)}")
            for number, index, start, end, ins, why in record.spans
            if number == 0 and index == warp
        ]
        until = record.exits.get((0, warp), first[4] or record.end)
        works = _between([(start, end) for start, end, _ in waits], first[3], until)
        bars(row, WORKS, [(*span, f"warp {warp} ({role}) works") for span in works])
        bars(row, WAITS, waits)
    for row, unit in enumerate(units, len(names)):
        work = [u[2:] for u in record.units if u[0] == 0 and u[1] == unit]
        bars(row, unit, [(start, end, f"{unit}: {said}") for start, end, said in work])
    title = _title(record, first[1], what)
    heading = pictures.set_title(axes, title, path)
    axes.set_yticks(range(len(rows)), rows, fontsize=8)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlim(0, record.time_us or 1e-3)
    axes.set_xlabel("modelled time since the start of the kernel, us")
    axes.grid(axis="x", color="#cccccc", linewidth=0.5)
    axes.set_axisbelow(True)
    _legend(figure, [WORKS, WAITS, *units])
    pictures.save(figure, path, heading, profile.text(record), hints)


def _between(
    spans: Sequence[tuple[float, float]], begin: float, end: float
) -> Iterator[tuple[float, float]]:
    """What of [begin, end] no span covers."""
    for start, stop in sorted(spans):
        if start > begin:
            yield begin, min(start, end)
        begin = max(begin, stop)
    if begin < end:
        yield begin, end


def _title(record: Timeline, cta: tuple, what: str) -> str:
    launch = record.launch
    spread = ""
    if record.low_us < record.high_us:
        spread = f" (range {record.low_us:.2f} to {record.high_us:.2f})"
    lines = [
        what,
        f"{readable(launch.kernel)}: modelled {record.time_us:.2f} us{spread} at {record.ghz} GHz",
        f"CTA {cta} of grid {launch.grid}, cluster {launch.cluster}, block {launch.block}",
    ]
    return "\n".join(filter(None, lines))


def _legend(figure, shown: list[str]):
    from matplotlib.patches import Patch

    handles = [Patch(color=COLOURS.get(name, OTHER), label=name) for name in shown]
    figure.legend(handles=handles, loc="outside lower center", ncols=4, fontsize=8, frameon=False)
