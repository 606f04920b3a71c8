"""docs/reference/semantics.md names what is there."""

from __future__ import annotations

import re

from b200.chip import instruction_set as isa  # noqa: F401  registers every unit
from b200.registry import TABLE
from tests import ROOT

TEXT = (ROOT / "docs" / "reference" / "semantics.md").read_text()
ROWS = [line for line in TEXT.splitlines() if re.match(r"\| [\w(/]+\.py", line)]
UNITS = {key: getattr(e.factory, "func", e.factory).__module__ for key, e in TABLE.items()}


def path_of(module: str) -> str:
    """The file of a unit as the table names it: chip/sync/fences.py."""
    return module.removeprefix("b200.").replace(".", "/") + ".py"


def is_in_the_table(key: tuple[str, ...]) -> bool:
    """Its first word stands there, in the row of its unit's file where one file has it."""
    shared = key[0] in ("abs", "add", "div", "fma", "mad", "max", "min", "mul", "neg", "rem", "sub")
    shared |= key[0] in ("red", "fence", "prefetch", "cp", "bar", "tcgen05")
    unit = path_of(UNITS[key])
    rows = ROWS if shared else [row for row in ROWS if unit in row]
    return any(f"`{key[0]}" in row for row in rows)


def test_every_mnemonic_has_a_row():
    assert [".".join(key) for key in sorted(TABLE) if not is_in_the_table(key)] == []


def test_every_file_with_instructions_is_named():
    dispatch = "b200.chip.alu.build"  # of mnemonics that integers and floats share
    for module in set(UNITS.values()) - {dispatch}:
        assert path_of(module) in "".join(ROWS), module
