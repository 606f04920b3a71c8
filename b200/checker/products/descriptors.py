"""Rules of matrix descriptors: no bits of a CTA's rank, and the version of tcgen05.

A shared address is rank << 24 | offset, and a descriptor holds its low 18 bits, in units of 16
bytes. If the kernel does not mask the address, the rank lands in bits 20 to 27, which are part of
the leading byte offset (PTX ISA 9.7.16.4). One descriptor alone shows this only if the hardware
ignores the field. Otherwise the checker compares two CTAs at the same instruction: their fields
differ as their ranks do. In CTA rank 0 there is nothing to see.

PTX ISA table 40 has the version (bits 46 to 48) 0b001. Compilers have left it 0, as in the
descriptors of wgmma, and their kernels ran on B200s (docs/reference/semantics.md). So it is told
once in a launch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from b200.checker import words
from b200.checker.accesses import Record
from b200.checker.finding import ERROR, PORTABILITY
from b200.chip.tensor.descriptors import VERSION, MatrixDescriptor
from b200.program.module import Instr

if TYPE_CHECKING:
    from b200.checker.observer import Observer


RANK_AT = 4  # bit of the leading byte offset where a rank begins: 24 - 4 - 16


def _add(fields: dict[int, int | None], rank: int, field: int | None) -> bool:
    """Note the field of a rank. Returns whether the rank has had this field only."""
    if fields.setdefault(rank, field) == field:
        return True
    fields[rank] = None
    return False


class DescriptorRanks:
    """The rule for one launch. fields: (instruction, operand) -> CTA rank -> the leading byte
    offset, in units of 16 bytes; None if the rank has several.
    """

    def __init__(self, observer: Observer):
        self.observer = observer
        self.fields: dict[tuple, dict[int, int | None]] = {}

    def see(self, record: Record, name: str, matrix: MatrixDescriptor, k_major: bool) -> None:
        """Check the descriptor of an operand in shared memory that an instruction reads."""
        cta = record.agent.cta
        if len(cta.cluster.ctas) == 1:
            return
        field, rank = matrix.lbo >> 4, cta.rank
        key = record.ins.key, name
        _add(record.agent.state.ranks.setdefault(key, {}), rank, field)
        fields = self.fields.setdefault(key, {})
        if not _add(fields, rank, field):
            return
        ignored = k_major and matrix.mode != 0
        alone = ignored and rank and field >> RANK_AT == rank and field & (1 << RANK_AT) - 1 <= 1
        if alone or any(self._differ(field, rank, f, r) for r, f in fields.items()):
            self._tell(record, name, field, ignored)

    def tell_left(self, left: dict[tuple, dict[int, int | None]]) -> None:
        """Take over the fields of a cluster in which nothing was found."""
        for key, ranks in left.items():
            for rank, field in ranks.items():
                _add(self.fields.setdefault(key, {}), rank, field)

    @staticmethod
    def _differ(field: int, rank: int, other: int | None, of: int) -> bool:
        """Whether the fields of two CTAs differ as their ranks do."""
        return of != rank and other is not None and field - other == rank - of << RANK_AT

    def _tell(self, record: Record, name: str, field: int, ignored: bool) -> None:
        use = (
            "PTX has no use for this field with a swizzle and K-major rows, and today's chips "
            "ignore it"
            if ignored
            else "the leading byte offset is wrong by 256 bytes a rank"
        )
        self.observer.found(
            "descriptor",
            f"the matrix descriptor of {name} has the CTA's rank in its leading byte offset",
            f"this access: {words.act(record)}",
            f"bits 16 to 29 are {field:#x} in CTA rank {record.agent.cta.rank}",
            use,
            "missing: the low 18 bits of the shared address (address & 0x3FFFF) before it is "
            "shifted into the descriptor",
            at=record.ins,
            severity=PORTABILITY if ignored else ERROR,
        )


class DescriptorVersions:
    """The rule for one launch. others: (instruction, operand) with a version that is not 1."""

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
            f"this access: {words.line(ins)}; {places} of this launch read such descriptors",
            "missing: 1 in bits 46 to 48 of the descriptor",
            at=ins,
            severity=PORTABILITY,
        )
