"""Reads and checks the numbers of the clock's units (constants.toml).

The file gives the value, unit, grade, range and source of each constant, and says what these mean.
`Constants` has the values as attributes.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Container
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pyright: ignore[reportMissingImports]  # installed on 3.10 only

GRADES = ("measured", "published", "fitted", "derived", "unknown")
UNITS = ("", "clk", "ns", "us", "Hz", "B", "B/s", "B/clk", "sectors", "lines")
KEYS = {"value", "unit", "grade", "source"}  # of every constant
OPTIONAL_KEYS = {"range"}


@dataclass(frozen=True)
class Constant:
    """One number. low: the end of its range that makes kernels faster; high: the end that makes
    them slower. Both are None for a number without a range.
    """

    name: str
    value: float
    unit: str
    grade: str
    source: str
    low: float | None = None
    high: float | None = None

    def at(self, end: str) -> float:
        """The value at an end of the range: "nominal", "low" or "high"."""
        ranged = {"low": self.low, "high": self.high}.get(end)
        return self.value if ranged is None else ranged


class Constants(SimpleNamespace):
    """The values that a launch is timed with, by the names of constants.toml."""

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> float: ...

    @classmethod
    def make(cls, end: str = "nominal", **overrides: float) -> Constants:
        """The constants of a B200. end: "nominal", "low" (every range at its fast end) or "high"
        (at its slow end). Raises KeyError for an override that is no constant.
        """
        values = {constant.name: constant.at(end) for constant in TABLE}
        for name, value in overrides.items():
            values[BY_NAME[name].name] = value
        return cls(**values)


def read_table(path: Path, names: Container[str] | None = None) -> tuple[Constant, ...]:
    """The constants of a file, in its order. names: those that it may have, None for any. Raises
    ValueError that names the file, the constant and what is wrong with it.
    """
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:  # of which TOMLDecodeError is one
        raise ValueError(f"{path} is not a file of constants: {error}") from None
    found: list[Constant] = []
    for name, table in tables.items():
        known = names is None or name in names
        if wrong := _wrong(table) if known else f"{name!r} is no constant of a B200":
            raise ValueError(f"{path.name}: constant {name}: {wrong}")
        low, high = table.get("range", (None, None))
        kept = table["value"], table["unit"], table["grade"], table["source"]
        found.append(Constant(name, *kept, low, high))
    return tuple(found)


def _wrong(table: Any) -> str:
    """Why a table of the file is no constant, or ""."""
    if not isinstance(table, dict):
        return f"expected a table of {', '.join(sorted(KEYS))}, found {table!r}"
    table = cast("dict[str, Any]", table)  # isinstance does not say what it is of
    if missing := KEYS - set(table):
        return f"missing {', '.join(sorted(missing))}"
    if unknown := set(table) - KEYS - OPTIONAL_KEYS:
        return f"unknown key {', '.join(sorted(unknown))}"
    value, source = table["value"], table["source"]
    if not _is_number(value):
        return f"value: expected a finite number, 0 or more, found {value!r}"
    if table["unit"] not in UNITS:
        return f"unit: expected one of {', '.join(map(repr, UNITS))}, found {table['unit']!r}"
    if table["grade"] not in GRADES:
        return f"grade: expected one of {', '.join(GRADES)}, found {table['grade']!r}"
    if not isinstance(source, str) or not source.strip():
        return f"source: expected where the number is from, found {source!r}"
    return _wrong_range(value, table["range"]) if "range" in table else ""


def _wrong_range(value: float, ends: Any) -> str:
    """Why a range is none for a value, or ""."""
    numbers = cast("list[Any]", ends) if isinstance(ends, list) else []
    if len(numbers) != 2 or not all(map(_is_number, numbers)):
        return f"range: expected [fast end, slow end], found {ends!r}"
    if not min(numbers) <= value <= max(numbers):
        return f"value: expected one in the range {numbers[0]:g} to {numbers[1]:g}, found {value:g}"
    return ""


def _is_number(value: Any) -> bool:
    """Whether it is one that a constant may have: finite, 0 or more."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number and math.isfinite(value) and value >= 0


TABLE = read_table(Path(__file__).with_name("constants.toml"))
BY_NAME = {constant.name: constant for constant in TABLE}
