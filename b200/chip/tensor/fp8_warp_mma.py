"""mma.sync of e4m3 and e5m2 as sm_100 computes it: not one fused sum, but two and an addition.

The chip has no FP8 instruction for a warp. ptxas 13.0 unpacks the bytes to f16 (F2FP.UNPACK_B), and
takes the f16 product (HMMA) of the bytes 0 and 1 of each register, over zero, then that of bytes 2
and 3 on top of it. C is added last, rounded to nearest (FADD, or HADD2 where D is f16). The same
steps give the words of a B200 (tests/data/b200_mma_words.txt).
"""

from __future__ import annotations

import numpy as np

from b200.chip.alu.rounding import FLOATS, encode
from b200.chip.tensor.tensor_core import LEAST, Operand, multiply

REGISTER = 4  # elements of K in a register
HALVES = ((0, 1), (2, 3))  # elements of each register that one HMMA takes


def multiply_fp8(a: np.ndarray, b: np.ndarray, cells: np.ndarray, d_type: str) -> np.ndarray:
    """Cells, uint32 [16, 8], of A * B + C.

    a [16, K], b [8, K]: float64 values. cells: C, uint32 [16, 8]. d_type: "f32" or "f16" (low half
    of a cell), of C and D.
    """
    product: np.ndarray | None = None
    for half in HALVES:
        columns = np.isin(np.arange(a.shape[1]) % REGISTER, half)
        first, second = Operand(a[:, columns], LEAST["f16"]), Operand(b[:, columns], LEAST["f16"])
        product = multiply(first, second, product, d_type).copy()
    assert product is not None
    form = FLOATS[d_type]
    p, c = (form.decode(x.reshape(-1).astype(form.bits_dtype)) for x in (product, cells))
    with np.errstate(invalid="ignore", over="ignore"):
        total = encode(p + c, form)  # rounded once: 53 bits are more than twice 24 and 2
    return total.astype(np.uint32).reshape(cells.shape)
