"""Matrix descriptors that hold bits of a CTA's rank, since its address was not masked.

A shared address is rank << 24 | offset; a descriptor holds its low 18 bits. Without the mask the
rank lands in bits 20 to 27, which are a part of the leading byte offset (PTX ISA 9.7.16.4). One
descriptor shows it by its bits only if the field has no use; else the same instruction of two CTAs
does: its fields differ by what their ranks do. In CTA rank 0 there is nothing to see.
"""

from __future__ import annotations

from b200.checker import naming as words
from b200.checker.accesses import Record
from b200.checker.finding import ERROR, PORTABILITY
from b200.chip.tensor.descriptors import MatrixDescriptor

RANK_AT = 4  # of the rank in the leading byte offset's field: 24 - 4 - 16


def _add(fields: dict[int, int | None], rank: int, field: int | None) -> bool:
    """Note a field of a rank; whether the rank has that one only."""
    if fields.setdefault(rank, field) == field:
        return True
    fields[rank] = None
    return False


class DescriptorRanks:
    """The rule for one launch. fields: (instruction, operand) -> CTA rank -> its leading byte
    offset, in units of 16 bytes; None if it has several.
    """

    def __init__(self, observer):
        self.observer = observer
        self.fields: dict[tuple, dict[int, int | None]] = {}

    def see(self, record: Record, name: str, matrix: MatrixDescriptor, k_major: bool) -> None:
        """An instruction reads an operand in shared memory."""
        cta = record.agent.cta
        if len(cta.cluster.ctas) == 1:
            return
        field, rank = matrix.lbo >> 4, cta.rank
        key = id(record.ins), name
        _add(self.observer.state(cta).ranks.setdefault(key, {}), rank, field)
        fields = self.fields.setdefault(key, {})
        if not _add(fields, rank, field):
            return
        ignored = k_major and matrix.mode != 0
        alone = ignored and rank and field >> RANK_AT == rank and field & (1 << RANK_AT) - 1 <= 1
        if alone or any(self._differ(field, rank, f, r) for r, f in fields.items()):
            self._tell(record, name, field, ignored)

    def tell_left(self, left: dict[tuple, dict[int, int | None]]) -> None:
        """Fields of a cluster, in which nothing was found."""
        for key, ranks in left.items():
            for rank, field in ranks.items():
                _add(self.fields.setdefault(key, {}), rank, field)

    @staticmethod
    def _differ(field: int, rank: int, other: int | None, of: int) -> bool:
        """Whether the fields of two CTAs differ as their ranks do."""
        return of != rank and other is not None and field - other == rank - of << RANK_AT

    def _tell(self, record: Record, name: str, field: int, ignored: bool):
        use = (
            "PTX has no use for this field with a swizzle and K-major rows, and today's chips "
            "ignore it"
            if ignored
            else "the leading byte offset is wrong by 256 bytes a rank"
        )
        self.observer.found(
            "descriptor",
            f"the matrix descriptor of {name} has the CTA's rank in its leading byte offset",
            (
                f"this access: {words.act(record)}",
                f"bits 16 to 29 are {field:#x} in CTA rank {record.agent.cta.rank}",
                use,
                "missing: the low 18 bits of the shared address (address & 0x3FFFF) before it is "
                "shifted into the descriptor",
            ),
            record.ins,
            severity=PORTABILITY if ignored else ERROR,
        )
