"""Shared memory that nobody has written: who reads it, and what that may change.

What comes of the bytes that loads, atomics and reductions take, a second run tells (checked.py); of
those that copies and the tensor core take, the end of the CTA, and then perhaps that run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from b200.checker import words
from b200.checker.accesses import Record
from b200.checker.finding import ERROR, NOTE, PORTABILITY
from b200.checker.memory.shadow import GRANULE, WORD
from b200.effects import Updates

if TYPE_CHECKING:
    from b200.checker.memory.shadow import SharedShadow
    from b200.checker.memory.shared_memory import SharedRules


def updates(access: Record) -> bool:
    """Whether a write of words takes what is there: an exchange does for its result alone."""
    effect = access.ins.effect
    if isinstance(effect, Updates) and effect.operation == "exch":
        return effect.returns
    return access.kind in ("atomic", "red.async")


def reads(
    rules: SharedRules, new: Record, index: slice | np.ndarray, stored: np.ndarray, at: tuple
) -> None:
    """Report words that an access reads and nobody has written. stored: their latest stores."""
    low, high, _ = at
    empty = stored == 0
    if rules.shadow.written_in.meet(low * WORD, high * WORD + 3):
        numbers = np.arange(low, high + 1) if isinstance(index, slice) else index
        empty = empty & (rules.shadow.written[numbers >> 2] == 0)
    if not empty.any():
        return
    nbytes = int(np.count_nonzero(empty)) * WORD
    if new.kind == "strong":
        _report(rules, new, at, nbytes, ERROR)
    else:
        _report(rules, new, at, nbytes, PORTABILITY, judged="shared")


def reduced(rules: SharedRules, new: Record, low: int, high: int) -> None:
    """Check what a bulk reduction, which writes these granules, finds there."""
    first, last = low * GRANULE // WORD, (high + 1) * GRANULE // WORD - 1
    index = slice(first, last + 1)
    reads(rules, new, index, rules.shadow.stored[index], (first, last, WORD))


def granules(
    rules: SharedRules,
    new: Record,
    index: slice | np.ndarray,
    empty: np.ndarray,
    at: tuple,
    rows: Sequence | None,
) -> None:
    """Report granules that nobody has written, by `empty`. rows: as in SharedRules.async_read."""
    nbytes = int(np.count_nonzero(empty)) * GRANULE
    some = rows is not None and _some_rows(empty, index, rows)
    what = "rows in shared memory" if some else "shared memory"
    _report(rules, new, at, nbytes, NOTE if some else ERROR, what)


def _some_rows(empty: np.ndarray, index: slice | np.ndarray, others: Sequence) -> bool:
    """Whether whole rows of a tensor core's operand are empty while others are not, in this CTA
    or in the other CTA of the pair. An empty row affects only its own row or column of the
    result, which the kernel need not use.
    """
    rows = empty.reshape(empty.shape[0], -1)
    if rows.all():
        return any(_holds(other.shadow, index) for other in others)
    return bool((rows.all(1) | ~rows.any(1)).all())


def _holds(shadow: SharedShadow, index: slice | np.ndarray) -> bool:
    """Whether anything has been written to some of the granules."""
    return bool(shadow.written[index].any() or shadow.words(shadow.stored, index).any())


def _report(
    rules: SharedRules,
    new: Record,
    at: tuple,
    nbytes: int,
    severity: str,
    what: str = "shared memory",
    judged: str = "",
) -> None:
    new.empty = True
    rules.report(
        "uninitialised",
        f"{words.thing(new)} reads {what} that nothing has written",
        f"this access: {words.act(new)}",
        f"{nbytes} bytes of it, in {words.place(rules.cta, *at)}, were never written",
        "missing: the load or store that fills them, or a wait for it; or the access "
        f"reaches too far{words.latest_wait(new.agent)}",
        of=(new, None),
        severity=severity,
        nobodys=judged,
    )
