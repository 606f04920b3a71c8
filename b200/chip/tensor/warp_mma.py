"""Matrices in the registers of a warp: mma.sync and movmatrix (PTX ISA 9.7.14.5).

mma.sync, the matrix product, has the dense m16n8 shapes of f16, bf16, tf32, e4m3, e5m2 and 8-bit
integers. In bytes all types have the same layout: a register holds four neighbouring bytes of a row
of A or a column of B. An instruction is one fused sum, as one tcgen05.mma of the type
(tensor_core.py), but for e4m3 and e5m2 and for f64.

e4m3 and e5m2: not one fused sum, but two and an addition. The chip has no FP8 instruction for a
warp. ptxas 13.0 unpacks the bytes to f16 (F2FP.UNPACK_B), and takes the f16 product (HMMA) of the
bytes 0 and 1 of each register, over zero, then that of bytes 2 and 3 on top of it. C is added last,
rounded to nearest (FADD, or HADD2 where D is f16). The same steps give the words of a B200
(tests/data/b200_mma_words.txt).

f64 (PTX ISA 9.7.14.5.1): a fused multiply-add for each k, k = 0 first. Each is rounded to nearest,
as PTX has it. The order within four of them is documented nowhere: another one could change the
last bits of a sum. m16n8k4, k8 and k16 are chains of products of 8 x 8 x 4, the first four of K
first: ptxas 13.0 writes such a DMMA for each half of the rows and each four of K.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from b200 import formats
from b200.chip.alu.exact64 import directed64
from b200.chip.alu.rounding import FLOATS, encode
from b200.chip.memory.matrix import PLAIN, ROW_BYTES, TRANSPOSED
from b200.chip.tensor.tensor_core import LEAST, AlignedOperand, multiply, multiply_integers
from b200.chip.tensor.tmem_alloc import whole_warp
from b200.effects import MultipliesInWarp, Transposes
from b200.errors import Unsupported
from b200.program.module import Instr, Vec
from b200.registry import DTYPES, LaneValues, Run, lanes, warp

if TYPE_CHECKING:
    from b200.chip.fragment import Fragment


_LANE, _BYTE = np.arange(32)[:, None], np.arange(4)[None, :]
_ELEMENT_BYTES = {"f16": 2, "bf16": 2, "tf32": 4, "e4m3": 1, "e5m2": 1, "s8": 1, "u8": 1}
_INTEGERS = ("s8", "u8")
_FP8 = ("e4m3", "e5m2")
_REGISTER = 4  # elements of K of an FP8 type in a register
_HALVES = ((0, 1), (2, 3))  # elements of each register that one HMMA takes
_ROW, _PART = np.arange(32) // 4, np.arange(32) % 4  # of f64: a lane's row of A, its k
_fma = directed64("fma", "rn")


@dataclass(frozen=True)
class WarpMmaShape:
    """One shape and its types. row_bytes: bytes of a row of A, 16 or 32."""

    d: str
    a: str
    b: str
    row_bytes: int
    saturate: bool


Words = tuple[LaneValues, ...]  # registers of a vector operand


def _form(ins: Instr) -> WarpMmaShape:
    d, a, b, _ = ins.types
    row_bytes = int(ins.mods[3].removeprefix("m16n8k")) * _ELEMENT_BYTES[a]
    sums = 2 if d == "f16" else 4
    given = [len(o.items) if isinstance(o, Vec) else 1 for o in ins.operands]
    if given != (need := [sums, row_bytes // 8, row_bytes // 16, sums]):
        raise Unsupported(f"{ins.opcode}: its operands have {given} registers, must have {need}")
    return WarpMmaShape(d, a, b, row_bytes, ins.has("satfinite"))


def _words(operand: LaneValues | Words) -> Words:
    """The registers of an operand, which may be a single one."""
    return operand if isinstance(operand, tuple) else (operand,)


def _gather(registers: Words, rows_of_register: int, row_bytes: int) -> np.ndarray:
    """Registers of A (two rows of each 8 a register pair) or B (one) as bytes [rows, row_bytes]."""
    out = np.empty((8 * rows_of_register, row_bytes), np.uint8)
    for i, register in enumerate(registers):
        row = _LANE // 4 + 8 * (i % rows_of_register)
        byte = 4 * (_LANE % 4) + 16 * (i // rows_of_register) + _BYTE
        out[row, byte] = lanes(register, np.uint32)[:, None].view(np.uint8)
    return out


def _values(raw: np.ndarray, fmt: str) -> np.ndarray:
    """float64 elements of bytes [rows, row_bytes]."""
    if fmt in _INTEGERS:
        return raw.view(np.int8 if fmt == "s8" else np.uint8).astype(np.float64)
    unsigned = DTYPES[8 * _ELEMENT_BYTES[fmt]]
    return formats.decode(raw.view(unsigned), fmt)


def _accumulator(registers: Words, fmt: str) -> np.ndarray:
    """C as cells, uint32 [16, 8]."""
    cells = np.empty((16, 8), np.uint32)
    row, column = _LANE[:, 0] // 4, 2 * (_LANE[:, 0] % 4)
    for i, register in enumerate(registers):
        words = lanes(register, np.uint32)
        if fmt == "f16":
            cells[row + 8 * i, column] = words & np.uint32(0xFFFF)
            cells[row + 8 * i, column + 1] = words >> np.uint32(16)
        else:
            cells[row + 8 * (i // 2), column + i % 2] = words
    return cells


def _registers(cells: np.ndarray, fmt: str) -> tuple[np.ndarray, ...]:
    """Cells as D's registers."""
    row, column = _LANE[:, 0] // 4, 2 * (_LANE[:, 0] % 4)
    if fmt == "f16":
        pairs = cells[:, ::2] & np.uint32(0xFFFF) | cells[:, 1::2] << np.uint32(16)
        return tuple(pairs[row + 8 * i, column // 2] for i in range(2))
    return tuple(cells[row + 8 * (i // 2), column + i % 2] for i in range(4))


def _multiply_fp8(a: np.ndarray, b: np.ndarray, cells: np.ndarray, d_type: str) -> np.ndarray:
    """Cells, uint32 [16, 8], of A * B + C.

    a [16, K], b [8, K]: float64 values. cells: C, uint32 [16, 8]. d_type: "f32" or "f16" (low half
    of a cell), of C and D.
    """
    product: np.ndarray | None = None
    for half in _HALVES:
        columns = np.isin(np.arange(a.shape[1], dtype=np.int64) % _REGISTER, half)
        first, second = (
            AlignedOperand(a[:, columns], LEAST["f16"]),
            AlignedOperand(b[:, columns], LEAST["f16"]),
        )
        product = multiply(first, second, product, d_type).copy()
    assert product is not None
    form = FLOATS[d_type]
    p, c = (form.decode(x.reshape(-1).astype(form.bits_dtype)) for x in (product, cells))
    with np.errstate(invalid="ignore", over="ignore"):
        total = encode(p + c, form)  # rounded once: 53 bits are more than twice 24 and 2
    return total.astype(np.uint32).reshape(cells.shape)


# Of the types of D, A, B and C.
@warp("mma.sync", states=lambda ins: MultipliesInWarp(inputs=ins.mods[-3:-1]), out=1)
def mma_sync(ins: Instr) -> Run:
    """mma.sync.aligned.m16n8kK.row.col{.satfinite}.dtype.atype.btype.ctype d, a, b, c"""
    if ins.has("f64"):
        return _double_mma(ins)
    form = _form(ins)

    def run(
        warp: Fragment, mask: int, a: Words, b: LaneValues | Words, c: LaneValues | Words
    ) -> tuple[np.ndarray, ...]:
        whole_warp(mask, ins.opcode)
        va = _values(_gather(_words(a), 2, form.row_bytes), form.a)
        vb = _values(_gather(_words(b), 1, form.row_bytes), form.b)
        cells = _accumulator(_words(c), form.d)
        if form.a in _INTEGERS:
            result = multiply_integers(va, vb, cells, form.saturate)
        elif form.a in _FP8:
            result = _multiply_fp8(va, vb, cells, form.d)
        else:
            first, second = AlignedOperand(va, LEAST[form.a]), AlignedOperand(vb, LEAST[form.b])
            result = multiply(first, second, cells, form.d)
        return _registers(result, form.d)

    return run


def _double_mma(ins: Instr) -> Run:
    """mma.sync.aligned.mMn8kK.row.col{.rn}.f64.f64.f64.f64 d, a, b, c: M is 8 or 16 (9.7.14.5.4 to
    9.7.14.5.8). Registers of A: of a half of the rows and four of K each, the halves first.
    """
    m, _, k = map(int, re.findall(r"\d+", ins.mods[3]))
    halves, steps = m // 8, k // 4
    given = [len(o.items) if isinstance(o, Vec) else 1 for o in ins.operands]
    if given != (need := [2 * halves, halves * steps, steps, 2 * halves]):
        raise Unsupported(f"{ins.opcode}: its operands have {given} registers, must have {need}")

    def run(
        warp: Fragment, mask: int, a: LaneValues | Words, b: LaneValues | Words, c: Words
    ) -> tuple[np.ndarray, ...]:
        whole_warp(mask, ins.opcode)
        of_a, of_b = ([lanes(each, np.uint64).reshape(8, 4) for each in _words(x)] for x in (a, b))
        sums = [lanes(each, np.uint64) for each in c]
        for step, columns in enumerate(of_b):
            for i in range(2 * halves):
                rows = of_a[halves * step + i // 2]
                sums[i] = _dot(rows[_ROW], columns[2 * _PART + i % 2], sums[i])
        return tuple(sums)

    return run


def _dot(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """a, b: uint64 patterns [32 lanes, 4]."""
    for k in range(4):
        c = _fma(a[:, k].copy(), b[:, k].copy(), c)
    return c.view(np.uint64)


# movmatrix transposes a matrix of 16-bit elements.
_SOURCES = TRANSPOSED.sources(1)  # of the bytes of the rows, in the registers
_PLACES = PLAIN.row * ROW_BYTES + PLAIN.byte


@warp("movmatrix", states=Transposes(pipe="shuffle"), out=1)
def movmatrix(ins: Instr) -> Run:
    """movmatrix.sync.aligned.m8n8.trans.b16 d, a (9.7.14.5.17)"""

    def run(warp: Fragment, mask: int, a: LaneValues):
        whole_warp(mask, ins.opcode)
        rows = lanes(a, np.uint32).view(np.uint8).take(_SOURCES)
        return np.ascontiguousarray(rows[_PLACES]).view(np.uint32)[:, 0]

    return run
