"""Finds the kernel parameters that an address in a register may come from."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable

_INSTRUCTION = re.compile(
    r"(?:^|(?<=[;{}]))\s*(?:@!?%\w+\s+)?([a-z][\w.:]*)\s+([^;{}]*(?:\{[^}]*\}[^;{}]*)*);", re.M
)
_COPIES = re.compile(r"(?:mov|selp)\.[bu]64|cvta\.param\.u64")
_REGISTER = re.compile(r"%\w+")


def parameters_behind(text: str, names: Iterable[str]) -> dict[str, set[str]]:
    """Register -> the parameters of `names` whose address it may hold. A register that may also
    hold something else is left out. text: a PTX module without comments.
    """
    sources: dict[str, set[str]] = defaultdict(set)
    for opcode, operands in _INSTRUCTION.findall(text):
        target, _, rest = operands.partition(",")
        if _COPIES.fullmatch(opcode) and not target.startswith("{"):
            sources[target.strip()] |= {value.strip() for value in rest.split(",")[:2]}
        elif not target.startswith("["):  # an address is only read
            written = operands[: operands.index("}")] if target.startswith("{") else target
            for register in _REGISTER.findall(written):
                sources[register].add("")
    names = set(names)
    return {r: found for r in sources if (found := _origins(r, sources)) and found <= names}


def _origins(register: str, sources: dict[str, set[str]]) -> set[str]:
    """What copies into a register start from: names, or "" for a value that is no copy."""
    origins, seen, left = set(), {register}, [register]
    while left:
        for source in sources[left.pop()]:
            if source not in sources:
                origins.add(source)
            elif source not in seen:
                seen.add(source)
                left.append(source)
    return origins
