"""The table of constants: what the loader refuses, each with the name of the constant."""

import ast
from pathlib import Path

import pytest

from b200.clock import constants
from b200.clock.constants import BY_NAME, TABLE, Constants, read_table

SOURCES = Path(constants.__file__).parent
GOOD = {
    "value": "58",
    "unit": '"clk"',
    "grade": '"published"',
    "range": "[15.5, 58.0]",
    "source": '"a page"',
}


def one(**changed: str | None) -> str:
    """A file of one constant, with some of its keys replaced, or left out where None."""
    keys = {k: v for k, v in {**GOOD, **changed}.items() if v is not None}
    return "[bulk_issue]\n" + "".join(f"{key} = {value}\n" for key, value in keys.items())


@pytest.fixture
def written(tmp_path):
    def write(text: str) -> Path:
        path = tmp_path / "table.toml"
        path.write_text(text)
        return path

    return write


def test_a_constant_is_read_as_it_stands(written):
    (read,) = read_table(written(one()))
    assert (read.name, read.value, read.unit, read.grade) == ("bulk_issue", 58, "clk", "published")
    assert (read.source, read.low, read.high) == ("a page", 15.5, 58.0)
    assert [read.at(end) for end in ("nominal", "low", "high")] == [58, 15.5, 58.0]


def test_a_constant_without_a_range_is_the_same_at_its_ends(written):
    (read,) = read_table(written(one(range=None)))
    assert [read.at(end) for end in ("nominal", "low", "high")] == [58, 58, 58]


@pytest.mark.parametrize(
    "changed, said",
    [
        ({"grade": '"guessed"'}, "grade: expected one of measured, .*, unknown, found 'guessed'"),
        ({"unit": '"clks"'}, "unit: expected one of .*, found 'clks'"),
        ({"source": None}, "missing source"),
        ({"source": '" "'}, "source: expected where the number is from, found ' '"),
        ({"source": "3"}, "source: expected where the number is from, found 3"),
        ({"value": None, "unit": None}, "missing unit, value"),
        ({"value": '"58"'}, "value: expected a finite number, 0 or more, found '58'"),
        ({"value": "true"}, "value: expected a finite number"),
        ({"value": "nan"}, "value: expected a finite number"),
        ({"value": "-1"}, "value: expected a finite number"),
        ({"value": "58.5"}, "value: expected one in the range 15.5 to 58, found 58.5"),
        ({"value": "15"}, "value: expected one in the range 15.5 to 58, found 15"),
        ({"value": "60", "range": "[58.0, 15.5]"}, "value: expected one in the range 58 to 15.5"),
        ({"range": "[1.0]"}, r"range: expected \[fast end, slow end\], found \[1.0\]"),
        ({"range": '[1.0, "2"]'}, "range: expected"),
        ({"low": "15.5"}, "unknown key low"),
    ],
)
def test_what_is_wrong_with_a_constant_is_said(written, changed, said):
    with pytest.raises(ValueError, match=f"table.toml: constant bulk_issue: {said}"):
        read_table(written(one(**changed)))


@pytest.mark.parametrize(
    "text, said",
    [
        (one().replace("bulk_issue", "bulk_isue"), "constant bulk_isue: .* no constant of a B200"),
        ("bulk_issue = 58\n", "constant bulk_issue: expected a table of grade, .*, found 58"),
        (one() + one(), "is not a file of constants: Cannot declare .*bulk_issue"),
        ("[bulk_issue\n", "is not a file of constants"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(written, text, said):
    with pytest.raises(ValueError, match=said):
        read_table(written(text), BY_NAME)


def test_a_constant_that_nobody_knows_has_a_range():
    unknown = [constant for constant in TABLE if constant.grade == "unknown"]
    assert unknown and all(constant.low is not None for constant in unknown)


def uses() -> set[str]:
    """What the clock asks of its constants, which it calls `c` or `constants`."""
    found: set[str] = set()
    for path in SOURCES.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute):
                of = node.value
                if getattr(of, "id", getattr(of, "attr", "")) in ("c", "constants"):
                    found.add(node.attr)
    return found


def test_the_clock_asks_for_each_constant_and_for_no_other():
    of_one_or_of_a_dict = {"name", "value", "low", "high", "items"}
    assert uses() - of_one_or_of_a_dict == set(BY_NAME)


def test_the_values_are_attributes_that_an_override_replaces():
    assert Constants.make() == Constants.make("nominal")
    assert Constants.make("low").bulk_issue == 15.5 and Constants.make("high").bulk_issue == 58.0
    assert Constants.make("high", bulk_issue=20).bulk_issue == 20
