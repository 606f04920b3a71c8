"""Tells whether a kernel's control flow depends on values that another order may change.

Such values are the results of looks (test_wait or try_wait of an mbarrier), results of atomics,
strong reads of memory (volatile, relaxed, acquire), clocks, answers of cluster launch control, and
everything computed from them, in registers or through memory. They do no harm where they only
become data. They do harm where a branch, a guard or an operand of a synchronising instruction
depends on them: then one run does not show what another order does. A loop that polls memory does
harm, too: in another order it may never end.

A loop around one wait counts as the wait. A look that decides only whether the wait after it is
left out (consumer_try_wait and consumer_wait of CUTLASS's pipelines) is a step of its own, with
both outcomes (kinds.py: LOOK). Plain reads are as ordered as the checker found them: if it found a
race, they count as such values, too. So does a plain read of a word whose last writer another order
may change (words.py), or one that only another order executes: the checker has not seen that one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple, TypeAlias

from b200.checker.dependents import region
from b200.checker.endless_looks import ends_only_by
from b200.chip.describe import mnemonic, place
from b200.effects import Copies, Traps, Updates, WaitsForPhase
from b200.program.analysis import EXIT, Block, Op, post_dominators, registers_of
from b200.program.module import CLOCKS, Addr, Instr, Special

MOVING = (*CLOCKS, "smid")  # special registers with other values in another order
FAR_OR_NEAR = {"shared", "global"}  # memories that other warps may write, by addresses of lanes
OF_OTHERS = {*FAR_OR_NEAR, "tensor"}  # all memories that several warps see


class RunShown(NamedTuple):
    """What a run has shown. hits: executions of each block. racy: plain reads are not ordered.
    mixed, flows: as of words.py; flows is None where it is not known who reads what.
    """

    hits: tuple[int, ...]
    racy: bool = False
    mixed: Collection[int] = ()
    flows: Mapping[int, Collection[int]] | None = None


UNSEEN = RunShown(())


def unknown(blocks: list[Block], run: RunShown) -> list[str]:
    """The reasons why a run does not show what another order does, a line each."""
    return Control(blocks, run).reasons()


class LooksFor(NamedTuple):
    """What a kernel's looks are for, by id() of the instruction. waits: those that are repeated
    until the phase is over. peeks: for each wait that looks may leave out, the looks that decide
    that and nothing else.
    """

    waits: frozenset[int]
    peeks: dict[int, set[int]]


def looks(blocks: list[Block]) -> LooksFor:
    """What the looks of a kernel are for."""
    control = Control(blocks)
    found: dict[int, set[int]] = {}
    for index, wait in control.guards.items():
        found.setdefault(id(wait), set()).update(control.decide(index))
    return LooksFor(frozenset(control.waits()), found)


def deciding_reads(blocks: list[Block]) -> set[int]:
    """id() of the reads of memory whose values decide over synchronisation, by the code."""
    return _that_decide(blocks, _reads_of_others)


def memory_decides(blocks: list[Block]) -> bool:
    """Whether a value that a load or an atomic finds in memory decides over synchronisation, as far
    as the code tells: then every write of memory may decide, too.
    """
    return bool(_that_decide(blocks, _finds))


def _that_decide(blocks: list[Block], reads: Callable[[Instr], bool]) -> set[int]:
    found = {id(op.ins) for block in blocks for op in block.ops if reads(op.ins)}
    control = Control(blocks, RunShown((), mixed=found))
    harm = (control.harm(block, op) for block in control.blocks for op in block.ops)
    return found & NONE.union(*harm)


ANY = "any store"

# Instructions that a value depends on, and that another order may change, by id(). A number below 0
# is a branch, by its block: what is computed where its way has led is the same whenever it is
# computed, and depends on the branch from where its ways meet.
Causes: TypeAlias = frozenset[int]
NONE: Causes = frozenset()


class Control:
    """The flow of order-dependent values through one kernel, block by block to a fixed point.

    entry: for each block, the registers that hold such values where it begins. inside: for each
    block, the branches on such values that decide whether it is executed. memory: the causes of the
    values stored in each state space, of those of single stores by their id(), and of all of these.
    """

    def __init__(self, blocks: list[Block], run: RunShown = UNSEEN):
        # what follows a trap never happens
        self.blocks = [replace(b, successors=[]) if _traps(b) else b for b in blocks]
        self.run = run
        self.meets = post_dominators(self.blocks)
        self.regions = [region(self.blocks, self.meets, block) for block in self.blocks]
        self.endless = self._endless()
        self.instructions: dict[int, Instr] = {}
        self.entry: list[dict[str, Causes]] = [{} for _ in blocks]
        self.inside: list[Causes] = [NONE for _ in blocks]
        self.memory: dict[str | int, Causes] = {}
        self.decides: dict[int, Causes] = {}  # instruction -> causes that decide over it
        self._spread()
        # block -> the wait that its branch leaves out if an earlier look found the phase over
        self.guards: dict[int, Instr] = {}
        for block in self.blocks:
            if (wait := self._left_out(block)) is not None:
                self.guards[block.index] = wait

    def reasons(self) -> list[str]:
        found: dict[str, None] = {}
        for block in self.blocks:
            for op in block.ops if self.run.hits[block.index] else ():
                harm = self.harm(block, op)
                for cause in (ins for number, ins in self.instructions.items() if number in harm):
                    what = "goes on by" if op.entry is None else "synchronises by"
                    found[
                        f"{place(op.ins)}: {mnemonic(op.ins)} {what} a value that another order "
                        f"may change: of {mnemonic(cause)} at {place(cause)}"
                    ] = None
        return list(found)

    # --- spreading --------------------------------------------------------------------------------
    def _spread(self) -> None:
        before: tuple[int, ...] = ()
        while before != (before := self._size()):
            for block in self.blocks:
                known = dict(self.entry[block.index])
                inside = self.inside[block.index]
                left_out = bool(inside and self.run.hits) and not self.run.hits[block.index]
                for op in block.ops:
                    self._step(op, known, inside, left_out)
                for after in block.successors:
                    if after != EXIT:
                        into = self.entry[after]
                        for name, causes in known.items():
                            into[name] = into.get(name, NONE) | self._at(after, causes)
                if self._branches(block):
                    for index in self.regions[block.index]:
                        self.inside[index] |= {-1 - block.index}

    def _branches(self, block: Block) -> Causes:
        """The causes that decide where control goes after a block, of branches around it, too."""
        last = block.ops[-1]
        return self.decides.get(id(last.ins), NONE) if last.entry is None else NONE

    def _at(self, index: int | None, causes: Causes) -> Causes:
        """The causes of a value where it reaches a block (None: memory). A branch whose ways have
        met before that is replaced by the causes that decide over it.
        """
        work = list(causes)
        found: set[int] = set()
        seen: set[int] = set()
        while work:
            cause = work.pop()
            if cause >= 0 or index is not None and index in self.regions[-1 - cause]:
                found.add(cause)
            elif cause not in seen:
                seen.add(cause)
                work += self._branches(self.blocks[-1 - cause])
        return NONE | found

    def _size(self) -> tuple[int, ...]:
        """A measure that grows as long as anything new is found."""
        return (
            sum(len(causes) for known in self.entry for causes in known.values()),
            sum(map(len, self.inside)),
            sum(map(len, self.memory.values())),
            sum(map(len, self.decides.values())),
        )

    def _step(self, op: Op, known: dict[str, Causes], inside: Causes, left_out: bool) -> None:
        """left_out: whether another order executes it, and the run did not."""
        ins = op.ins
        causes = inside
        if self._source(ins, left_out):
            self.instructions[id(ins)] = ins
            causes |= {id(ins)}
        causes = causes.union(*(self.memory.get(s, NONE) for s in self._found(ins)))
        causes = causes.union(*(known.get(r.name, NONE) for r in op.srcs))
        deciding = [r.name for r in op.srcs] if op.entry is None else _deciding(op)
        self.decides[id(ins)] = NONE.union(*(known.get(name, NONE) for name in deciding))
        for register in op.dsts:
            if causes:
                known[register.name] = causes
            elif ins.pred is None:
                known.pop(register.name, None)
        if isinstance(ins.effect, Updates):  # what it leaves in memory: words.py
            causes -= {id(ins)}
        for where in self._left(ins, known) if causes else ():
            self.memory[where] = self.memory.get(where, NONE) | self._at(None, causes)

    def _found(self, ins: Instr) -> Iterator[str | int]:
        """Where an instruction may find what it reads: keys of `memory`."""
        flows, spaces = self.run.flows, ins.effect.properties.reads
        yield from spaces
        if flows is not None and _reads_of_others(ins):
            yield from flows.get(id(ins), ())
        elif FAR_OR_NEAR & set(spaces):
            yield ANY

    def _left(self, ins: Instr, known: dict[str, Causes]) -> Iterator[str | int]:
        """Where an instruction leaves what it writes. A store whose address, and size, is the same
        in every order is a place by itself.
        """
        asked = ins.effect.properties
        spaces = asked.writes
        where = (o for o in ins.operands if asked.sized or isinstance(o, Addr))
        moves = any(r.name in known for operand in where for r in registers_of(operand))
        if FAR_OR_NEAR & set(spaces) and not moves:
            yield id(ins)
            yield ANY
        else:
            yield from spaces

    def _source(self, ins: Instr, left_out: bool) -> bool:
        asked, unordered = ins.effect.properties, self.run.racy or left_out
        if unordered and asked.gives and OF_OTHERS & set(asked.reads):
            return True
        moving = (o for o in ins.operands if isinstance(o, Special) and o.name in MOVING)
        return asked.answers or id(ins) in self.run.mixed or any(moving)

    # --- deciding ---------------------------------------------------------------------------------
    def harm(self, block: Block, op: Op) -> Causes:
        """The order-dependent values that decide over an instruction's part in synchronisation."""
        causes = _instructions(self.decides[id(op.ins)])
        if op.entry is None:
            ways = len(set(block.successors))
            return causes if causes and ways > 1 and not self._harmless(block, causes) else NONE
        return causes if synchronises(op.ins) else NONE

    def _endless(self) -> set[int]:
        """The blocks from which no way leads to an end."""
        ending: set[int] = {b.index for b in self.blocks if EXIT in b.successors or _traps(b)}
        size = -1
        while size != (size := len(ending)):
            ending |= {b.index for b in self.blocks if ending & set(b.successors)}
        return {block.index for block in self.blocks} - ending

    def _harmless(self, block: Block, causes: Causes) -> bool:
        """Whether nothing synchronises on either way of a branch but the wait that it repeats."""
        region = self.regions[block.index]
        ends = any(EXIT in self.blocks[i].successors for i in (*region, block.index))
        if ends and self.meets[block.index] == EXIT or region & self.endless:
            return False
        if block.index in self.guards:
            return True
        inside = self._inside(region)
        looks = [ins for c in causes if _looks(ins := self.instructions[c])]
        if not inside:
            # a look that is not repeated goes on either way; a poll of memory may go on for ever
            polls = block.index in region or any(map(self._polls, region))
            return not looks and not polls
        return self._is_wait(block, causes, looks, inside)

    def _polls(self, index: int) -> bool:
        """Whether a block ends a loop that goes on by a value that another order may change."""
        return index in self.regions[index] and bool(self.decide(index))

    def _is_wait(
        self, block: Block, causes: Causes, looks: list[Instr], inside: list[Instr]
    ) -> bool:
        """Whether a branch repeats one look until the phase is over, and does nothing else."""
        repeated = len(causes) == len(looks) == 1 and all(ins is looks[0] for ins in inside)
        return repeated and self._repeats(block, looks[0])

    def waits(self) -> set[int]:
        """id() of the looks that are repeated until the phase is over."""
        found: set[int] = set()
        for block in self.blocks:
            causes = self.decide(block.index)
            looks = [ins for c in causes if _looks(ins := self.instructions[c])]
            inside = self._inside(self.regions[block.index])
            if inside and self._is_wait(block, causes, looks, inside):
                found.add(id(looks[0]))
        return found | {id(wait) for wait in self.guards.values()}

    def _inside(self, region: set[int]) -> list[Instr]:
        """The synchronising instructions in some blocks."""
        return [op.ins for i in region for op in self.blocks[i].ops if synchronises(op.ins)]

    def decide(self, index: int) -> Causes:
        """The instructions whose values decide where control goes after a block."""
        return _instructions(self._branches(self.blocks[index]))

    def _left_out(self, block: Block) -> Instr | None:
        """The wait that a block's branch leaves out because of an earlier look; None unless the
        branch does only that. Of the instructions that the branch decides over, only this wait
        synchronises, and it is repeated until it passes.
        """
        causes = self.decide(block.index)
        if not causes or self.meets[block.index] == EXIT:
            return None
        if not all(_looks(self.instructions[c]) for c in causes):
            return None
        region = self.regions[block.index]
        waits = {id(ins): ins for ins in self._inside(region)}
        if len(waits) != 1 or causes & waits.keys():
            return None
        (wait,) = waits.values()
        if not _looks(wait) or block.index in region:
            return None
        loops = [i for i in region if len(set(self.blocks[i].successors)) > 1]
        if len(loops) != 1 or self.decide(loops[0]) != frozenset((id(wait),)):
            return None
        return wait if self._repeats(self.blocks[loops[0]], wait) else None

    def _repeats(self, block: Block, look: Instr) -> bool:
        """Whether control leaves the wait only once it has passed: the wait's block leads to the
        branch alone, and no other way leads out (a number of tries, a clock).
        """
        home = next(b for b in self.blocks if any(op.ins is look for op in b.ops))
        if not ends_only_by(self.blocks, home, look, self.meets[block.index]):
            return False
        if home is block:
            return True
        at = home
        seen: set[int] = set()
        while at is not block:
            if len(at.successors) != 1 or at.index in seen or at.successors[0] == EXIT:
                return False
            seen.add(at.index)
            at = self.blocks[at.successors[0]]
        return True


