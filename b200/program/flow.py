"""The control flow of a kernel: which blocks control may come to, and where diverged lanes meet.

A block here is anything with `index`, `successors` (indices, EXIT for leaving the kernel), `traps`,
whether it leaves by a trap, and `only_leaves`, whether it does nothing but leave.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

EXIT = -1


class FlowNode(Protocol):
    """What this module reads of a basic block."""

    @property
    def index(self) -> int: ...
    @property
    def successors(self) -> list[int]: ...
    @property
    def traps(self) -> bool: ...
    @property
    def only_leaves(self) -> bool: ...


def post_dominators(blocks: Sequence[FlowNode]) -> list[int]:
    """Immediate post-dominator of each block (EXIT where there is none inside the kernel). A way
    that ends in a trap, or never, counts for nothing: no lane comes back from it.

    Cooper, Harvey and Kennedy, "A simple, fast dominance algorithm" (2001), on the reversed flow.
    """
    before: dict[int, list[int]] = {block.index: [] for block in blocks} | {EXIT: []}
    for block in blocks:
        for after in block.successors:
            if after != EXIT or not block.traps:
                before[after].append(block.index)
    order = _postorder(before)  # EXIT last
    number = {block: n for n, block in enumerate(order)}
    found = {EXIT: EXIT}
    changed = True
    while changed:
        changed = False
        for index in reversed(order[:-1]):
            ways = blocks[index].successors
            known = [s for s in ways if s in found and not (s == EXIT and blocks[index].traps)]
            new = known[0]
            for other in known[1:]:
                while new != other:
                    if number[new] < number[other]:
                        new = found[new]
                    else:
                        other = found[other]
            if found.get(index) != new:
                found[index], changed = new, True
    return [found.get(block.index, EXIT) for block in blocks]


def _postorder(before: dict[int, list[int]]) -> list[int]:
    """Blocks that lead to EXIT, each behind those that lead to it first."""
    order: list[int] = []
    seen = {EXIT}
    work = [(EXIT, iter(before[EXIT]))]
    while work:
        block, ways = work[-1]
        step = next((way for way in ways if way not in seen), None)
        if step is None:
            order.append(block)
            work.pop()
        else:
            seen.add(step)
            work.append((step, iter(before[step])))
    return order


def reachable(blocks: Sequence[FlowNode], start: int, stop: int = EXIT) -> set[int]:
    """Blocks that control may come to from `start`, without `stop` and those that come after it."""
    seen: set[int] = set()
    work = [start]
    while work:
        block = work.pop()
        if block not in (stop, EXIT) and block not in seen:
            seen.add(block)
            work += blocks[block].successors
    return seen


def where_arms_join(blocks: Sequence[FlowNode], branch: FlowNode) -> int:
    """Where lanes that part at a branch without a post-dominator meet, if some of them leave the
    kernel on the way: the first block that more than one arm leads to. Of a loop that is left by
    this branch, and else only by a return, that is the block behind it. EXIT where there is no such
    block, or several.

    ptxas does the same: lanes that exit are taken out of the barrier at which the others converge.
    """
    arms = {s: reachable(blocks, s, branch.index) for s in branch.successors if s != EXIT}
    common = {
        b for b in set[int]().union(*arms.values()) if sum(b in arm for arm in arms.values()) > 1
    }
    entries = {s for s in arms if s in common}
    for arm in arms.values():
        entries |= {s for b in arm - common for s in blocks[b].successors if s in common}
    if not common:
        entries = {
            behind
            for again, arm in arms.items()
            for behind in arms
            if again != behind and _comes_back(blocks, again, arm, branch.index)
        }
    return entries.pop() if len(entries) == 1 else EXIT


def _comes_back(blocks: Sequence[FlowNode], first: int, arm: set[int], branch: int) -> bool:
    """Whether an arm leads to its branch again, or returns without further work."""
    back = first == branch or any(branch in blocks[b].successors for b in arm)
    ends = (blocks[b] for b in arm if EXIT in blocks[b].successors)
    return back and all(len(block.successors) > 1 or block.only_leaves for block in ends)
