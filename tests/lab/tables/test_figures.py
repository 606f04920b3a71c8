"""Figures of README and docs are those of docs/results."""

from __future__ import annotations

import json
import shutil

import pytest

from harness.evaluator.cases import format_args
from lab.tables import agreement, catalogue, figures, tuning
from task import PROBLEMS
from tests import ROOT


def test_every_figure_has_its_source():
    assert figures.problems() == []


def test_every_table_and_result_is_used():
    text = "".join(page.read_text() for page in figures.pages())
    for name, table in catalogue.TABLES.items():
        assert f"<!-- table: {name} -->" in text, name
        for source in table.sources:
            assert (ROOT / "docs" / "results" / source).is_file(), source


@pytest.fixture
def copy(tmp_path):
    """README, docs, docs/results, what is made of them, and the sources that they depend on, in a
    folder of their own.
    """
    for file in ("README.md", "submission.py"):
        shutil.copy(ROOT / file, tmp_path)
    for folder in ("b200", "docs"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=ignored)
    return tmp_path


def test_a_figure_changed_by_hand_is_found(copy):
    page = copy / "docs" / "lab" / "tuning.md"
    head, row, rest = page.read_text().partition("| gemm 2 | ")
    page.write_text(f"{head}{row}1{rest}")
    found = figures.problems(copy)
    assert found[0] == "docs/lab/tuning.md: table benchmark is not what its source says"


def test_a_new_measurement_without_its_text_is_found(copy):
    source = copy / "docs" / "results" / "benchmark.jsonl"
    records = figures.load(source)
    records[0]["time_us"] += 1
    source.write_text("".join(json.dumps(record) + "\n" for record in records))
    found = figures.problems(copy)
    assert any("table benchmark is not" in line for line in found)
    assert any("table benchmark-means is not" in line for line in found)


@pytest.mark.parametrize(
    "line, wrong",
    [
        ("The kernel takes 7.3 us.", True),
        ("It is 12 % faster.", True),
        ("`--timeout 7 us` is no option.", False),
        ("All 40 cases pass on 148 SMs.", False),
        ("<!-- by hand: an experiment -->\nThe kernel took 7.3 us.", False),
        ("<!-- by hand: an experiment -->\n\n## Next\n\nThe kernel takes 7.3 us.", True),
        ("```\nmodelled 7.3 us\n```", False),
    ],
)
def test_figures_outside_of_tables(line, wrong):
    assert bool(figures.unsourced(f"# A page\n\n{line}\n")) == wrong


def test_a_missing_source_is_said_and_its_table_kept(copy):
    (copy / "docs" / "results" / "floors.json").unlink()
    assert figures.problems(copy) == [
        "docs/lab/tuning.md: table floors has no floors.json (--commands)"
    ]
    page = (copy / "docs" / "lab" / "tuning.md").read_text()
    assert figures.rendered(page, copy / "docs" / "results") == page


def test_ranges_that_are_not_the_ladders_are_found(copy):
    points = copy / "docs" / "results" / "ladder.jsonl"
    records = figures.load(points)
    first = next(r for r in records if r["parity"] == "odd")
    first["time_us"] *= 1.1
    points.write_text("".join(json.dumps(record) + "\n" for record in records))
    results = "docs/results/ladder.jsonl and docs/results/others.json"
    said = f"b200/clock/published_errors.json is not what {results} say"
    assert said in figures.problems(copy)
    path, text = figures.errors_file(copy)
    path.write_text(text)
    assert said not in figures.problems(copy)


def test_an_unfinished_or_unknown_table_is_found(copy):
    with open(copy / "README.md", "a") as readme:
        readme.write("<!-- table: other -->\n<!-- /table -->\n<!-- table: benchmark -->\n")
    found = figures.problems(copy)
    assert "README.md: no table is called 'other'" in found
    assert any("does not end" in line for line in found)


