"""Files of docs/results say what made them, and which are of other sources is found."""

from __future__ import annotations

import functools
import json
import shutil

import pytest

from harness import digest
from lab.results import stale
from lab.results.files import FILES, RESULTS, today
from tests import ROOT

NAMES = sorted(path.name for path in (ROOT / RESULTS).iterdir())


def test_every_file_is_listed_and_there():
    assert sorted(FILES) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_file_says_what_made_it_and_not_how_long_it_took(name):
    assert all(stale.made_by(ROOT / RESULTS / name))
    assert '"seconds"' not in (ROOT / RESULTS / name).read_text()


@pytest.fixture(scope="module", autouse=True)
def read_once():
    """A text means the same in each test; nearly all are those of the checkout."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(digest, "meaning", functools.cache(digest.meaning))
        yield


@pytest.fixture
def copy(tmp_path):
    """The sources, and one result of theirs, in a folder of their own."""
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "b200", tmp_path / "b200", ignore=ignored)
    shutil.copy(ROOT / "submission.py", tmp_path)
    (tmp_path / RESULTS).mkdir(parents=True)
    current = today(tmp_path)
    made = {name: current[name]() for name in FILES["floors.json"].depends}
    text = json.dumps({"made_by": made, "rows": []})
    (tmp_path / RESULTS / "floors.json").write_text(text)
    return tmp_path


def change(root, path: str, old: str, new: str) -> None:
    source = root / path
    assert source.read_text().count(old) >= 1
    source.write_text(source.read_text().replace(old, new, 1))


def problems(root) -> list[str]:
    """Those of sources that have changed."""
    digest.part.cache_clear()
    digest.of_file.cache_clear()
    return stale.problems(root)


def test_a_changed_constant_makes_a_file_stale_by_name(copy):
    assert stale.problems(copy) == []
    change(copy, "b200/clock/constants.toml", "value = ", "value = 1")
    assert problems(copy) == [f"{RESULTS}/floors.json is stale: clock (python -m lab remake)"]


def test_a_changed_kernel_and_chip_are_named_both(copy):
    change(copy, "submission.py", "def pick(", "def picked(")
    change(copy, "b200/hardware.py", "SM_COUNT = 148", "SM_COUNT = 149")
    (found,) = problems(copy)
    assert "floors.json is stale: chip, submission (" in found


def test_changed_remarks_make_nothing_stale(copy):
    change(copy, "b200/clock/constants.toml", "[", "# a remark\n[")
    change(copy, "b200/clock/units.py", '"""', '"""More. ')
    change(copy, "submission.py", "import torch\n", "import torch  # a remark\n\n")
    change(copy, "b200/clock/published_errors.json", '"errors"', '"other"')
    assert problems(copy) == []


def test_a_file_that_says_nothing_is_found(copy):
    (copy / RESULTS / "floors.json").write_text('{"rows": []}')
    (copy / RESULTS / "other.json").write_text('{"made_by": {"by": "hand"}}')
    said, unknown = stale.problems(copy)
    assert "floors.json: nothing says what made it" in said
    assert "other.json: lab/results/files.py does not say" in unknown


def test_what_cannot_be_made_here_is_listed_and_fails_nothing(copy):
    (copy / RESULTS / "floors.json").unlink()
    row = {"made_by": {"commit": "abc", "sources": "others'", "clock": "0"}, "name": "gemm/v1 1"}
    (copy / RESULTS / "ladder.jsonl").write_text(json.dumps(row) + "\n")
    assert stale.problems(copy) == []
    line = stale.table(copy).splitlines()[-1]
    assert line == (
        "| `ladder.jsonl` | kernels of others'; sources of abc | needs the published kernels and"
        " their times | stale: clock, program, chip |"
    )


def test_a_row_is_held_against_the_submission_that_it_names():
    """Ours and the examples by their files; other people's are what they were."""
    kernel = digest.of_file(ROOT / "submission.py")
    made = {"file": "submission.py", "submission": kernel}
    assert stale.changed(made, FILES["first-kernel.jsonl"])[-2:] == ["chip", "ranges"]
    other = {"file": "gemm_fast.py", "submission": kernel}
    assert "submission" in stale.changed(other, FILES["first-kernel.jsonl"])
    theirs = {"file": "submission_v3.py", "submission": kernel}
    assert "submission" not in stale.changed(theirs, FILES["compare.jsonl"])
