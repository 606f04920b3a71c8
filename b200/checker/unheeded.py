"""Looks whose answer decides nothing: at an mbarrier, or at a flag by a strong load.

A test_wait or try_wait may answer that the phase is not over (PTX ISA 9.7.13.15.16), and a load may
find the value from before the release (8.9). Who asks once and goes on has not waited. If nothing
depends on the answer, the same order is legal with the other one, so the look acquires nothing.

The same is so of who asks N times and then goes on: the answer decides how often it asks, and no
more. Whatever the looks answer, control comes to the same place, with nothing there that depends on
them (endless_looks.py says where control goes). A look that is asked until it passes is a wait.
"""

from __future__ import annotations

from b200.checker.dependents import Dependents, Reach, is_look
from b200.checker.endless_looks import may_end
from b200.program.analysis import Block


def unheeded(blocks: list[Block]) -> frozenset[int]:
    """Key of each test_wait, try_wait and strong load whose answer decides nothing. A name counts
    as one register wherever it is written, so fewer are found where a name is used twice.
    """
    looks = [op for block in blocks for op in block.ops if is_look(op)]
    if not looks:
        return frozenset()
    kernel = Dependents(blocks)
    reach = {op.ins.key: found for op in looks if (found := kernel.reach(op)) is not None}
    size = -1
    while size != (size := len(reach)):  # who leads to a wait has waited
        reach = {n: found for n, found in reach.items() if found.looks <= reach.keys()}
    return frozenset(n for n, found in reach.items() if not found.inside or _goes_on(kernel, found))


def _goes_on(kernel: Dependents, found: Reach) -> bool:
    """Whether control comes to where the ways meet, whatever the look answers."""
    behind = {kernel.meets[index] for index in found.branches} - found.inside - found.branches
    start = kernel.blocks[kernel.home[found.op.ins.key]]
    return bool(behind) and may_end(kernel.blocks, start, found.op, behind)
