"""Chains of calls that lead to a source line, for compilers that keep only the innermost frame.

The CuTe DSL traces Python. It gives an operation in a helper the helper's line, and the caller's
line is lost. So the host layer registers the chain of calls while the DSL traces, and writes the
chain's number into the column of the location (host/dsl/source_lines.py). PTX keeps the column
(`.loc file line column`), and the parser finds the chain here.
"""

from __future__ import annotations

from typing import NamedTuple

LAST = 0xFFFF  # a column has 16 bits


class CallSite(NamedTuple):
    """One call on the way to an operation: a line of a function."""

    file: str
    line: int
    function: str


Chain = tuple[CallSite, ...]  # innermost first
_chains: list[Chain] = [()]
_numbers: dict[Chain, int] = {}


def number(chain: Chain) -> int:
    """The column that stands for a chain; 0 (no chain) when all columns are taken."""
    found = _numbers.get(chain)
    if found is None:
        if len(_chains) > LAST:
            return 0
        found = _numbers[chain] = len(_chains)
        _chains.append(chain)
    return found


def chain(file: str, line: int, column: int) -> Chain:
    """The chain of a location; empty if its column stands for no chain."""
    found = _chains[column] if column < len(_chains) else ()
    return found if found and (found[0].file, found[0].line) == (file, line) else ()
