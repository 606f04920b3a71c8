"""compare's picture: bars that say their times, and the timelines of the kernels on one scale."""

from __future__ import annotations

import re

from harness.evaluator.compare import picture as compare_picture
from harness.evaluator.compare.picture import Timed
from tests import ROOT

PHASES = (("start to first load issued", 1.5), ("first to last MMA done", 6.25))


def words(page: str) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]*)</text>", page)


def ticks(axes: str) -> list[tuple[str, str]]:
    """(Place, text) of the numbers below axes."""
    mark = re.compile(r'<g id="xtick_\d+">.*?<use [^>]*?x="([\d.]+)".*?>([\d.]+)</text>', re.DOTALL)
    return mark.findall(axes)


def test_bars_say_their_times_and_what_failed(tmp_path):
    row = (
        Timed("a.py", 10.0, 9.0, 12.0, 1.0, PHASES),
        Timed("b.py", 12.5, 11.0, 14.0, 1.25, PHASES),
        Timed("c.py", None, 0.0, 0.0, None, ()),
    )
    path = tmp_path / "p.html"
    compare_picture.plot({"m: 128": row}, (), path, "nvfp4_gemm", "modelled")
    said = words(path.read_text())
    assert {"10.00 us", "12.50 us, 1.250 of the first", "kernel alone 7.75"} <= set(said)
    assert said.count("6.25") == 2 and said.count("2.25") == 1  # a phase; a's launch gap and events
    assert " failed, or not timed" in said and " m: 128" in said
    assert any("(2) first to last MMA done" in line for line in said)
    assert "a call, modelled, us; black whiskers: the clock's errors" in said


def test_two_kernels_stand_one_above_the_other_on_one_scale(fork_server, tmp_path):
    files = [str(ROOT / f"docs/examples/{name}.py") for name in ("gemm_mended", "gemm_fast")]
    path = tmp_path / "p.svg"
    command = [str(ROOT / "eval.py"), "compare", *files, "gemm", "--times", "--plot", str(path)]
    command += ["--case", "m: 128; n: 128; k: 512; l: 1", "--device", "emulator"]
    done = fork_server.run(*command, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    page = path.read_text()
    said = words(page)
    for name, grid in (("gemm_mended", "(1, 1, 1)"), ("gemm_fast", "(1, 2, 1)")):
        assert f"{name}.py: nvfp4_gemm m: 128; n: 128; k: 512; l: 1; seed: 1111" in said
        assert any(f"of grid {grid}" in line for line in said)
    axes = [m.start() for m in re.finditer(r'<g id="axes_\d">', page)]
    assert len(axes) == 3
    first, second = ticks(page[axes[1] : axes[2]]), ticks(page[axes[2] :])
    assert first == second and len(first) >= 3
