"""Results as JSON, a record a line: short to scroll, and a diff shows the records that changed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast


def write(path: Path, data: Any) -> None:
    """Write `data`, lists and dicts of plain values, to a file."""
    path.write_text(text(data))


def text(data: Any) -> str:
    """`data` as JSON: each of its items on a line, or each of an item's where these are records
    (lists or dicts) alone.
    """
    data = json.loads(json.dumps(data))  # keys are texts, tuples are lists
    if not _items(data):
        return f"{json.dumps(data)}\n"
    return _lines(data, [_item(item) for item in _items(data)]) + "\n"


def _item(value: Any) -> str:
    items = _items(value)
    if items and all(isinstance(item, (list, dict)) for item in items):
        return _lines(value, [json.dumps(item) for item in items])
    return json.dumps(value)


def _items(value: Any) -> list[Any]:
    """What a list or a dict holds."""
    if isinstance(value, dict):
        return list(cast("dict[str, Any]", value).values())  # isinstance does not say of what
    return cast("list[Any]", value) if isinstance(value, list) else []


def _lines(whole: Any, items: list[str]) -> str:
    """The texts of a list's or a dict's items, one a line."""
    if isinstance(whole, dict):
        named = zip(cast("dict[str, Any]", whole), items, strict=True)
        return "{\n" + ",\n".join(f"{json.dumps(key)}: {item}" for key, item in named) + "\n}"
    return "[\n" + ",\n".join(items) + "\n]"


def as_object(found: Any) -> dict[str, Any]:
    """What was read as JSON, if it is an object; {} for anything else."""
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}
