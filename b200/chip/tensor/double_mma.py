"""mma.sync.m8n8k4 of f64 (PTX ISA 9.7.14.5.1): a fused multiply-add for each k, k = 0 first.

Each is rounded to nearest, as PTX has it. The order is documented nowhere: another one could change
the last bits of a sum.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from b200.chip.alu.exact64 import directed64
from b200.chip.tensor.tmem_alloc import whole_warp
from b200.errors import Unsupported
from b200.program.module import Instr, Vec
from b200.registry import Run, lanes

if TYPE_CHECKING:
    from b200.chip.fragment import Fragment

_ROW, _PART = np.arange(32) // 4, np.arange(32) % 4
_fma = directed64("fma", "rn")


def double_mma(ins: Instr) -> Run:
    """mma.sync.aligned.m8n8k4.row.col{.rn}.f64.f64.f64.f64 d, a, b, c"""
    given = [len(o.items) if isinstance(o, Vec) else 1 for o in ins.operands]
    if given != [2, 1, 1, 2]:
        raise Unsupported(f"{ins.opcode}: its operands have {given} registers, must be 2, 1, 1, 2")

    def run(warp: Fragment, mask: int, a, b, c):
        whole_warp(mask, ins.opcode)
        (a,), (b,) = (x if isinstance(x, tuple) else (x,) for x in (a, b))
        rows, columns = lanes(a, np.uint64).reshape(8, 4), lanes(b, np.uint64).reshape(8, 4)
        return tuple(
            _dot(rows[_ROW], columns[2 * _PART + i], lanes(c[i], np.uint64)) for i in range(2)
        )

    return run


def _dot(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """a, b: uint64 patterns [32 lanes, 4]."""
    for k in range(4):
        c = _fma(a[:, k].copy(), b[:, k].copy(), c)
    return c.view(np.uint64)
