"""What one of several CTAs has of an operand."""

from __future__ import annotations

from typing import Any

import numpy as np

from b200.registry import FULL


def part_of(kind: Any, value: Any, i: int) -> Any:
    """What CTA i has of an operand."""
    if isinstance(value, tuple):
        kinds = kind if isinstance(kind, tuple) else (kind,) * len(value)
        return tuple(part_of(k, v, i) for k, v in zip(kinds, value, strict=True))
    if isinstance(value, np.ndarray):
        return value[32 * i : 32 * i + 32]
    return value >> 32 * i & FULL if kind == "pred" and value is not None else value
