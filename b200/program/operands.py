"""Writes an instruction's operands as Python source: registers, immediates, addresses, symbols.

The generated code calls the functions at the top of this file.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from b200.errors import Unsupported
from b200.program.analysis import EXIT, Uniformity
from b200.program.meeting import kind_of_operand
from b200.program.module import TYPE_BITS, Addr, Imm, Not, Operand, Reg, Special, Sym, Vec
from b200.program.translated import Translated
from b200.registry import DTYPES, LaneValues, active, as_bools, as_mask


def merge(old: np.ndarray, new: np.ndarray, mask: int) -> np.ndarray:
    """`new` in the lanes of `mask`, `old` in the others."""
    return np.where(as_bools(mask), new, old)


def of_width(width: int) -> dict[str, Any]:
    """What generated code calls that depends on the number of lanes, by name."""
    if width == 32:
        return {"as_bools": as_bools, "merge": merge, "full": full, "to_varying": to_varying}

    def bools(mask: int) -> np.ndarray:
        return as_bools(mask, width)

    def merged(old: np.ndarray, new: np.ndarray, mask: int) -> np.ndarray:
        return np.where(as_bools(mask, width), new, old)

    def filled(value: int, dtype: DTypeLike, n: int = width) -> np.ndarray:
        return full(value, dtype, n)

    def varying(value: np.ndarray, dtype: DTypeLike) -> np.ndarray:
        return to_varying(value, dtype, width)

    return {"as_bools": bools, "merge": merged, "full": filled, "to_varying": varying}


def full(value: int, dtype: DTypeLike, n: int = 32) -> np.ndarray:
    """np.full(n, value, dtype), in half the time."""
    found = np.empty(n, dtype)
    found.fill(value)
    return found


def dtype_name(bits: int) -> str:
    """Source of the dtype of a register's array; one of 128 bits holds Python ints."""
    return "object" if bits == 128 else f"np.uint{bits}"


def to_varying(value: LaneValues, dtype: DTypeLike, n: int = 32) -> np.ndarray:
    """A result as an array of n, one value a lane."""
    if isinstance(value, np.ndarray):
        return value if value.dtype == dtype else value.astype(dtype)
    return full(value, dtype, n)


def to_uniform(value: LaneValues, mask: int) -> int:
    """A result as an int: the value of the lowest active lane."""
    if isinstance(value, np.ndarray):
        return int(value[(mask & -mask).bit_length() - 1])
    return value


class Operands:
    """Writes operands as source code. `space`: the names that the generated code may use. width:
    lanes of a warp, 32 for each of the CTAs that the code is written for.
    """

    def __init__(self, out: Translated, info: Uniformity):
        self.out, self.info = out, info
        self.names = itertools.count()
        self.text: list[str] = []
        self.width = 32 * info.ctas
        self.all_lanes = (1 << self.width) - 1
        self.space: dict[str, Any] = {
            "np": np,
            "FULL": self.all_lanes,
            "EXIT": EXIT,
            **of_width(self.width),
        }
        self.space.update(as_mask=as_mask, to_uniform=to_uniform, active=active)

    def _constant(self, value: object) -> str:
        name = f"k{next(self.names)}"
        self.space[name] = value
        return name

    def _reg(self, reg: Reg) -> str:
        return f"r{self.info.id[reg.name]}"

    def _varying(self, reg: Reg) -> bool:
        return self.info.is_varying(reg)

    def _operand(self, operand: Operand, width: int | None) -> tuple[str, bool]:
        """(source code, varies) of a source operand, as bit pattern of `width` bits where given."""
        if operand is None:
            return "None", False
        if isinstance(operand, Imm):
            cut = hex(operand.value & ((1 << width) - 1)) if width else repr(operand.value)
            return cut, False
        if isinstance(operand, Reg):
            varying, code = self._varying(operand), self._reg(operand)
            if width and operand.type != "pred" and TYPE_BITS[operand.type] != width:
                small = width < TYPE_BITS[operand.type]
                if varying:
                    code = f"{code}.astype(np.uint{width})"
                elif small:
                    code = f"({code} & {(1 << width) - 1:#x})"
            return code, varying
        if isinstance(operand, Special):
            return f"w.special[{operand.name!r}]", self.info.operand_varies(operand)
        if isinstance(operand, Sym):
            return self._symbol(operand.name), False
        if isinstance(operand, Addr):
            return self._address(operand)
        if isinstance(operand, Not):
            return f"(FULL & ~{self._reg(operand.reg)})", self._varying(operand.reg)
        raise Unsupported(f"operand {operand} is not modelled here")

    def _symbol(self, name: str) -> str:
        variable = self.out.kernel.variables.get(name) or self.out.program.variables.get(name)
        if variable is None and name in self.out.program.functions:
            return f"w.symbols[{name!r}]"
        if variable is None:
            raise Unsupported(f"symbol {name} is not a variable of the program")
        if variable.space == "shared":
            return f"(w.rank_bits | {self.out.symbols[name]})"
        if variable.space in ("global", "const"):
            return f"w.symbols[{name!r}]"
        return str(self.out.symbols[name])

    def _address(self, address: Addr) -> tuple[str, bool]:
        code, varying = self._operand(address.base, None)
        if address.offset:
            code = f"({code} {'+' if address.offset > 0 else '-'} {abs(address.offset)})"
        return code, varying

    def _array(self, code: str, varying: bool, width: int) -> str:
        return code if varying else self._filled(code, width, self.width)

    def _filled(self, code: str, width: int, n: int) -> str:
        """n elements with the same value."""
        if code.startswith("0x"):
            return self._constant(np.full(n, int(code, 16), DTYPES.get(width, object)))
        return f"full({code}, {dtype_name(width)}, {n})"

    @staticmethod
    def _resize(code: str, varying: bool, kind: str, width: int) -> str:
        """A value of PTX type `kind` in a register of `width` bits, sign-extended if signed."""
        have = TYPE_BITS[kind]
        if varying:
            if kind[0] == "s" and width > have:
                return f"({code}).view(np.int{have}).astype(np.int{width}).view(np.uint{width})"
            return f"({code}).astype(np.uint{width})"
        if kind[0] == "s" and width > have:
            return f"((({code}) ^ {1 << have - 1:#x}) - {1 << have - 1:#x}) & {(1 << width) - 1:#x}"
        return f"({code}) & {(1 << width) - 1:#x}"

    def _argument(self, operand: Operand, style: str) -> tuple[list[str], bool]:
        """Code of the argument(s) an operand stands for in a lane or warp call."""
        if isinstance(operand, Vec):
            parts = [self._argument(o, style) for o in operand.items]
            return [f"({', '.join(c for p, _ in parts for c in p)},)"], any(v for _, v in parts)
        if isinstance(operand, Addr) and operand.coords:
            first, varying = self._argument(Addr(operand.base, operand.offset), style)
            second, v2 = self._argument(Vec(operand.coords), style)
            return first + second, varying or v2
        code, varying = self._operand(operand, None)
        if style == "lane" and kind_of_operand(operand) == "pred":
            code = f"({code} >> i & 1 != 0)"
        elif style == "lane" and varying:
            code = f"int({code}[i])"
        return [code], varying
