"""A digest is of what the sources mean that a modelled time depends on."""

from __future__ import annotations

import pytest

from harness import digest

PACKAGE = digest.PACKAGE
# What stands beside the parts: no modelled time and no verdict of docs/results depends on it.
OUTSIDE = {
    *("__init__.py", "__main__.py", "checkout.py", "command_line.py", "compiled", "errors.py"),
    *("explore", "host", "last_words.py", "pictures.py", "py.typed", "records.py"),
    *("pytest_plugin.py", "reports", "run_arguments.py", "script.py"),
    *("second_run.py", "sparse.py", "started"),
    *("machine_info.py", "spawned_process.py", "supervised.py", "testing.py", "time_budget.py"),
}


def test_everything_of_the_package_is_in_a_part_or_outside():
    in_parts = {place.split("/")[0] for places in digest.PARTS.values() for place in places}
    there = {path.name for path in PACKAGE.iterdir() if path.name != "__pycache__"}
    assert there - in_parts == OUTSIDE and not in_parts & OUTSIDE


@pytest.mark.parametrize(
    "name, text, other, same",
    [
        ("a.py", "x = 1", "x = 2", False),
        ("a.py", "x = 1", "x = 1  # a remark\n\n", True),
        (
            "a.py",
            "def f(a): return a",
            '"""A."""\ndef f(\n    a):\n    """B."""\n    return a',
            True,
        ),
        ("a.py", "def f(): 'text'", "def f(): 'other'", True),
        ("a.py", "f('text')", "f('other')", False),
        ("a.py", "x = f'{a}b'", "x = f'{a}c'", False),
        ("a.toml", "[a]\nvalue = 1.0", "[a]  # a remark\nvalue = 1.00", True),
        ("a.toml", "[a]\nvalue = 1.0", "[a]\nvalue = 1.5", False),
        ("a.toml", "[a]\nsource = 'x'", "[a]\nsource = 'y'", True),
        ("a.toml", "[a]\nlow = 1", "[b]\nlow = 1", False),
        ("a.json", '{"a": 1, "b": 2}', '{"b": 2,\n"a": 1}', True),
        ("a.json", '{"a": [1, 2]}', '{"a": [2, 1]}', False),
    ],
)
def test_what_counts_of_a_source(name, text, other, same):
    assert (digest.of_texts({name: text}) == digest.of_texts({name: other})) == same


def test_a_part_has_its_own_files(tmp_path):
    """Ranges stand in the clock's folder and are no part of it."""
    (tmp_path / "clock").mkdir()

    def clock(name: str, text: str) -> str:
        (tmp_path / name).write_text(text)
        digest.part.cache_clear()
        return digest.part("clock", tmp_path)

    first = clock("clock/units.py", "a = 1")
    assert clock("clock/constants.toml", "[dsmem]") != first
    before = clock("clock/units.py", "a = 1")
    assert clock(digest.RANGES, "{}") == before
    assert clock("clock/README.md", "more") == before
    assert digest.part("ranges", tmp_path) != before


def test_other_constants_are_another_clock():
    plain, other = digest.made_by(), digest.made_by({"dsmem_way": 100.0})
    assert set(plain) == set(digest.MODELLED) and digest.made_by({}) == plain
    assert other["clock"] != plain["clock"] != digest.made_by({"dsmem_way": 90.0})["clock"]
    assert other["chip"] == plain["chip"]
