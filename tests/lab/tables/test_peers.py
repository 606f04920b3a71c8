"""The tables about other people's kernels, from records made here."""

from __future__ import annotations

import pytest

from harness.evaluator.cases import format_args
from lab.tables import peers
from task import PROBLEMS

CASES = {
    f"{p.short} {n}": format_args(b.args)
    for p in PROBLEMS.values()
    for n, b in enumerate(p.benchmarks, 1)
}


def compared(shape: str, name: str, us: float | None) -> dict:
    moved = dict.fromkeys(("dram_bytes", "l2_bytes"), None if us is None else 5_000_000)
    words = {"status": "error" if us is None else "pass", "message": "no | such\nthing"}
    return (
        {"case": CASES[shape], "submission": name, "time_us": us, "bound_by": "L2"} | moved | words
    )


def point(shape: str, version: str, published: float, modelled: float | None) -> dict:
    problem, number = shape.split()
    fields = {"problem": problem, "shape": int(number), "version": version, "kind": "pairs"}
    return fields | {"published_us": published, "time_us": modelled, "parity": "odd"}


RECORDS = [
    compared("gemm 1", "submission.py", 10.0),
    compared("gemm 1", "submission_v3b.py", 16.0),
    compared("gemm 1", "other.py", 12.5),
    compared("gemm 2", "submission.py", 6.0),
    compared("gemm 2", "submission_v3b.py", 5.0),
    compared("dual 4", "submission.py", 3.0),
    compared("dual 4", "submission_v2.py", None),
]


def test_peers():
    header, _, *rows = peers.peers(RECORDS, [point("gemm 1", "v3b", 20, 16)]).splitlines()
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in (header, *rows)]
    ours, winner, other = (dict(zip(cells[0], row)) for row in cells[1:4])
    assert (
        ours["kernel"] == "ours" and ours["modelled apart us"] == "10.00" and ours["L2 MB"] == "5.0"
    )
    # it published 20 us and is modelled at 16: by the same factor our 10 are 12.5
    assert winner["ours over it"] == "0.62" and winner["ours by its error us"] == "12.50"
    assert other["ours over it"] == "0.80" and other["it published us"] == ""
    assert "error: no / such thing" in rows[-1]


def test_means_are_over_the_best_peer_of_each_shape():
    rows = peers.peer_means(RECORDS).splitlines()[2:]
    # gemm 1: 10 over 12.5; gemm 2: 6 over 5; the root of 0.8 x 1.2 is 0.98
    assert rows == ["| gemm | 0.98 | 1.20 | 1 of 2 |"]


@pytest.mark.parametrize("failed", [False, True])
def test_points_of_a_ladder(failed):
    points = [point("dual 1", "v2", 12.4, 12.0), point("gemm 2", "v0", 10, None if failed else 11)]
    rows = peers.ladder_points(points).splitlines()[2:]
    gemm = "| gemm v0 | odd | pairs |  | 10.0 / 11.0 (+10%) |  |  |"
    dual = "| dual v2 | odd | pairs | 12.4 / 12.0 (-3%) |  |  |  |"
    expected = [dual] if failed else [gemm, dual]
    assert rows == expected
