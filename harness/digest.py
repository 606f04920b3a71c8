"""Digests of the sources of b200 that a modelled time depends on: results that agree in them are
of the same clock.

A digest is of what sources mean. Comments, docstrings and layout do not count in Python; TOML and
JSON count by their values, but for the words on the source of a constant.
"""

from __future__ import annotations

import ast
import hashlib
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, cast

import b200

PACKAGE = Path(b200.__file__).resolve().parent
RANGES = "clock/published_errors.json"
PARTS = {  # name -> folders and files of b200
    "clock": ("clock",),
    "program": ("program", "registry.py", "isa"),
    "chip": ("chip", "effects", "formats.py", "hardware.py", "occupancy.py", "spaces.py"),
    "ranges": (RANGES,),
    "checker": ("checker",),
}
MODELLED = ("clock", "program", "chip")  # what every modelled time of a B200 depends on
APART = (RANGES,)  # in a folder of a part, and not of that part
SUFFIXES = (".py", ".toml", ".json", ".txt")
LENGTH = 16  # hexadecimal digits
WITH_DOCSTRING = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@cache
def part(name: str, root: Path = PACKAGE) -> str:
    """The digest of a part of b200 (PARTS)."""
    found = {path.relative_to(root).as_posix(): path.read_text() for path in _files(name, root)}
    return of_texts(found)


def _files(name: str, root: Path) -> Iterator[Path]:
    for place in PARTS[name]:
        found = [root / place] if Path(place).suffix else sorted((root / place).rglob("*"))
        for path in found:
            apart = path.relative_to(root).as_posix() in APART and place not in APART
            if path.suffix in SUFFIXES and path.is_file() and not apart:
                yield path


def of_folder(folder: Path) -> str:
    """The digest of the Python sources of a folder."""
    return of_texts({p.relative_to(folder).as_posix(): p.read_text() for p in folder.rglob("*.py")})


def made_by(
    constants: Mapping[str, float] | None = None, parts: Iterable[str] = MODELLED
) -> dict[str, str]:
    """Digests of the parts of b200 that a result depends on: of all, for a modelled time.
    constants: those with another value than the clock's.
    """
    found = {name: part(name) for name in parts}
    if constants:
        found["clock"] = _digest(f"{found['clock']} {sorted(constants.items())}")
    return found


@cache
def of_file(path: Path) -> str:
    """The digest of one source."""
    return of_texts({path.suffix: path.read_text()})


def of_texts(texts: Mapping[str, str]) -> str:
    """The digest of sources by their names."""
    return _digest("\n".join(f"{name} {meaning(name, texts[name])}" for name in sorted(texts)))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:LENGTH]


@cache  # a copy of the checkout has the same sources
def meaning(name: str, text: str) -> str:
    """What of a source counts. name: a file name, or its ending alone."""
    if name.endswith(".py"):
        said: list[str] = []
        _say(ast.parse(text), said.append)
        return "".join(said)
    if name.endswith(".toml"):
        return json.dumps(_without_sources(_toml(text)), sort_keys=True)
    if name.endswith(".txt"):  # rows of the instruction table
        return "\n".join(
            row for line in text.splitlines() if (row := line.partition("#")[0].rstrip())
        )
    return json.dumps(json.loads(text), sort_keys=True)


def _toml(text: str) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib  # pyright: ignore[reportMissingImports]  # installed on 3.10 only
    return tomllib.loads(text)


def _without_sources(value: Any) -> Any:
    """A table without what is said of where its values are from."""
    if not isinstance(value, dict):
        return value
    table = cast("dict[str, Any]", value)  # of TOML: isinstance does not say what it is of
    return {name: _without_sources(each) for name, each in table.items() if name != "source"}


def _say(node: ast.AST, say: Callable[[str], None]) -> None:
    """A syntax tree as text, the same for each Python: fields that are empty are left out."""
    say(f"({type(node).__name__}")
    for name, value in ast.iter_fields(node):
        if name == "body" and isinstance(node, WITH_DOCSTRING) and ast.get_docstring(node, False):
            value = value[1:]
        if value is None or value == [] or name == "kind":
            continue
        say(f" {name}=")
        many = cast("list[Any]", value) if isinstance(value, list) else [value]
        for each in many:
            if isinstance(node, ast.JoinedStr) and getattr(each, "value", None) == "":
                continue  # Python 3.12 ends some f-strings in an empty text
            if isinstance(each, ast.AST):
                _say(each, say)
            else:
                say(repr(each))
    say(")")
