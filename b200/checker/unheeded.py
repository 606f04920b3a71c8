"""Looks whose answer decides nothing: at an mbarrier, or at a flag by a strong load.

A test_wait or try_wait may answer that the phase is not over (PTX ISA 9.7.13.15.16), and a load may
find the value from before the release (8.9). Who asks once and goes on has not waited. If nothing
depends on the answer, the same order is legal with the other one, so the look acquires nothing.

The same is so of who asks N times and then goes on: the answer decides how often it asks, and no
more. Whatever the looks answer, control comes to the same place, with nothing there that depends on
them (endless_looks.py says where control goes). A look that is asked until it passes is a wait.
"""

from __future__ import annotations

from collections import defaultdict

from b200.checker.endless_looks import may_end
from b200.effects import Loads, Sleeps, WaitsForPhase
from b200.program.analysis import EXIT, Block, Op, post_dominators


def unheeded(blocks: list[Block]) -> frozenset[int]:
    """Key of each test_wait, try_wait and strong load whose answer decides nothing. A name counts
    as one register wherever it is written, so fewer are found where a name is used twice.
    """
    looks = [op for block in blocks for op in block.ops if is_look(op)]
    if not looks:
        return frozenset()
    kernel = _Kernel(blocks)
    reach = {op.ins.key: found for op in looks if (found := kernel.reach(op)) is not None}
    size = -1
    while size != (size := len(reach)):  # who leads to a wait has waited
        reach = {n: found for n, found in reach.items() if found.looks <= reach.keys()}
    return frozenset(n for n, found in reach.items() if not found.inside or kernel.goes_on(found))


def is_look(op: Op) -> bool:
    effect = op.ins.effect
    return isinstance(effect, WaitsForPhase) or isinstance(effect, Loads) and effect.strong


class _Reach:
    """What the answer of a look decides. branches: blocks that end with a branch on it. inside: the
    blocks that these decide over. looks: keys of the other looks there.
    """

    def __init__(self, look: Op):
        self.look = look
        self.branches: set[int] = set()
        self.inside: set[int] = set()
        self.looks: set[int] = set()


class _Kernel:
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

    def reach(self, look: Op) -> _Reach | None:
        """What a look decides; None if an instruction that does more than compute, look and sleep
        depends on it.
        """
        found = _Reach(look)
        work = [register.name for register in look.dsts]
        seen = set(work)
        while work:
            for op in self.readers.get(work.pop(), ()):
                if op is look:
                    continue  # guarded, it keeps what it found before
                written = self._decided(op, found)
                if written is None:
                    return None
                new = written - seen
                seen |= new
                work += new
        return found

    def _decided(self, op: Op, found: _Reach) -> set[str] | None:
        """The registers that depend on one that an instruction reads. None: more than these do."""
        if op.entry is not None:
            return _names(op) if op.entry.style == "pure" else None
        block = self.blocks[self.home[op.ins.key]]
        if op.ins.mods[0] != "bra" or len(block.successors) != 2:
            return None if op.ins.mods[0] != "bra" else set()
        if not self.meets:
            self.meets = post_dominators(self.blocks)
        if block.index in found.branches:
            return set()
        found.branches.add(block.index)
        region = self._region(block)
        return None if region is None else self._inside(region - found.inside, found)

    def _region(self, block: Block) -> set[int] | None:
        """The blocks that a branch decides over; None if its ways do not meet."""
        stop, found = self.meets[block.index], set()
        work = list(block.successors)
        while work:
            index = work.pop()
            if index == EXIT:
                return None
            if index != stop and index not in found:
                found.add(index)
                work += self.blocks[index].successors
        return None if stop == EXIT else found

    def _inside(self, new: set[int], found: _Reach) -> set[str] | None:
        found.inside |= new
        written: set[str] = set()
        for index in new:
            for op in self.blocks[index].ops:
                jumps = op.entry is None and op.ins.mods[0] == "bra"
                pure = op.entry is not None and op.entry.style == "pure"
                if not (pure or jumps or is_look(op) or isinstance(op.ins.effect, Sleeps)):
                    return None
                if is_look(op) and op is not found.look:
                    found.looks.add(op.ins.key)
                written |= _names(op)
        return written

    def goes_on(self, found: _Reach) -> bool:
        """Whether control comes to where the ways meet, whatever the look answers."""
        behind = {self.meets[index] for index in found.branches} - found.inside - found.branches
        start = self.blocks[self.home[found.look.ins.key]]
        return may_end(self.blocks, start, found.look, found.inside | found.branches, behind)


def _names(op: Op) -> set[str]:
    return {register.name for register in op.dsts}
