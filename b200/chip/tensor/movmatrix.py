"""movmatrix: a transposed matrix of 16-bit elements in a warp's registers (PTX 9.7.14.5.17)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from b200.chip.memory.matrix import PLAIN, ROW_BYTES, TRANSPOSED
from b200.chip.tensor.tmem_alloc import whole_warp
from b200.effects import Transposes
from b200.program.module import Instr
from b200.registry import LaneValues, Run, lanes, warp

if TYPE_CHECKING:
    from b200.chip.fragment import Fragment

_SOURCES = TRANSPOSED.sources(1)  # of the bytes of the rows, in the registers
_PLACES = PLAIN.row * ROW_BYTES + PLAIN.byte


@warp("movmatrix", states=Transposes(pipe="shuffle"), out=1)
def movmatrix(ins: Instr) -> Run:
    """movmatrix.sync.aligned.m8n8.trans.b16 d, a"""

    def run(warp: Fragment, mask: int, a: LaneValues):
        whole_warp(mask, ins.opcode)
        rows = lanes(a, np.uint32).view(np.uint8).take(_SOURCES)
        return np.ascontiguousarray(rows[_PLACES]).view(np.uint32)[:, 0]

    return run
