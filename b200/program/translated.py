"""The result of translating a kernel: its block functions, and where their lines came from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

from b200.errors import Fault
from b200.program.analysis import Block, Op, Uniformity
from b200.program.flow import post_dominators, reachable
from b200.program.module import Instr, Kernel, Program, Special

_NUMBERS = ("tid", "warpid")  # special registers that differ between the warps of a CTA


# The register file of a warp: an int or an array of lanes each; Any, because the code that a writer
# makes for a kernel knows which.
Registers: TypeAlias = list[Any]


@dataclass(eq=False)
class Translated:
    """A kernel ready to run.

    blocks: the functions. counts: instructions in each block. lines: generated line -> instruction.
    initial: the register file at the start of a warp. static_smem: bytes of static shared memory.
    without_rule: instructions that the observer of the run has no rule for, with their block.
    groups: .cta_group -> the first tcgen05 instruction of it, where an observer asks.
    live: registers that are read from the beginning of each block on, as bits.
    info: what varies between the lanes.
    deciding: id() of the reads whose values decide over synchronisation, where that is asked for.
    """

    kernel: Kernel
    program: Program
    blocks: list[Callable[..., int]] = field(default_factory=list[Callable[..., int]])
    structure: list[Block] = field(default_factory=list[Block])
    lines: dict[int, Instr] = field(default_factory=dict[int, Instr])
    initial: Registers = field(default_factory=Registers)
    symbols: dict[str, int] = field(default_factory=dict[str, int])
    static_smem: int = 0
    local_bytes: int = 0
    source: str = ""
    without_rule: list[tuple[int, Instr]] = field(default_factory=list[tuple[int, Instr]])
    groups: dict[str, Instr] = field(default_factory=dict[str, Instr])
    deciding: frozenset[int] = frozenset()
    live: list[int] = field(default_factory=list[int])
    info: Uniformity | None = None

    @cached_property
    def common(self) -> set[int]:
        """Blocks that all warps of a CTA come to, whatever the numbers of their threads."""
        return _common_blocks(self.structure)

    @cached_property
    def special(self) -> set[str]:
        """Names of the special registers that the kernel reads."""
        operands = (o for block in self.structure for op in block.ops for o in op.ins.operands)
        return {operand.name for operand in operands if isinstance(operand, Special)}


def _common_blocks(blocks: list[Block]) -> set[int]:
    """Blocks that all warps of a CTA come to, as often as each other, if one does: those outside
    the arms of branches whose condition may differ between warps.
    """
    meets = post_dominators(blocks)
    differs: set[str] = set()  # registers
    apart: set[int] = set()
    before = -1
    while before < len(differs) + len(apart):
        before = len(differs) + len(apart)
        for block in blocks:
            for op in block.ops:
                if block.index in apart or _differs(op, differs):
                    differs.update(reg.name for reg in op.dsts)
            if len(block.successors) > 1 and _differs(block.ops[-1], differs):
                for arm in block.successors:
                    apart |= reachable(blocks, arm, meets[block.index])
    return {block.index for block in blocks} - apart


def _differs(op: Op, differs: set[str]) -> bool:
    """Whether what an instruction reads may differ between warps."""
    numbers = (o.name.partition(".")[0] for o in op.ins.operands if isinstance(o, Special))
    return any(reg.name in differs for reg in op.srcs) or any(n in _NUMBERS for n in numbers)


class located:
    """A context that adds an instruction's line to a fault. Each instruction has some, so it is no
    generator, which takes four times as long.
    """

    __slots__ = ("ins",)

    def __init__(self, ins: Instr):
        self.ins = ins

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, fault: BaseException | None, traceback: object) -> None:
        if isinstance(fault, Fault):
            where = f"{self.ins.loc}: " if self.ins.loc else ""
            raise type(fault)(f"{where}{fault} (PTX: {self.ins.text})") from None
