"""Lanes of one store that write different values to one address: any of them may stay."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from b200.checker import words
from b200.chip.describe import mnemonic
from b200.program.module import Instr
from b200.registry import LaneValues, active

if TYPE_CHECKING:
    from b200.checker.checked import CheckedFragment


def differ(mask: int, at: np.ndarray, value: LaneValues | tuple, bits: int) -> bool:
    """Whether lanes of one store write different values to one address. at: one address, or one for
    each active lane. value: an array or an int, or a tuple of them.
    """
    if at.size > 1 and len(set(at.tolist())) == at.size or mask & mask - 1 == 0:
        return False
    values = value if isinstance(value, tuple) else (value,)
    varying = [v for v in values if isinstance(v, np.ndarray)]
    if not varying:
        return False
    chosen = active(mask)
    places = at.tolist() if at.size > 1 else at.tolist() * len(chosen)
    first: dict[int, tuple] = {}
    rows = zip(*((v[chosen] & v.dtype.type(bits)).tolist() for v in varying))
    return any(first.setdefault(place, row) != row for place, row in zip(places, rows))


def one_address(warp: CheckedFragment, ins: Instr, where: str) -> None:
    observer = warp.observer
    agent = observer.agent(warp)
    observer.found(
        "race",
        f"lanes of one {mnemonic(ins)} write different values to one address: any of them may stay",
        (
            f"this access: {words.line(ins)}, by {words.name(agent)}",
            f"in {where} memory",
            "missing: an address of its own for each lane, or a guard that leaves one lane",
        ),
        ins,
    )
