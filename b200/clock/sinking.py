"""What is computed from a load and used behind a barrier or a branch only: ptxas computes it there.

SASS of ptxas 13.0 for sm_100a: a reciprocal or a sum of a loaded value stands behind the barrier,
or behind where the arms of a branch meet, as its use does. Used in one arm only, it stays before
the branch. So nobody waits for the load before the use. What is computed before a clock is read,
and used after it, waits after it, too: of `lab h200 clusters`, signal, CS2R waits for no load, and
the LOP3 behind it does.
"""

from __future__ import annotations

from collections.abc import Iterator

from b200.clock import costs
from b200.clock.loops import loops
from b200.program.analysis import EXIT, Block, Op, Uniformity


def sunk(blocks: list[Block], info: Uniformity) -> set[int]:
    """id() of each operation that is carried out later, if it would have to wait for a load."""
    looped = {i for first, last in loops(blocks) for i in range(first, last + 1)}
    return {
        id(op) for block in blocks if block.index not in looped for op in _of_block(block, info)
    }


def _of_block(block: Block, info: Uniformity) -> Iterator[Op]:
    """Those whose results are needed on all ways on, or behind a barrier, and by nothing before."""
    live = ~0
    for successor in block.successors:
        live &= info.live_in[successor] if successor != EXIT else 0
    wanted = {name for name, i in info.id.items() if live >> i & 1}
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


def _can_sink(op: Op) -> bool:
    ins = op.ins
    is_pure = op.entry is not None and op.entry.style == "pure" and ins.pred is None
    return is_pure and not costs.is_constant(ins) and not costs.is_copy(ins)
