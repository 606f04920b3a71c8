"""docs/results holds a record a line, as b200/records.py writes it."""

from __future__ import annotations

import json

import pytest

from b200 import records
from tests import ROOT

RESULTS = ROOT / "docs/results"
BY_HAND = {"evidence.json"}  # rows of words, edited as text
FILES = sorted(path.name for path in RESULTS.glob("*.json*") if path.name not in BY_HAND)
MOST_LINES = 6500  # of all files; a third are the functions of CUDA's headers


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_as_its_writer_writes_it(name):
    text = (RESULTS / name).read_text()
    if name.endswith(".jsonl"):
        assert text == "".join(json.dumps(json.loads(line)) + "\n" for line in text.splitlines())
    else:
        assert text == records.text(json.loads(text))


def test_the_results_stay_short():
    assert len(FILES) > 30
    assert sum(len((RESULTS / name).read_text().splitlines()) for name in FILES) < MOST_LINES


@pytest.mark.parametrize(
    "data, text",
    [
        ([], "[]\n"),
        ({}, "{}\n"),
        (7, "7\n"),
        ({"device": "H200", "us": [1, 2.5]}, '{\n"device": "H200",\n"us": [1, 2.5]\n}\n'),
        ({"rows": [{"a": 1}, {"a": [2]}]}, '{\n"rows": [\n{"a": 1},\n{"a": [2]}\n]\n}\n'),
        ({"given": {"x": {"a": 1}, "y": {}}}, '{\n"given": {\n"x": {"a": 1},\n"y": {}\n}\n}\n'),
        ({"machine": {"sms": 132, "capability": [9, 0]}}, '{\n"machine": {"sms": 132, "capability": [9, 0]}\n}\n'),
        ([{"a": 1}, [2]], '[\n{"a": 1},\n[2]\n]\n'),
        ({"by": {1: (2, None)}}, '{\n"by": {\n"1": [2, null]\n}\n}\n'),
        ({"rows": []}, '{\n"rows": []\n}\n'),
    ],
)  # fmt: skip
def test_a_record_has_a_line(data, text):
    assert records.text(data) == text
    assert json.loads(text) == json.loads(json.dumps(data))
