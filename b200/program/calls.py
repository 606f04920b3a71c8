"""Chains of calls to a line, for compilers that keep only the innermost frame.

The CuTe DSL traces Python: a helper's operation is given the helper's line, and who called it is
lost. The host layer registers the chain while it traces and writes its number into the location's
column (host/source_lines.py), which PTX keeps (`.loc file line column`); the parser finds it here.
"""

from __future__ import annotations

from typing import NamedTuple

LAST = 0xFFFF  # a column has 16 bits


class Call(NamedTuple):
    """A line of a function on the way to an operation."""

    file: str
    line: int
    function: str


Chain = tuple[Call, ...]  # innermost first
_chains: list[Chain] = [()]
_numbers: dict[Chain, int] = {}


def number(chain: Chain) -> int:
    """The column that stands for a chain; 0, for none, where there are more than columns."""
    found = _numbers.get(chain)
    if found is None:
        if len(_chains) > LAST:
            return 0
        found = _numbers[chain] = len(_chains)
        _chains.append(chain)
    return found


def chain(file: str, line: int, column: int) -> Chain:
    """The chain of a location; empty if its column is only a column."""
    found = _chains[column] if column < len(_chains) else ()
    return found if found and (found[0].file, found[0].line) == (file, line) else ()
