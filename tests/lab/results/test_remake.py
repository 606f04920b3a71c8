"""`python -m lab remake`: what is made again, what of it is equal, what is left."""

from __future__ import annotations

import json

import pytest

from lab.results import remake, stale
from lab.results.files import FILES, RESULTS, File
from tests import ROOT


def records(*times: float) -> list[dict]:
    return [
        {
            "problem": "p",
            "case": str(i),
            "time_us": us,
            "seconds": 1.0 + us,
            "made_by": {"clock": us},
        }
        for i, us in enumerate(times)
    ]


def lines(*times: float) -> str:
    return "".join(json.dumps(row) + "\n" for row in records(*times))


@pytest.mark.parametrize(
    "times, said",
    [((7.0, 8.0), "equal, all 2 rows"), ((7.0, 8.5), "1 of 2 rows"), ((7.0,), "1 of 1 rows")],
)
def test_a_file_is_written_anew_and_what_is_equal_is_said(tmp_path, monkeypatch, times, said):
    (tmp_path / RESULTS).mkdir(parents=True)
    (tmp_path / RESULTS / "benchmark.jsonl").write_text(lines(7.0, 8.0))
    monkeypatch.setattr(remake, "ROOT", tmp_path)
    monkeypatch.setattr(remake, "run", lambda words: lines(*times))
    assert said in remake.remake("benchmark.jsonl", None)
    text = (tmp_path / RESULTS / "benchmark.jsonl").read_text()
    assert "seconds" not in text and text.count("made_by") == len(times)


def test_a_command_writes_its_file_and_has_the_tables(tmp_path):
    """OUT and DATA in a command stand for the file and for the folder."""
    write = "import sys; open(sys.argv[2], 'w').write(sys.argv[1])"
    file = File(command=("-c", write, "DATA", "OUT"))
    assert remake.made(file, tmp_path) == str(tmp_path)
    with pytest.raises(remake.RemakeError, match="ended with 3"):
        remake.made(File(command=("-c", "raise SystemExit(3)")), None)


def test_rows_of_a_file_of_json():
    text = json.dumps({"made_by": {"clock": "0"}, "what": "w", "rows": [{"us": 1, "seconds": 2}]})
    assert remake.rows_of(text, "a.json") == [{"what": "w"}, {"us": 1}]


def test_a_difference_has_both_times():
    kept = records(7.0, 8.0)
    assert remake.differences(records(7.0, 8.0)[1:], kept) == []
    (line,) = remake.differences(records(7.0, 8.5), kept)
    assert line == f"p 1: 8.000 us in {RESULTS}, 8.500 us now; time_us differ"


@pytest.mark.parametrize("us, status", [(0.0, 0), (0.001, 1)])
def test_the_sample_is_held_against_what_is_kept(monkeypatch, capsys, us, status):
    kept = (ROOT / RESULTS / "benchmark.jsonl").read_text().splitlines()
    rows = {(r["problem"], r["case"]): r for r in map(json.loads, kept)}

    def run(words):
        row = rows[words[-3], words[-1]]
        return json.dumps({**row, "time_us": row["time_us"] + us, "seconds": 1.0})

    monkeypatch.setattr(remake, "run", run)
    assert remake.main(["--sample"]) == status
    said = capsys.readouterr().out
    assert ("3 benchmarks are equal" in said) == (status == 0), said


def test_what_is_chosen(monkeypatch, tmp_path):
    """What is stale and can be made here; with the tables, the calibrations."""
    monkeypatch.setattr(stale, "stale", lambda name: ["clock"])
    quick = [name for name, file in FILES.items() if file.here]
    assert remake.chosen([], None) == quick and "benchmark.jsonl" in quick
    assert set(remake.chosen([], tmp_path)) - set(quick) == {
        name for name in FILES if name.startswith("calibrate-")
    }
    assert remake.chosen(["mutations.json"], None) == ["mutations.json"]
    with pytest.raises(remake.RemakeError, match="ladder.jsonl cannot be made here: it needs"):
        remake.chosen(["ladder.jsonl"], None)
    with pytest.raises(remake.RemakeError, match="absent.json is no file"):
        remake.chosen(["absent.json"], None)
    told = remake.left(quick)
    assert any(line.startswith("ladder.jsonl: stale: clock; it needs") for line in told)
    assert not any(line.startswith("h200-fences.json") for line in told)
