"""Rule: the version field of a matrix descriptor (bits 46 to 48) is 1 for tcgen05.

PTX ISA table 40 has 0b001 there. Compilers have left it 0, as in the descriptors of wgmma, and
their kernels ran on B200s (docs/reference/semantics.md). So it is told once in a launch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from b200.checker import words
from b200.checker.accesses import Record
from b200.checker.finding import PORTABILITY
from b200.chip.tensor.descriptors import VERSION, MatrixDescriptor
from b200.program.module import Instr

if TYPE_CHECKING:
    from b200.checker.observer import Observer


class DescriptorVersions:
    """The rule for one launch. others: the first read of a descriptor by each instruction
    and operand whose version is not 1.
    """

    def __init__(self, observer: Observer):
        self.observer = observer
        self.others: dict[tuple, Instr] = {}

    def see(self, record: Record, name: str, matrix: MatrixDescriptor) -> None:
        """Check the descriptor of an operand in shared memory that an instruction reads."""
        if matrix.version != VERSION:
            self.others.setdefault((record.ins.key, name), record.ins)

    def finish(self) -> None:
        """One finding for the launch, at the first instruction."""
        if not self.others:
            return
        (_, name), ins = next(iter(self.others.items()))
        count = len({key for key, _ in self.others})
        places = "an instruction" if count == 1 else f"{count} instructions"
        self.observer.found(
            "descriptor",
            f"the matrix descriptor of {name} has version 0, where PTX has 1 for tcgen05",
            (
                f"this access: {words.line(ins)}; {places} of this launch read such descriptors",
                "missing: 1 in bits 46 to 48 of the descriptor",
            ),
            ins,
            severity=PORTABILITY,
        )
