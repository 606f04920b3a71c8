"""Control flow and uniformity of a kernel: the analyses that the translator needs.

* Basic blocks. They are cut at labels, after branches, and before an instruction that may block,
  because it is executed again on wake-up.
* Where a diverged warp reconverges (flow.py).
* Which registers are uniform, with the same value in all active lanes: they become Python ints, the
  others numpy arrays of 32. A register varies if an instruction makes it so, or if lanes that went
  different ways at a divergent branch can see different definitions of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import compress
from typing import Any

from b200.program.flow import EXIT, post_dominators, reachable, where_arms_join
from b200.program.module import Addr, Imm, Instr, Kernel, Label, Not, Operand, Reg, Special, Vec
from b200.registry import Entry, Pure, find

VARYING_SPECIALS = ("tid", "laneid", *(f"lanemask_{sign}" for sign in "eq le lt ge gt".split()))
OF_A_CTA = ("ctaid", "clusterid")
CONSTANT = ("const", "param", "param::entry")  # state spaces that nobody writes


@dataclass
class Op:
    """An instruction with its registry entry, what the entry's factory made, and its registers.
    waits: whether lanes may come to it in parts and wait for each other (meeting.py).
    """

    ins: Instr
    entry: Entry | None  # None: branch
    made: Any  # Pure, or a run function
    dsts: tuple[Reg, ...]
    srcs: tuple[Reg, ...]
    waits: bool = False

    @property
    def results(self) -> int:
        """How many leading operands are destinations."""
        return _results(self.ins, self.entry)

    @property
    def arguments(self) -> tuple[Any, ...]:
        return self.ins.operands[self.results :]


@dataclass
class Block:
    index: int
    ops: list[Op] = field(default_factory=list[Op])
    successors: list[int] = field(default_factory=list[int])
    targets: dict[str, int] = field(default_factory=dict[str, int])

    @property
    def traps(self) -> bool:
        """Whether it ends with a trap, with which the launch ends."""
        return self.ops[-1].ins.mods[0] == "trap"

    @property
    def only_leaves(self) -> bool:
        """Whether it does nothing but leave the kernel: lanes that come there are gone."""
        first = self.ops[0].ins
        return first.mods[0] in ("ret", "exit", "trap") and first.pred is None


def registers_of(operand: Operand) -> list[Reg]:
    """All registers in an operand."""
    if isinstance(operand, Reg):
        return [operand]
    if isinstance(operand, Not):
        return [operand.reg]
    if isinstance(operand, Vec):
        return [r for item in operand.items for r in registers_of(item)]
    if isinstance(operand, Addr):
        return registers_of(operand.base) + [r for c in operand.coords for r in registers_of(c)]
    return []


def _results(ins: Instr, entry: Entry | None) -> int:
    if entry is None:
        return 0
    return min(entry.out, 1) if ins.dual else entry.out


def make_op(ins: Instr) -> Op:
    """Look an instruction up and let its unit decode it."""
    entry = find(ins.opcode)
    made, n = entry.factory(ins) if entry is not None else None, _results(ins, entry)
    dsts = [r for o in ins.operands[:n] for r in registers_of(o)]
    srcs = [r for o in ins.operands[n:] for r in registers_of(o)]
    if ins.pred is not None:
        srcs += [ins.pred, *dsts]  # a guarded definition keeps the old value in the other lanes
    return Op(ins, entry, made, tuple(dsts), tuple(srcs))


def build_blocks(
    kernel: Kernel,
    located: Callable[[Instr], AbstractContextManager[None]],
    body: list[Instr | Label] | None = None,
    wait: frozenset[int] = frozenset(),
    alone: frozenset[int] = frozenset(),
) -> list[Block]:
    """Cut the body into basic blocks. located(ins): a context that adds the line to errors. body:
    None for the kernel's own. wait, alone: as in meeting.Places.
    """
    blocks = [Block(0)]
    labels: dict[str, int] = {}
    fresh = True

    def cut() -> None:
        nonlocal fresh
        if blocks[-1].ops:
            blocks.append(Block(len(blocks)))
        fresh = True

    for item in kernel.body if body is None else body:
        if isinstance(item, Label):
            cut()
            labels[item.name] = len(blocks) - 1
            continue
        with located(item):
            op = make_op(item)
        op.waits = item.key in wait
        if op.entry is not None and (op.entry.may_block or op.waits):
            cut()
        blocks[-1].ops.append(op)
        if op.entry is None or item.key in alone:
            cut()
    if not blocks[-1].ops:  # a label at the end, or nothing: falls off the kernel
        blocks[-1].ops.append(make_op(Instr("ret", ())))
    for block in blocks:
        last = block.ops[-1].ins
        after = block.index + 1 if block.index + 1 < len(blocks) else EXIT
        if block.ops[-1].entry is not None:
            block.successors = [after]
        elif last.mods[0] == "bra":
            target = labels[last.operands[0].name]
            block.targets = {last.operands[0].name: target}
            ways = (target,) if last.pred is None else (target, after)
            block.successors = list(dict.fromkeys(ways))
        elif last.mods[0] == "brx":
            names = kernel.branch_targets[last.operands[1].name]
            block.targets = {name: labels[name] for name in names}
            block.successors = list(dict.fromkeys(block.targets.values()))
        else:
            block.successors = [EXIT] if last.pred is None else [EXIT, after]
    return blocks


class Uniformity:
    """Which registers vary between lanes, which ones keep the values of inactive lanes, and which
    are live in each block.

    ctas: how many CTAs the code is for. In a warp of several (chip/abreast) what a CTA has of its
    own varies, too: its index, its shared memory, what its lanes tell one another.
    """

    def __init__(self, kernel: Kernel, blocks: list[Block], block_dim_1d: bool, ctas: int = 1):
        self.blocks, self.block_dim_1d, self.ctas = blocks, block_dim_1d, ctas
        self.has_local = any(v.space == "local" for v in kernel.variables.values())
        # where lanes that part at the end of each block meet again
        self.ipdom = [self._unless_it_leaves(b) for b in post_dominators(blocks)]
        self.id = {name: i for i, name in enumerate(kernel.registers)}
        self._sources: dict[int, tuple[bool, int]] = {}  # key of an instruction -> its sources
        self.defs = [0] * len(blocks)
        self.multiple = 0
        self._find_defs()
        self.live_in, self.live_out = self._liveness()
        self.varying = 0
        self.merged = self.multiple
        self.divergent: set[int] = set()
        self._solve()

    def _unless_it_leaves(self, block: int) -> int:
        """A block where lanes meet, EXIT if it only leaves."""
        return EXIT if block == EXIT or self.blocks[block].only_leaves else block

    def is_varying(self, reg: Reg) -> bool:
        return bool(self.varying >> self.id[reg.name] & 1)

    def needs_merge(self, reg: Reg) -> bool:
        return bool(self.merged >> self.id[reg.name] & 1)

    def named(self, bits: int) -> Iterator[str]:
        """The names of the registers whose bits are set."""
        count = len(self.id)
        digits = f"{bits & (1 << count) - 1:0{count}b}"[::-1]
        return compress(self.id, map("1".__eq__, digits))

    def _find_defs(self) -> None:
        seen = 0
        for b in self.blocks:
            for op in b.ops:
                for r in op.dsts:
                    bit = 1 << self.id[r.name]
                    self.multiple |= seen & bit
                    seen |= bit
                    self.defs[b.index] |= bit

    def _liveness(self):
        uses: list[int] = []
        kills: list[int] = []
        for b in self.blocks:
            use = kill = 0
            for op in b.ops:
                for r in op.srcs:
                    use |= 1 << self.id[r.name] & ~kill
                if op.ins.pred is None:
                    for r in op.dsts:
                        kill |= 1 << self.id[r.name]
            uses.append(use)
            kills.append(kill)
        live_in, live_out = [0] * len(self.blocks), [0] * len(self.blocks)
        changed = True
        while changed:
            changed = False
            for b in reversed(self.blocks):
                out = 0
                for s in b.successors:
                    if s != EXIT:
                        out |= live_in[s]
                new = uses[b.index] | out & ~kills[b.index]
                if new != live_in[b.index] or out != live_out[b.index]:
                    live_in[b.index], live_out[b.index], changed = new, out, True
        return live_in, live_out

    def _solve(self) -> None:
        """Fixed point of value dependence and divergent control flow."""
        while True:
            before = self.varying, len(self.divergent)
            for b in self.blocks:
                for op in b.ops:
                    if op.dsts and self.result_varies(op):
                        for r in op.dsts:
                            if not self._dst_uniform_anyway(op, r):
                                self.varying |= 1 << self.id[r.name]
                            if op.waits and self.members_vary(op):  # its groups come one by one
                                self.merged |= 1 << self.id[r.name]
                branches = b.ops[-1].entry is None and b.index not in self.divergent
                if branches and any(map(self.is_varying, b.ops[-1].srcs)):
                    self.divergent.add(b.index)
                    if self.ipdom[b.index] == EXIT:
                        found = where_arms_join(self.blocks, b)
                        self.ipdom[b.index] = self._unless_it_leaves(found)
                    self._mark_divergent_region(b)
            if (self.varying, len(self.divergent)) == before:
                return

    def args_uniform(self, op: Op) -> bool:
        """Whether all sources are uniform; the guard and kept destinations are not looked at."""
        special, registers = self._sources.get(op.ins.key) or self._sources_of(op)
        return not special and not self.varying & registers

    def _sources_of(self, op: Op) -> tuple[bool, int]:
        """Whether a special register that varies is among the sources, and their registers as bits.
        Asked once: `_solve` comes to an instruction again and again.
        """
        special, registers = False, 0
        for operand in op.arguments:
            special |= self._has_varying_special(operand)
            for reg in registers_of(operand):
                registers |= 1 << self.id[reg.name]
        self._sources[op.ins.key] = special, registers
        return special, registers

    def _has_varying_special(self, operand: Operand) -> bool:
        if isinstance(operand, Special):
            name = operand.name.split(".")[0]
            return name in VARYING_SPECIALS or self.ctas > 1 and name in OF_A_CTA
        return isinstance(operand, Vec) and any(map(self._has_varying_special, operand.items))

    def operand_varies(self, operand: Operand) -> bool:
        if isinstance(operand, Reg):
            return self.is_varying(operand)
        varies = any(map(self.is_varying, registers_of(operand)))
        return varies or self._has_varying_special(operand)

    def result_varies(self, op: Op) -> bool:
        if op.ins.pred is not None and self.is_varying(op.ins.pred):
            return True
        if self.is_broadcast(op.ins) or self.is_warp_index(op):
            return False
        assert op.entry is not None
        if self.ctas > 1 and op.entry.style != "pure" and not _of_the_grid(op.ins):
            return True
        if op.entry.uniform == "always":
            return False
        if op.entry.uniform == "group":
            return self.members_vary(op)
        if op.ins.mods[0] in ("ld", "ldu") and self.may_be_local(op.ins):
            return True
        if op.entry.uniform == "never":
            return True
        if isinstance(op.made, Pure) and op.made.scalar is None and op.made.expr is None:
            return True
        return not self.args_uniform(op)

    def is_broadcast(self, ins: Instr) -> bool:
        """Whether an instruction gives all lanes the value of one fixed lane."""
        return self.ctas == 1 and is_broadcast(ins)

    def is_warp_index(self, op: Op) -> bool:
        """`shr %r, tid.x, n >= 5` in a one-dimensional block is the same in all lanes of a warp."""
        ins = op.ins
        if ins.mods[0] != "shr" or not self.block_dim_1d or not isinstance(ins.operands[1], Reg):
            return False
        _, source, amount = ins.operands
        return isinstance(amount, Imm) and amount.value >= 5 and source.name in self._tid_regs

    def may_be_local(self, ins: Instr) -> bool:
        """Whether a load may read local memory, where each lane has its own cell at an address."""
        others = ("global", "shared", "shared::cta", "shared::cluster", *CONSTANT)
        return ins.has("local") or (self.has_local and not ins.has(*others))

    @cached_property
    def _tid_regs(self) -> set[str]:
        """Registers that never hold anything but tid.x."""
        counts: dict[str, list[bool]] = {}
        for b in self.blocks:
            for op in b.ops:
                is_tid = op.ins.mods[0] == "mov" and op.ins.operands[1:] == (Special("tid.x"),)
                for r in op.dsts:
                    counts.setdefault(r.name, []).append(is_tid and op.ins.pred is None)
        return {name for name, flags in counts.items() if all(flags)}

    def _dst_uniform_anyway(self, op: Op, reg: Reg) -> bool:
        """elect.sync's leader lane is the same for all lanes, only its predicate differs."""
        elects = op.ins.mods[:2] == ("elect", "sync") and not self.members_vary(op)
        return elects and self.ctas == 1 and reg.type != "pred" and op.ins.pred is None

    def members_vary(self, op: Op) -> bool:
        """Whether lanes may give different membermasks to an instruction, its last operand."""
        return self.operand_varies(op.ins.operands[-1])

    def _mark_divergent_region(self, block: Block) -> None:
        """Lanes part at the end of `block` and meet at its post-dominator. A register that one arm
        defines and that the other arm or the meeting point reads must be kept per lane."""
        stop = self.ipdom[block.index]
        arms = [reachable(self.blocks, s, stop) for s in block.successors]
        after = self.live_in[stop] if stop != EXIT else 0
        for i, arm in enumerate(arms):
            defined, read = 0, after
            for b in arm:
                defined |= self.defs[b]
            for b in (b for j, other in enumerate(arms) if j != i for b in other):
                read |= self.live_in[b] | self.defs[b]
            self.varying |= defined & read
            self.merged |= defined & read


def _of_the_grid(ins: Instr) -> bool:
    """Whether an instruction loads from memory that all CTAs share."""
    return ins.mods[0] in ("ld", "ldu") and ins.has("global", *CONSTANT)


def is_broadcast(ins: Instr) -> bool:
    """Whether an instruction is a shuffle that gives every lane the value of one fixed lane."""
    plain = not ins.dual and ins.pred is None and len(ins.operands) == 5
    if not plain or ins.mods[:3] != ("shfl", "sync", "idx"):
        return False
    lane, clamp, members = ins.operands[2:]
    return isinstance(lane, Imm) and clamp == Imm(31) and members in (Imm(-1), Imm(0xFFFFFFFF))
