"""Code that ptxas moves: behind a barrier or a branch (sunk), or before its loop (hoisted).

SASS of ptxas 13.0 for sm_100a: a reciprocal or a sum of a loaded value stands behind the barrier,
or behind where the arms of a branch meet, as its use does. What an arm uses stays before the
branch: of 27 small kernels, in all 12 with uses in two or three arms, or in an arm and behind it,
an FFMA, a chain of integers or a MUFU.RCP stands before the branch, and behind a barrier of its
block. So nobody waits for the load before the use. What is computed before a clock is read,
and used after it, waits after it, too: of `lab h200 clusters`, signal, CS2R waits for no load, and
the LOP3 behind it does.

For sm_90a and sm_100a: in a loop of a barrier, sums, products, comparisons and chains of them, of
registers that the loop does not write, stand before the loop: up to 40 values were tried, also
guarded ones, and such as take turns in one register of PTX. Of the arm of a branch a product stays
there. What is guarded and keeps a register of the round before stays, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from b200.clock import costs
from b200.program.analysis import EXIT, Block, Op, Uniformity
from b200.program.module import CLOCKS, Special


def sunk(blocks: list[Block], info: Uniformity) -> set[int]:
    """id() of each operation that is carried out later, if it would have to wait for a load."""
    looped = {i for first, last in loops(blocks) for i in range(first, last + 1)}
    straight = (block for block in blocks if block.index not in looped)
    read = [_read(block, info) for block in blocks]
    return {id(op) for block in straight for op in _of_block(block, blocks, info, read)}


def _of_block(
    block: Block, blocks: list[Block], info: Uniformity, every_read: list[int]
) -> Iterator[Op]:
    """Those whose results are needed on all ways on, or behind a barrier, and by nothing before.
    every_read: the registers that each block reads, as bits.
    """
    live = ~0
    for successor in block.successors:
        live &= info.live_in[successor] if successor != EXIT else 0
    live &= ~_of_arms(block, blocks, info.ipdom, every_read) if live else 0
    wanted = set(info.named(live))
    read: set[str] = set()
    for op in reversed(block.ops):
        results = {register.name for register in op.dsts}
        sources = {register.name for register in op.srcs}
        sinks = bool(results) and results <= wanted - read and _can_sink(op)
        wanted -= results
        if sinks:
            wanted |= sources
            yield op
        else:
            read |= sources


def _of_arms(block: Block, blocks: list[Block], meets: Sequence[int], every_read: list[int]) -> int:
    """Registers that arms of a branch at a block's end, or behind where its arms meet, are the
    first to read. What arms read that begin in the block's own straight line is not among them.
    """
    found = read = 0
    at, passed = block.index, {block.index}
    behind = len(block.successors) > 1  # a branch at the block's own end
    while True:
        after = blocks[at].successors
        if len(after) > 1:
            arms = _read_between(after, meets[at], blocks, every_read)
            found |= arms & ~read if behind else 0
            read |= arms
            at, behind = meets[at], True
        else:
            at = after[0]
        if at == EXIT or at in passed:
            return found
        passed.add(at)
        read |= every_read[at]


def _read_between(
    starts: Iterable[int], meet: int, blocks: list[Block], every_read: list[int]
) -> int:
    """Registers that blocks from `starts` on read, short of a block where control meets."""
    found, inside, ahead = 0, {EXIT, meet}, list(starts)
    while ahead:
        index = ahead.pop()
        if index not in inside:
            inside.add(index)
            found |= every_read[index]
            ahead += blocks[index].successors
    return found


def _read(block: Block, info: Uniformity) -> int:
    found = 0
    for op in block.ops:
        for register in op.srcs:
            found |= 1 << info.id[register.name]
    return found


def _can_sink(op: Op) -> bool:
    ins = op.ins
    is_pure = op.entry is not None and op.entry.style == "pure" and ins.pred is None
    return is_pure and not costs.is_constant(ins) and not costs.is_copy(ins)


def hoisted(blocks: Sequence[Block], meets: Sequence[int]) -> dict[int, list[Op]]:
    """Instructions that are carried out once before their loop, by the blocks from which control
    comes to it.

    meets: of each block, the next one that all ways on from it lead to.
    """
    found: dict[int, list[Op]] = {}
    every = loops(blocks)
    for first, last in every:
        within = [(a, b) for a, b in every if (a, b) != (first, last) and first <= a <= b <= last]
        inner = {i for a, b in within for i in range(a, b + 1)}
        ops = list(_of_loop(blocks, meets, first, last, inner))
        for block in blocks:
            if first in block.successors and not first <= block.index <= last and ops:
                found.setdefault(block.index, []).extend(ops)
    return found


def _of_loop(
    blocks: Sequence[Block], meets: Sequence[int], first: int, last: int, inner: set[int]
) -> Iterator[Op]:
    """What is the same in each round, of the blocks that every round comes to once."""
    every: list[int] = []
    index = first
    while first <= index <= last:
        every += [index] if index not in inner else []
        index = meets[index]
    changes = _written(blocks[first : last + 1])
    elsewhere = _written(b for b in blocks[first : last + 1] if b.index not in every)
    same: set[str] = set()  # registers that the loop writes, and that do not change
    for op in (op for index in every for op in blocks[index].ops):
        results = {r.name for r in op.dsts}
        sources = {r.name for r in op.srcs}
        if _can_move(op) and not (sources & changes) - same:
            same |= results - elsewhere
            yield op
        else:
            same -= results


def _written(blocks: Iterable[Block]) -> set[str]:
    return {r.name for block in blocks for op in block.ops for r in op.dsts}


def _can_move(op: Op) -> bool:
    ins = op.ins
    if op.entry is None or any(isinstance(o, Special) and o.name in CLOCKS for o in ins.operands):
        return False
    return op.entry.style == "pure" or costs.is_parameter(ins)


def loops(blocks: Sequence[Block]) -> list[tuple[int, int]]:
    """The first and the last block of each loop."""
    ends: dict[int, int] = {}
    for block in blocks:
        for successor in block.successors:
            if successor != EXIT and successor <= block.index:
                ends[successor] = max(block.index, ends.get(successor, 0))
    return list(ends.items())
