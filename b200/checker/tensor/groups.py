"""Rule: all tcgen05 instructions of a kernel have the same .cta_group (PTX ISA 9.7.16.5).

ptxas refuses a kernel with both, whether it executes them or not, so no chip can load it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from b200.checker import words
from b200.program.module import Instr, Kernel

if TYPE_CHECKING:
    from b200.checker.observer import Observer

GROUPS = "cta_group::1", "cta_group::2"


def finish(observer: Observer, kernel: Kernel) -> None:
    """The launch has ended: look at the kernel's text."""
    first: dict[str, Instr] = {}
    for part in kernel.body:
        if isinstance(part, Instr) and part.mods[0] == "tcgen05":
            for group in GROUPS:
                if group in part.mods:
                    first.setdefault(group, part)
    if len(first) < len(GROUPS):
        return
    one, two = (first[group] for group in GROUPS)
    observer.found(
        "protocol",
        "a kernel has tcgen05 instructions of cta_group::1 and of cta_group::2",
        (
            f"{words.line(one)}: {one.opcode}",
            f"{words.line(two)}: {two.opcode}",
            "ptxas refuses such a kernel",
            "missing: the same .cta_group for all of them, or a kernel for each",
        ),
        one,
        two,
    )
