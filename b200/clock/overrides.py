"""Reads constants of the clock that a user gives: NAME=VALUE texts and files."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

from b200.clock.constants import BY_NAME


def read_overrides(pairs: Iterable[str]) -> dict[str, float]:
    """Name -> value, from `NAME=VALUE` texts. Raises ValueError that names what is wrong."""
    found: dict[str, float] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise ValueError(f"a constant is given as NAME=VALUE, not {pair!r}")
        found[name] = _checked(name, value)
    return found


def read_file(path: Path) -> dict[str, float]:
    """Name -> value, from a JSON file as `eval.py measure --out` writes it. Raises ValueError that
    names the file and what is wrong.
    """
    try:
        found: Any = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} is not a file of constants: {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f"{path} is not a file of constants: expected an object of numbers")
    table = cast("dict[str, Any]", found)  # isinstance does not say what it is of
    return {name: _checked(name, value) for name, value in table.items()}


def _checked(name: str, value: object) -> float:
    if name not in BY_NAME:
        raise ValueError(f"{name!r} is not a constant of the clock (b200/clock/constants.toml)")
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise ValueError(f"{name} should be a number, not {value!r}") from None
