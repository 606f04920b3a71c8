"""Rule: tile::scatter4 must not store two different rows to one place (PTX ISA 8.7)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from b200.checker import words
from b200.chip.copies import tma_box
from b200.chip.copies.tma import TensorBoxes
from b200.chip.operations import TmaStore

if TYPE_CHECKING:
    from b200.checker.agent import Agent
    from b200.checker.observer import Observer
    from b200.program.module import Instr


def look(observer: Observer, agent: Agent, store: TmaStore, ins: Instr) -> None:
    """Check a TMA store when it is issued."""
    access, boxes = store.access, [tuple(box) for box in store.access.boxes]
    if len(set(boxes)) == len(boxes):
        return
    t, smem = access.tensormap, agent.cta.smem
    rows = np.split(tma_box.get_shared(t, smem, store.offset, access.rows), len(boxes))
    first: dict[tuple, np.ndarray] = {}
    for box, row in zip(boxes, rows, strict=True):
        stored = _stored(access, box, row)
        if not np.array_equal(first.setdefault(box, stored), stored):
            observer.found(
                "global",
                "one tile::scatter4 stores different values to a row twice",
                (
                    f"this access: {words.line(ins)}, by {words.name(agent)}",
                    f"row {box[1]} of {observer.operand(t.address)}, at element {box[0]}; its rows "
                    f"are {', '.join(str(row) for _, row in boxes)}",
                    "missing: four different rows, or a row outside of the tensor for those that "
                    "are not to be stored",
                ),
                ins,
            )
            return


def _stored(access: TensorBoxes, box: tuple[int, ...], row: np.ndarray) -> np.ndarray:
    """The bytes of a row that come into the tensor."""
    found = [row[:0]]

    def keep(old: np.ndarray, new: np.ndarray) -> np.ndarray:
        found.append(new)
        return old

    tma_box.store(access.tensormap, access.region, list(box), row, keep)
    return found[-1]
