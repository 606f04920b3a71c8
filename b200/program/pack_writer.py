"""Writes alike instructions of a block as one call (packing.py), on registers that lie in an array.

The result of such a call is an array with a row for each register. A next call that takes the same
registers in the same order takes the array; others take the rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from b200.program.analysis import Op
from b200.program.module import TYPE_BITS, Instr, Reg, Vec
from b200.program.operands import Operands

_REGISTER = re.compile(r"\br\d+\b")


def flat(operands: Iterable[Any]) -> list[Any]:
    """Operands one by one, those of vectors, too."""
    found: list[Any] = []
    for operand in operands:
        found.extend(operand.items if isinstance(operand, Vec) else (operand,))
    return found


class PackWriter(Operands):
    """The part of the Writer for instructions that are written as one.

    packed: registers whose values lie one after the other in an array -> the array, while a block
    is written. unpacked: (the number of the line that takes registers out of such an array, these
    registers).
    """

    packed: dict[tuple[str, ...], str]
    unpacked: list[tuple[int, tuple[str, ...]]]

    def _line(self, text: str, ins: Instr | None = None, indent: int = 1) -> None:
        self.text.append("    " * indent + text)
        if ins is not None:
            self.out.lines[len(self.text)] = ins

    def _call(self, function: object, args: list[str]) -> str:
        return f"{self._constant(function)}({', '.join(args)})"

    def _vector(self, group: list[Op], args: list[str], mask: str) -> str:
        """The call of alike instructions' vector form. mask: code of the lanes that execute."""
        return self._call(group[0].made.vector, args)

    def _pack(self, group: list[Op]) -> None:
        """One call for alike instructions: their operands one after the other."""
        sources = [zip(flat(op.ins.operands[1:]), op.made.ins) for op in group]
        rows = [[self._operand(o, TYPE_BITS[kind]) for o, kind in row] for row in sources]
        order = self._order_of_packed(rows)
        group, rows = [group[i] for i in order], [rows[i] for i in order]
        made, ins = group[0].made, group[0].ins
        inlined = made.vexpr is not None
        args = [
            self._behind_each_other(list(column), TYPE_BITS[kind], inlined)
            for column, kind in zip(zip(*rows), made.ins)
        ]
        called = self._vector(group, args, "m") if not inlined else ""
        code = made.vexpr.format(*args) if inlined else called
        have, width = TYPE_BITS[made.outs[0]], TYPE_BITS[group[0].dsts[0].type]
        if have != width:
            code = self._resize(code, True, made.outs[0], width)
        name = f"p{next(self.names)}"
        self._line(f"{name} = {code}", ins)
        self._forget(group)
        rows_of_it = f"{name}.reshape({len(group)}, {self.width})"
        self._unpack([op.dsts[0] for op in group], name, rows_of_it, ins)

    def _unpack(self, registers: Sequence[Reg], flat: str, rows: str, ins: Instr) -> None:
        """Take registers out of an array of theirs. flat, rows: its code as one row, and as a row
        for each register.
        """
        names = tuple(map(self._reg, registers))
        self._line(f"{', '.join(names)} = {rows}", ins)
        self.unpacked.append((len(self.text) - 1, names))
        self.packed[names] = flat

    def _drop_unread(self) -> None:
        """Empty the lines that take registers out of an array from which all has been read as a
        whole.
        """
        end, read = len(self.text), set[str]()
        for number, names in reversed(self.unpacked):
            read.update(_REGISTER.findall("\n".join(self.text[number + 1 : end])))
            if read.isdisjoint(names):
                self.text[number] = ""
            read.difference_update(names)  # what is read before is another value
            end = number

    def _order_of_packed(self, rows: list[list[tuple[str, bool]]]) -> list[int]:
        """Numbers of the rows in the order in which some of their operands lie in an array."""
        for column in zip(*rows):
            codes = [code for code, _ in column]
            for registers in self.packed:
                if len(set(codes)) == len(codes) and sorted(codes) == sorted(registers):
                    return [codes.index(register) for register in registers]
        return list(range(len(rows)))

    def _behind_each_other(self, column: list[tuple[str, bool]], width: int, inlined: bool) -> str:
        """One operand of several instructions as one array, or as an int if all have it."""
        codes = tuple(code for code, _ in column)
        alike = len(set(codes)) == 1
        if codes in self.packed:
            return self.packed[codes]
        if not column[0][1] and alike:
            if inlined:
                return codes[0]
            return self._filled(codes[0], width, self.width * len(codes))
        arrays = [self._array(code, varies, width) for code, varies in column]
        if alike:
            return f"np.tile({arrays[0]}, {len(codes)})"
        joined = f"np.concatenate(({', '.join(arrays)}))"
        if not all(map(str.isidentifier, codes)):  # not registers alone
            return joined
        name = self.packed[codes] = f"p{next(self.names)}"
        self._line(f"{name} = {joined}")
        return name

    def _forget(self, group: list[Op]) -> None:
        """Registers have been written: arrays no longer hold them."""
        written = {self._reg(register) for op in group for register in op.dsts}
        for registers in [r for r in self.packed if not written.isdisjoint(r)]:
            del self.packed[registers]