def test_errors_of_a_half():
    """Even rows are the fitted half, odd ones the other; worst and mean are of that half only."""
    rows = [
        {"group": "g", "index": i, "modelled": modelled, "measured": 100, "unit": "clk"}
        for i, modelled in enumerate((110, 95, 100, 85))
    ]
    assert catalogue.half({"rows": rows}, "g", False, 0) == "mean 5.0%, worst 10.0% (2 rows)"
    assert catalogue.half({"rows": rows}, "g", False, 1) == "mean 10.0%, worst 15.0% (2 rows)"
    assert catalogue.half({"rows": rows}, "g", True, 1) == "at most 15.0 clk off (2 rows)"


def test_a_case_without_a_time_is_no_benchmark():
    with pytest.raises(ValueError, match="no time in docs/results: nvfp4_gemv m: 1"):
        catalogue.timed([{"problem": "nvfp4_gemv", "case": "m: 1", "time_us": None}])


def test_losses_are_counted_by_seed_and_in_all():
    named = {"gemm 1": 0.0, "1 gemm, seed 9": 0.01, "2 dual, seed 9": 0.05}
    text = tuning.loss_means([{"shape": s, "loss": x} for s, x in named.items()])
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()[2:]]
    assert rows == [
        ["seed 9", "2", "3.0%", "1", "5.0%"],
        ["the benchmarks", "1", "0.0%", "0", "0.0%"],
        ["all", "3", "2.0%", "1", "5.0%"],
    ]


def test_a_best_known_time_is_the_same_everywhere():
    """What a record says of it, for a table, is what task.py says today."""
    known = {
        (problem.name, format_args(row.args)): row.best_us
        for problem in PROBLEMS.values()
        for row in problem.benchmarks
    }
    for name in ("benchmark.jsonl", "compare.jsonl"):
        records = figures.load(ROOT / "docs" / "results" / name)
        assert len(records) >= len(known)
        for record in records:
            best = known[record["problem"], record["case"]]
            assert record.get("best_known_us", best) in (best, None), record["case"]


def page(*tables: str) -> str:
    """A page of tables, each written as "heading; row; row" with "," between cells."""
    found = []
    for table in tables:
        heading, *rows = ([cell.strip() for cell in r.split(",")] for r in table.split(";"))
        lines = [heading, ["---"] * len(heading), *rows]
        found.append("\n".join(f"| {' | '.join(line)} |" for line in lines))
    return "# A page\n\n" + "\n\ntext\n\n".join(found) + "\n"


@pytest.mark.parametrize(
    "tables, said",
    [
        (
            ["shape, us; gemm 1, 7.30", "shape, x, us; gemm 1, 3, 6.50"],
            "gemm 1, us: 6.50, but 7.30",
        ),
        (["shape, us; gemm 1, 1.000", "shape, us; gemm 1, 1.030"], ""),  # other addresses
        (["shape, us; gemm 1, 7.30", "shape, kernel alone us; gemm 1, 6.50"], ""),
        (["shape, us; gemm 1, 7.30", "shape, us; gemm 2, 6.50"], ""),
        (["shape, of, us; gemm 1, ours, 7; gemm 1, v3, 8", "shape, us; gemm 1, 7"], ""),
        (["shape, of, us; gemm 1, ours, 7; gemm 1, v3, 8", "shape, us; gemm 1, 8"], "8, but 7"),
        (["shape, pick; gemm 1, split=2", "shape, us, pick; gemm 1, 3, split=4"], "split=2"),
        (["shape, bound; gemm 1, L2 70%", "shape, bound; gemm 1, MMA 71%"], ""),
        (["repository, file; r, a.py", "repository, file; r, b.py; , c.py"], ""),  # goes on
        (["shape, half, half; gemm 1, 0.9, 0.5"], ""),
    ],
)
def test_one_quantity_has_one_value(tables, said):
    found = "\n".join(
        agreement.contradictions({"A.md": page(*tables[:1]), "B.md": page(*tables[1:])})
    )
    assert found == "" if not said else said in found and "in A.md" in found, found
    assert bool(agreement.contradictions({"A.md": page(*tables)})) == bool(said)


def test_a_table_that_contradicts_another_is_found(copy):
    with open(copy / "docs" / "glossary.md", "a") as glossary:
        glossary.write("\n| shape | best known |\n| --- | --- |\n| gemm 2 | 8.30 |\n")
    (found,) = figures.problems(copy)
    assert "gemm 2, best known: 10.30, but 8.30 in docs/glossary.md" in found
