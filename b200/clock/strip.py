"""A timeline of one CTA as rows of bars, in microseconds: what a picture of it shows.

It goes through JSON, so that another process can draw it (`to_json`, `from_json`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from b200.clock.profile import roles
from b200.clock.timeline import Timeline, Wait
from b200.program.names import readable

WORKS, WAITS = "a warp works", "a warp waits"
TENSOR_CORE = "tensor core"
K_TILES = "k-tile, by commits"


@dataclass(frozen=True)
class Bar:
    """kind: what gives it its colour. start, end: us. said: what the mouse shows."""

    kind: str
    start: float
    end: float
    said: str


@dataclass(frozen=True)
class Row:
    """A warp or a unit; of the row K_TILES, whose bars are not drawn, numbers only."""

    name: str
    bars: tuple[Bar, ...]


@dataclass(frozen=True)
class Strip:
    """title: lines. time_us: of the kernel."""

    title: str
    time_us: float
    rows: tuple[Row, ...]


def strip_of(record: Timeline, what: str = "") -> Strip:
    """The timeline of the first CTA. what: the problem, for the title."""
    first = next(cta for cta in record.ctas if cta.number == 0)
    names = roles(record)
    warps = [Row(f"warp {w}, {role}", tuple(_warp(record, w, role))) for w, role in names.items()]
    units = list(dict.fromkeys(busy.unit for busy in record.units if busy.cta == 0))
    rows: list[Row] = []
    for unit in units:
        if unit == TENSOR_CORE and (tiles := tuple(_k_tiles(record))):
            rows.append(Row(K_TILES, tiles))
        spans = [u for u in record.units if u.cta == 0 and u.unit == unit]
        bars = (_bar(record, unit, u.start, u.end, f"{unit}: {u.what}") for u in spans)
        rows.append(Row(unit, tuple(bars)))
    return Strip(_title(record, first.place, what), record.time_us, (*warps, *rows))


def to_json(strip: Strip) -> str:
    return json.dumps(asdict(strip))


def from_json(text: str) -> Strip:
    """The strip that `to_json` has written."""
    found = json.loads(text)
    rows = (Row(row["name"], tuple(Bar(**bar) for bar in row["bars"])) for row in found["rows"])
    return Strip(found["title"], found["time_us"], tuple(rows))


def between(
    spans: Sequence[tuple[float, float]], begin: float, end: float
) -> Iterator[tuple[float, float]]:
    """What of [begin, end] no span covers."""
    for start, stop in sorted(spans):
        if start > begin:
            yield begin, min(start, end)
        begin = max(begin, stop)
    if begin < end:
        yield begin, end


def _bar(record: Timeline, kind: str, start: float, end: float, said: str) -> Bar:
    """start, end: clk."""
    begin, stop = record.us(start), record.us(end)
    return Bar(kind, begin, stop, f"{said}: {begin:.3f} to {stop:.3f} us, {stop - begin:.3f} us")


def _warp(record: Timeline, warp: int, role: str) -> Iterator[Bar]:
    """What a warp does until it exits."""
    first = next(cta for cta in record.ctas if cta.number == 0)
    until = record.exits.get((0, warp), first.end or record.end)
    mine = [span for span in record.spans if span.cta == 0 and span.warp == warp]
    for start, end in between([(span.start, span.end) for span in mine], first.start, until):
        yield _bar(record, WORKS, start, end, f"warp {warp} ({role}) works")
    for span in mine:
        said = f"warp {warp} ({role}) waits for {span.barrier or span.what} at {span.line}"
        yield _bar(record, _waits(span), span.start, span.end, said)


def _waits(span: Wait) -> str:
    """The kind of a wait: one for barriers of a name, whose stages differ, at a line."""
    if not span.barrier:
        return WAITS
    found = re.match(r"mbarrier ([A-Za-z_]\w*)", span.barrier)
    at = f", line {span.ins.loc.line}" if span.ins.loc else ""
    return f"waits for {found[1] if found else 'an mbarrier'}{at}"


def _k_tiles(record: Timeline) -> Iterator[Bar]:
    """The MMAs up to each tcgen05.commit, which are a k-tile where it gives a stage back."""
    begin, count = 0, 0
    for position in [at for number, at in record.commits if number == 0]:
        units = record.units[begin:position]
        spans = [u for u in units if u.cta == 0 and u.unit == TENSOR_CORE]
        if spans:
            start, end = min(u.start for u in spans), max(u.end for u in spans)
            yield _bar(record, K_TILES, start, end, f"k-tile {count}")
            count += 1
        begin = position


def _title(record: Timeline, cta: tuple[int, ...], what: str) -> str:
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
