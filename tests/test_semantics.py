"""emulator/SEMANTICS.md names what is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from emulator import isa  # noqa: F401  registers every unit
from emulator.registry import TABLE

TEXT = (Path(__file__).resolve().parent.parent / "emulator" / "SEMANTICS.md").read_text()
ROWS = [line for line in TEXT.splitlines() if re.match(r"\| [\w(]+\.py", line)]
UNITS = {key: getattr(e.factory, "func", e.factory).__module__ for key, e in TABLE.items()}


@pytest.mark.parametrize("key", sorted(TABLE), ids=".".join)
def test_every_mnemonic_has_a_row(key):
    """Its first word stands in the table, in the row of its unit's file where one file has it."""
    shared = key[0] in ("abs", "add", "div", "fma", "mad", "max", "min", "mul", "neg", "rem", "sub")
    shared |= key[0] in ("red", "fence", "prefetch", "cp", "bar", "tcgen05")
    unit = UNITS[key].split(".")[-1] + ".py"
    rows = ROWS if shared else [row for row in ROWS if unit in row]
    assert any(f"`{key[0]}" in row for row in rows), (key, unit)


def test_every_file_with_instructions_is_named():
    dispatch = "emulator.isa.decode"  # of mnemonics that integers and floats share
    for module in set(UNITS.values()) - {dispatch}:
        assert f"{module.split('.')[-1]}.py" in "".join(ROWS), module
