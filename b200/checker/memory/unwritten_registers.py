"""Rule: a result must not depend on a register that nothing has written.

A kernel may read such a register on a way that its values do not take, or drop what it gets. So a
kernel with a register that some way from its beginning reads first is carried out again with other
values there (unwritten.py).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from b200.checker import words
from b200.program.analysis import Op
from b200.program.module import TYPE_BITS
from b200.program.translated import Translated
from b200.registry import FULL

if TYPE_CHECKING:
    from b200.checker.observer import Observer


def read_first(code: Translated) -> list[str]:
    """The registers that some way from a kernel's beginning reads before it writes them."""
    return [name for i, name in enumerate(code.kernel.registers) if code.live[0] >> i & 1]


def holding(code: Translated, byte: int) -> Translated:
    """The kernel with each byte of these registers set, where its warps begin."""
    initial = list(code.initial)
    for i, register in enumerate(code.kernel.registers.values()):
        if code.live[0] >> i & 1:
            initial[i] = _set(initial[i], register.type, byte)
    return replace(code, initial=initial)


def _set(value: Any, kind: str, byte: int) -> Any:
    if kind == "pred":
        return FULL if byte else 0
    if isinstance(value, np.ndarray):
        return np.full(value.nbytes, byte, np.uint8).view(value.dtype)
    return int.from_bytes(bytes([byte]) * (TYPE_BITS[kind] // 8), "little")


def tell(observer: Observer, code: Translated, reached: str) -> None:
    """Report what reads them first. reached: a result that depends on one of them, in words."""
    names = read_first(code)
    first = next(op.ins for op in _executed(observer, code) if {r.name for r in op.srcs} & {*names})
    observer.found(
        "uninitialised",
        "a register is read that nothing has written",
        (
            f"this access: {words.line(first)}",
            f"read before they are written, on some way: {', '.join(names[:8])}",
            reached,
            "missing: a value for the variable on each way that leads to its use",
        ),
        first,
    )


def _executed(observer: Observer, code: Translated) -> list[Op]:
    hits = observer.machine.hits
    return [op for block in code.structure if hits[block.index] for op in block.ops]
