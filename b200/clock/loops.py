"""The loops of a kernel, found from where its blocks go."""

from __future__ import annotations

from collections.abc import Sequence

from b200.program.analysis import EXIT, Block


def loops(blocks: Sequence[Block]) -> list[tuple[int, int]]:
    """The first and the last block of each loop."""
    ends: dict[int, int] = {}
    for block in blocks:
        for successor in block.successors:
            if successor != EXIT and successor <= block.index:
                ends[successor] = max(block.index, ends.get(successor, 0))
    return list(ends.items())
