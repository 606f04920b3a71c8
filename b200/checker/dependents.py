"""What depends on the result of an instruction: registers, branches, and what these decide over.

A look asks for what others do: at an mbarrier, or at a flag by a strong load. `unheeded` finds
those whose answer decides nothing. A test_wait or try_wait may answer that the phase is not over
(PTX ISA 9.7.13.15.16), and a load may find the value from before the release (8.9). Who asks once
and goes on has not waited: the same order is legal with the other answer, so the look acquires
nothing.

The same is so of who asks N times and then goes on: the answer decides how often it asks, and no
more. Whatever the looks answer, control comes to the same place, with nothing there that depends on
them (endless_looks.py says where control goes). A look that is asked until it passes is a wait.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from b200.checker.endless_looks import may_end
from b200.checker.saturating_counts import comes_to_rest
from b200.effects import Loads, Sleeps, WaitsForPhase
from b200.program.analysis import EXIT, Block, Op, post_dominators, reachable


def region(blocks: list[Block], meets: list[int], block: Block) -> set[int]:
    """The blocks whose execution a block's branch decides over: up to where its ways meet."""
    stop = meets[block.index]
    return set().union(*(reachable(blocks, first, stop) for first in block.successors))


def is_look(op: Op) -> bool:
    """Whether it asks for what others do: a test_wait or try_wait, or a strong load."""
    effect = op.ins.effect
    return isinstance(effect, WaitsForPhase) or isinstance(effect, Loads) and effect.strong


@dataclass(eq=False)
class Reach:
    """What the result of an instruction decides. branches: blocks that end with a branch on it.
    inside: the blocks that these decide over. looks: keys of the looks there, without its own.
    """

    op: Op
    branches: set[int] = field(default_factory=set[int])
    inside: set[int] = field(default_factory=set[int])
    looks: set[int] = field(default_factory=set[int])


class Dependents:
    """The instructions of a kernel by what they depend on. home: key of an instruction -> its
    block. meets: for each block, where the ways from it meet.
    """

    def __init__(self, blocks: list[Block]):
        self.blocks = blocks
        self.readers: dict[str, list[Op]] = defaultdict(list)
        self.home: dict[int, int] = {}  # instruction -> block
        for block in blocks:
            for op in block.ops:
                self.home[op.ins.key] = block.index
                for register in op.srcs:
                    self.readers[register.name].append(op)
        self.meets: list[int] = []

    def reach(self, source: Op) -> Reach | None:
        """What an instruction decides; None if more than computing, looking, sleeping is."""
        found = Reach(source)
        work = [register.name for register in source.dsts]
        seen = set(work)
        while work:
            for op in self.readers.get(work.pop(), ()):
                if op is source:
                    continue  # guarded, it keeps what it found before
                written = self._decided(op, found)
                if written is None:
                    return None
                new = written - seen
                seen |= new
                work += new
        return found

    def goes_round(self, found: Reach) -> bool:
        """Whether a loop lies in what is decided: the result may tell how often, or for ever."""
        left, size = set(found.inside), -1
        while size != (size := len(left)):
            left = {i for i in left if left & set(self.blocks[i].successors)}
        return bool(left)

    def _decided(self, op: Op, found: Reach) -> set[str] | None:
        """The registers that depend on one that an instruction reads. None: more than these do."""
        if op.entry is not None:
            harmless = op.entry.style == "pure" or isinstance(op.ins.effect, Sleeps)
            return _names(op) if harmless else None
        block = self.blocks[self.home[op.ins.key]]
        if op.ins.mods[0] != "bra" or len(block.successors) != 2:
            return None if op.ins.mods[0] != "bra" else set()
        if not self.meets:
            self.meets = post_dominators(self.blocks)
        if block.index in found.branches:
            return set()
        found.branches.add(block.index)
        if self.meets[block.index] == EXIT:
            return None
        return self._inside(region(self.blocks, self.meets, block) - found.inside, found)

    def _inside(self, new: set[int], found: Reach) -> set[str] | None:
        found.inside |= new
        written: set[str] = set()
        for index in new:
            for op in self.blocks[index].ops:
                jumps = op.entry is None and op.ins.mods[0] == "bra"
                pure = op.entry is not None and op.entry.style == "pure"
                if not (pure or jumps or is_look(op) or isinstance(op.ins.effect, Sleeps)):
                    return None
                if is_look(op) and op is not found.op:
                    found.looks.add(op.ins.key)
                written |= _names(op)
        return written


def _names(op: Op) -> set[str]:
    return {register.name for register in op.dsts}


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
    if not behind or not may_end(kernel.blocks, start, found.op, behind):
        return False
    return not comes_to_rest(kernel.blocks, start, found.op)
