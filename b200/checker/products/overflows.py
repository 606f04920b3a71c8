"""Rule: a conversion to a narrower format should not make an infinity of a finite number.

A sum that does not fit f16, or a scale that was forgotten, leaves a kernel as infinity and comes
back as NaN much later. The format allows it, so it is a note: once for each conversion, with the
first value and how many there were.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from b200.checker import words
from b200.checker.finding import NOTE
from b200.chip.alu.rounding import FLOATS
from b200.chip.describe import mnemonic
from b200.program.module import Instr
from b200.registry import Pure, as_bools

if TYPE_CHECKING:
    from b200.checker.checked import CheckedFragment
    from b200.checker.observer import Observer


@dataclass
class Overflow:
    """The infinities that one conversion has made. value, who: of the first."""

    ins: Instr
    target: str
    value: float
    who: str
    count: int = 0


class Overflows:
    def __init__(self, observer: Observer):
        self.observer = observer
        self.found: dict[tuple, Overflow] = {}  # by source line, for a loop is unrolled

    def add(self, first: Overflow, count: int) -> None:
        """Count infinities of an instruction; `first` describes the first of them."""
        key = mnemonic(first.ins), words.line(first.ins), *words.calls(first.ins)
        self.found.setdefault(key, first).count += count

    def finish(self) -> None:
        for each in self.found.values():
            form = FLOATS[each.target]
            largest = form.decode(np.array([form.infinity - 1], form.bits_dtype))[0]
            self.observer.found(
                "numerics",
                f"{mnemonic(each.ins)} makes infinity of a finite value",
                f"this conversion: {words.line(each.ins)}; {each.count} value(s) in the launch",
                f"the first: {each.value:.6g}, by {each.who}; the largest number of "
                f"{each.target} is {largest:.6g}",
                "missing: a scale in front of the conversion, or .satfinite",
                at=each.ins,
                severity=NOTE,
            )


def watched(
    instructions: Sequence[Instr], made: Pure, note: Callable[..., None] | None = None
) -> Callable[..., np.ndarray]:
    """The vector form of alike conversions, called with the warp and the mask of lanes that execute
    in front of its operands. note: is told of infinities; None: they are counted.
    """
    narrows, vector = made.narrows, made.vector
    assert narrows is not None and vector is not None
    source, target = FLOATS[narrows.source], FLOATS[narrows.target]
    magnitude, infinity = target.bits_dtype(target.sign - 1), target.bits_dtype(target.infinity)

    def convert(warp: CheckedFragment, mask: int, *args: np.ndarray) -> np.ndarray:
        result = vector(*args)
        infinite = result.view(target.bits_dtype) & magnitude == infinity
        if np.count_nonzero(infinite):  # quicker than any()
            values = np.stack([source.native(a) for a in args[narrows.values - 1 :: -1]], -1)
            hits = (infinite & np.isfinite(values).reshape(-1)).reshape(
                len(instructions), -1, narrows.values
            )
            hits &= as_bools(mask, hits.shape[1])[:, None]
            for ins, hit, of in zip(instructions, hits, values.reshape(hits.shape), strict=True):
                if hit.any():
                    (note or _note)(warp, ins, target.name, hit, of)
        return result

    return convert


def _note(
    warp: CheckedFragment, ins: Instr, target: str, hit: np.ndarray, values: np.ndarray
) -> None:
    """Count what one instruction has made. hit, values: [lane, value of the lane]."""
    observer: Observer = warp.observer
    who = f"{words.name(observer.agent(warp))}, lane {int(hit.any(1).argmax())}"
    first = Overflow(ins, target, float(values[hit][0]), who)
    count = partial(observer.overflows.add, first, int(hit.sum()))
    trail = observer.trail
    if trail is not None and trail.follows:
        trail.note.append(count)
    else:
        count()
