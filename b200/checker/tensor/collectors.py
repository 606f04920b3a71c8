"""Rule of collector buffers: `use` and `lastuse` need a fill that is still valid (9.7.16.10.9).

tcgen05.mma may take A, and tcgen05.mma.ws B, from a buffer beside the tensor core that an MMA
before has filled. The operand must be the same, and its bytes too: the MMA may read either the
buffer or memory. Public kernels have `lastuse` without any fill and run right on B200s, so that is
portability. A buffer that holds another operand is an error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from b200.checker import words
from b200.checker.accesses import Record
from b200.checker.finding import ERROR, PORTABILITY
from b200.checker.tensor.tensor_shadow import ALL
from b200.chip.state import CTA
from b200.chip.tensor.descriptors import CHUNK, PERIOD
from b200.chip.tensor.mma_operands import TMEM_COLUMNS_OF_A, SharedOperand, TensorOperand
from b200.chip.tensor.tmem import split
from b200.effects import Multiplies
from b200.hardware import TMEM_COLUMNS

if TYPE_CHECKING:
    from b200.checker.observer import Observer
    from b200.chip.tensor.mma import DecodedMma

MmaOperand = SharedOperand | TensorOperand


def multiplied(
    observer: Observer, record: Record, effect: Multiplies, mma: DecodedMma, members: tuple
) -> None:
    """An MMA uses a collector buffer: check what it takes, and note what the buffer holds then."""
    held = record.agent.state.collected
    key = (members[0].rank, effect.buffer)
    if effect.usage == "discard" and not held:
        return
    operand = mma.a if effect.buffer == "a" else mma.b
    filled = held.get(key)
    if effect.usage in ("use", "lastuse"):
        if filled is None:
            _found(observer, record, effect, None)
        elif not _same(operand, filled[0]) or _changed(observer, operand, members, filled[1]):
            _found(observer, record, effect, filled[1])
    if effect.usage == "fill":
        held[key] = operand, record
    elif effect.usage != "use":
        held.pop(key, None)


def _same(one: MmaOperand, other: MmaOperand) -> bool:
    """Whether two operands are the same place, read in the same way."""
    if isinstance(one, SharedOperand) and isinstance(other, SharedOperand):
        return (one.matrix, one.mn_major, one.fmt) == (other.matrix, other.mn_major, other.fmt)
    return one == other


def _changed(
    observer: Observer, operand: MmaOperand, members: tuple[CTA, ...], fill: Record
) -> bool:
    """Whether something has been written to an operand since the MMA that filled the buffer."""
    return any(_latest(observer, operand, cta) > fill.number for cta in members)


def _latest(observer: Observer, operand: MmaOperand, cta: CTA) -> int:
    """The number of the latest write to an operand."""
    if isinstance(operand, SharedOperand):
        shadow, start = observer.shared(cta).shadow, operand.matrix.start
        index = operand.tile.chunks + (start - start % PERIOD) // CHUNK
        return int(max(shadow.written[index].max(), shadow.words(shadow.stored, index).max()))
    column = split(operand.taddr)[1] % TMEM_COLUMNS
    columns = slice(column, column + TMEM_COLUMNS_OF_A)
    return observer.tensor(cta).shadow.latest(ALL, columns)


def _found(observer: Observer, record: Record, effect: Multiplies, fill: Record | None) -> None:
    name = "A" if effect.buffer == "a" else "B"
    buffer = f".collector::{effect.buffer}"
    if fill is not None:
        holds = f"from a collector buffer that holds another {name}"
    else:
        holds = f"from a collector buffer that no MMA before has filled with this {name}"
    observer.found(
        "product",
        f"{words.thing(record)} may take {name} {holds}",
        f"this access: {words.act(record)}, with {buffer}::{effect.usage}",
        f"filled by: {words.act(fill)}" if fill is not None else "filled by: nothing",
        f"missing: {buffer}::fill for an MMA before that reads this {name}, and no write to it "
        "in between",
        at=record.ins,
        other=fill.ins if fill is not None else None,
        severity=ERROR if fill is not None else PORTABILITY,
    )
