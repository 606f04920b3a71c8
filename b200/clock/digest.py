"""A digest of all that a modelled time depends on besides the program: results that agree in it are
of the same clock.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
NOT_CLOCK = ("checker", "hopper")  # parts of the package that no modelled time depends on


@cache
def clock_digest(root: Path = PACKAGE) -> str:
    """A digest of the package's sources and of the clock's constants, 16 hexadecimal digits."""
    found = hashlib.sha256()
    for path in sorted(root.rglob("*")):
        if path.suffix in (".py", ".toml") and path.relative_to(root).parts[0] not in NOT_CLOCK:
            found.update(path.read_bytes())
    return found.hexdigest()[:16]


def digest_with(constants: Mapping[str, float]) -> str:
    """clock_digest of a clock that has other values for some constants: the same without any."""
    if not constants:
        return clock_digest()
    text = f"{clock_digest()} {sorted(constants.items())}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]