def _instructions(causes: Causes) -> Causes:
    return NONE | {cause for cause in causes if cause >= 0}


def _looks(ins: Instr) -> bool:
    """Whether an instruction is a test_wait or try_wait."""
    return isinstance(ins.effect, WaitsForPhase)


def _traps(block: Block) -> bool:
    last = block.ops[-1].ins
    return isinstance(last.effect, Traps) and last.pred is None


def _reads_of_others(ins: Instr) -> bool:
    """Whether it reads what others may write, and that is known word by word (words.py)."""
    asked = ins.effect.properties
    loads = asked.lanes and not asked.writes or isinstance(ins.effect, Copies)
    return loads and bool(FAR_OR_NEAR & set(asked.reads))


def _finds(ins: Instr) -> bool:
    """Whether it gives a value that it finds in memory where others may write."""
    asked = ins.effect.properties
    return asked.lanes and asked.gives and bool(FAR_OR_NEAR & set(asked.reads))


def synchronises(ins: Instr) -> bool:
    """Whether others wait for an instruction, or it waits for others."""
    return ins.effect.properties.synchronises


def _deciding(op: Op) -> Iterator[str]:
    """Registers that decide whether, where and how much an instruction synchronises."""
    if op.ins.pred is not None:
        yield op.ins.pred.name
    asked = op.ins.effect.properties
    copies = isinstance(op.ins.effect, Copies) or asked.lanes
    for operand in op.ins.operands[len(op.dsts) and 1 :]:
        if not copies or asked.sized or isinstance(operand, Addr):
            for register in registers_of(operand):
                yield register.name
