"""A timeline's rows: k-tiles have numbers, waits a grey by barrier, and they go through JSON."""

from __future__ import annotations

import re

import pytest

from b200 import pictures
from b200.clock import draw
from b200.clock.strip import K_TILES, WAITS, WORKS, Bar, Row, Strip, from_json, to_json
from tests import ROOT

CASE = "m: 128; n: 128; k: 1280; l: 1"  # five k-tiles
TEMPLATE = "docs/examples/gemm_mended.py"


def row(name: str, *kinds: str) -> Row:
    """Bars of 1 us behind each other."""
    return Row(name, tuple(Bar(kind, i, i + 1, kind) for i, kind in enumerate(kinds)))


WAITING = Strip(
    "a", 4.0, (row("warp 0", WORKS, "waits for full, line 3", WAITS, "waits for empty, line 9"),)
)


def texts(page: str) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]*)</text>", page)


def drawn(strip: Strip, path) -> str:
    figure = pictures.new(6, 2)
    hints = draw.draw(figure.subplots(), strip, strip.time_us)
    draw.legend(figure, [strip])
    pictures.save(figure, path, "a", hints=hints)
    return path.read_text()


def test_each_barrier_has_a_grey_of_its_own(tmp_path):
    page = drawn(WAITING, tmp_path / "a.html")
    said = texts(page)
    assert {"waits for full, line 3", "waits for empty, line 9", WORKS, WAITS} <= set(said)
    colours = [draw.COLOURS[WORKS], draw.COLOURS[WAITS], *draw.GREYS[:2]]
    assert len(set(colours)) == 4 and all(colour in page for colour in colours)
    assert draw.GREYS[2] not in page


def test_a_strip_goes_through_json():
    assert from_json(to_json(WAITING)) == WAITING


@pytest.mark.parametrize("count, numbered", [(5, 5), (200, 50)])
def test_k_tiles_are_numbered_where_there_is_room(count, numbered):
    strip = Strip("a", float(count), (row(K_TILES, *[K_TILES] * count),))
    axes = pictures.new(6, 2).subplots()
    draw.draw(axes, strip, strip.time_us)
    shown = [text.get_text() for text in axes.texts]
    assert shown == [str(number) for number in range(0, count, count // numbered)]


def test_a_profile_shows_its_k_tiles_and_the_lines_of_its_waits(run_eval, tmp_path):
    command = ["profile", "gemm", "--case", CASE, "--submission", str(ROOT / TEMPLATE)]
    picture = tmp_path / "p.html"
    done = run_eval(*command, "--device", "emulator", "--plot", str(picture))
    assert done.status == 0, done.stderr
    page = picture.read_text()
    assert [s for s in texts(page) if s in "0 1 2 3 4".split()][-5:] == list("01234")
    lines = (ROOT / TEMPLATE).read_text().splitlines()
    for barrier in ("full", "empty", "done"):
        (line,) = {int(n) for n in re.findall(rf"waits for {barrier}, line (\d+)", page)}
        assert f"mbarrier_wait({barrier}" in lines[line - 1]
    assert re.search(r"waits for mbarrier full\[0\] ", page)
