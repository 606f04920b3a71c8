"""harness/tuning.py: candidates, and the sweep of random shapes that goes on where it ended."""

from __future__ import annotations

import json
import sys

import pytest

import submission
from harness import tuning


def test_random_shapes_are_the_same_ones_however_many():
    few, many = tuning.random_shapes(8), tuning.random_shapes(12)
    assert list(few.items()) == list(many.items())[:8]
    assert [name.split()[1] for name in few] == ["gemv", "gemm", "dual", "group"] * 2


def test_another_seed_gives_other_shapes_under_other_names():
    known, others = tuning.random_shapes(8), tuning.random_shapes(8, 18)
    assert others == tuning.random_shapes(8, 18)
    assert not known.keys() & others.keys() and list(known.values()) != list(others.values())


def test_candidates_are_the_pick_and_then_the_best_by_estimate():
    problem = tuning.random_shapes(2)["1 gemm"]
    first, *others = tuning.candidates(problem, 0)
    assert first == submission.pick(problem)
    estimates = [submission.estimate(config, problem) for config in others]
    assert estimates == sorted(estimates) and first not in others
    assert {first, *others} == set(submission.legal_configs(problem))


def test_few_candidates_have_the_best_of_each_other_kind_behind_them():
    problem = tuning.random_shapes(2)["1 gemm"]
    everything, few = tuning.candidates(problem, 0), tuning.candidates(problem, 3)
    kinds = [tuning.kind(config) for config in few]
    assert few[:3] == everything[:3]
    assert set(kinds) == {tuning.kind(config) for config in everything}
    for config, kind in zip(few[3:], kinds[3:]):
        assert kinds.count(kind) == 1
        assert config == next(c for c in everything if tuning.kind(c) == kind)


def losses(monkeypatch, file, count, *more):
    arguments = ["tuning", "losses", "--json", str(file), "--random", str(count), *more]
    monkeypatch.setattr(sys, "argv", arguments)
    tuning.main()


def test_what_is_done_is_not_run_again(monkeypatch, tmp_path, capsys):
    lines = [
        json.dumps({"shape": name, "loss": i / 100})
        for i, name in enumerate(tuning.random_shapes(3))
    ]
    file = tmp_path / "losses.jsonl"
    file.write_text("\n".join(lines) + "\n")
    losses(monkeypatch, file, 3)
    shown = capsys.readouterr()
    assert shown.out == "" and file.read_text().splitlines() == lines
    assert "3 shapes, modelled: the pick loses at most 2.0%, on 2 dual" in shown.err


@pytest.mark.slow
def test_a_shape_is_added_to_the_file(monkeypatch, tmp_path, capsys):
    losses(monkeypatch, tmp_path / "losses.jsonl", 1, "--first", "2")
    (line,) = (tmp_path / "losses.jsonl").read_text().splitlines()
    assert capsys.readouterr().out == line + "\n"
    record = json.loads(line)
    times = record["times_us"]
    assert len(times) == 2 and times[record["pick"]] == record["us"]
    assert record["best_us"] == times[record["best"]] == min(times.values())
    assert record["loss"] == record["us"] / record["best_us"] - 1 >= 0
