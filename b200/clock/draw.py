"""The timeline of a timed launch: trace events for ui.perfetto.dev, and a picture of one CTA."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from b200.clock.png import Canvas, write_png
from b200.clock.profile import roles
from b200.clock.timeline import Record

MARGIN, ROW, WIDTH = 150, 18, 1200
COLOURS = {
    "busy": (90, 150, 90),
    "wait": (225, 225, 225),
    "TMA": (70, 110, 190),
    "shared-memory fill": (110, 160, 220),
    "tensor core": (200, 90, 60),
    "tcgen05.cp": (220, 160, 90),
    "tensor memory": (150, 100, 180),
}


def _line(ins) -> str:
    return str(ins.loc) if ins.loc else ins.opcode


def write_trace(record: Record, path: Path):
    """Chrome trace events (JSON): a process a traced CTA, a track a warp and a unit, times in
    microseconds.
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
                    "dur": us((end or record.end) - start),
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


def write_picture(record: Record, path: Path):
    """PNG: one row a warp and a unit of the first CTA; grey where a warp waits, colour where it or
    a unit works.
    """
    names = roles(record)
    units = list(dict.fromkeys(u[1] for u in record.units if u[0] == 0))
    rows = [f"w{warp} {role}" for warp, role in names.items()] + units
    place = {warp: i for i, warp in enumerate(names)}
    canvas = Canvas(MARGIN + WIDTH + 20, 70 + ROW * len(rows))
    first = next(cta for cta in record.ctas if cta[0] == 0)
    scale = WIDTH / max(record.end, 1.0)
    title = (
        f"modelled: {record.launch.kernel[:60]}, {record.time_us:.2f} us at {record.ghz} "
        f"GHz, CTA {first[1]}"
    )
    canvas.text(8, 8, title)

    def bar(row: int, start: float, end: float, colour, thin: int = 3):
        left, right = MARGIN + start * scale, MARGIN + end * scale
        top = 30 + row * ROW
        canvas.box(
            int(left), top + thin, max(int(np.ceil(right)), int(left) + 1), top + ROW - thin, colour
        )

    for i, name in enumerate(rows):
        canvas.text(8, 30 + i * ROW + 5, name[:22])
    for i in place.values():
        bar(i, first[3], first[4] or record.end, COLOURS["busy"])
    for number, warp, start, end, _, _ in record.spans:
        if number == 0 and warp in place:
            bar(place[warp], start, end, COLOURS["wait"])
    for number, unit, start, end, _ in record.units:
        if number == 0:
            bar(len(names) + units.index(unit), start, end, COLOURS.get(unit, (120, 120, 120)))
    _axis(canvas, record, scale, 34 + ROW * len(rows))
    write_png(path, canvas.pixels)


def _axis(canvas: Canvas, record: Record, scale: float, top: int):
    """Ticks at round microseconds."""
    step = next(
        s for s in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 1000) if record.time_us / s <= 14
    )
    canvas.box(MARGIN, top, MARGIN + WIDTH, top + 1, (0, 0, 0))
    for k in range(int(record.time_us / step) + 1):
        x = MARGIN + int(k * step * record.ghz * 1e3 * scale)
        canvas.box(x, top, x + 1, top + 5, (0, 0, 0))
        canvas.text(x - 6, top + 8, f"{k * step:g} us" if k == 0 else f"{k * step:g}")
