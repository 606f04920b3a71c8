"""wmma.load, wmma.mma and wmma.store as the instructions that ptxas makes of them.

PTX leaves open which lane holds which element (PTX ISA 9.7.14.4), so every wmma instruction is
written out before it is parsed: as loads, stores, movmatrix and mma.sync, which the rest of the
package knows. Which lane holds what, and the order of registers, are those of SASS (ptxas 13.0,
sm_100a).

A fragment is rows of elements, and lane t holds neighbouring ones of row t / 4. Rows of a's run
along M, of b's along N, both along K. Where M is 8, N runs along the 16 rows of an mma and M along
its 8 columns: b is the A of mma.sync then, and the product is transposed.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

from b200.errors import Unsupported
from b200.isa import grammar
from b200.program.tokens import split_operands

_SHAPE = re.compile(r"m(\d+)n(\d+)k(\d+)")
_BYTES = {"s8": 1, "u8": 1, "f16": 2, "bf16": 2, "tf32": 4, "f32": 4, "s32": 4, "f64": 8}
_STATEMENT = re.compile(r"(@!?\s*[\w$%.]+\s+)?wmma\.([\w.:]+)\s+(.*)", re.S)
_ADDRESS = re.compile(r"\[\s*([\w$%.]+)\s*(?:([+-])\s*(\w+)\s*)?\]")
_OWN = "wmma"  # begins the names of registers declared here


@dataclass(frozen=True)
class _Fragment:
    """The part of a matrix that a warp holds, in registers.

    kind: its elements. rows: how many it has. columns: of a row, in elements. wide: whether a row
    is one of the 16 of an mma's A or sum, not one of the 8 of its B. sums: whether it is C or D.
    """

    kind: str
    rows: int
    columns: int
    wide: bool
    sums: bool

    @property
    def size(self) -> int:
        """Bytes of an element."""
        return _BYTES[self.kind]

    @property
    def width(self) -> int:
        """Neighbouring elements that a lane has of a row."""
        return 2 if self.sums else max(1, 4 // self.size)

    def places(self) -> list[tuple[int, int]]:
        """(row, column) of the first element that lane 0 has in each of its groups of `width`."""
        step, height = 4 * self.width, 16 if self.wide and self.size < 8 else 8
        return [
            (block + row, column)
            for block in range(0, self.rows, height)
            for column in range(0, self.columns, step)
            for row in range(0, height, 8)
        ]


def _shape(words: list[str]) -> tuple[int, int, int]:
    shape = next(found for word in words if (found := _SHAPE.fullmatch(word)))
    m, n, k = map(int, shape.groups())
    return m, n, k


def _operand(role: str, kind: str, m: int, n: int, k: int) -> _Fragment:
    """Fragment a or b."""
    wide = (role == "a") == (m != 8 or n == 8)
    return _Fragment(kind, m if role == "a" else n, k, wide, False)


def _result(kind: str, m: int, n: int) -> _Fragment:
    """Fragment c or d."""
    rows, columns = (n, m) if m == 8 and n != 8 else (m, n)
    return _Fragment(kind, rows, columns, True, True)


def written_out(statement: str, is_narrow: Callable[[str], bool]) -> list[str] | None:
    """A wmma statement as statements of one scope; None for another, and for a form that is not
    modelled. is_narrow(name): whether an address register has 32 bits.
    """
    match = _STATEMENT.match(statement) if "wmma." in statement else None
    found = grammar.match(f"wmma.{match[2]}") if match else None
    if match is None or found is None or found.reason:
        return None
    words, operands = found.name.split(".")[1:], split_operands(match[3])
    if words[0] == "mma":
        lines = _Product(words, operands).lines()
    else:
        lines = _FragmentAccess(statement, words, operands, is_narrow).lines()
    return [line if line.startswith(".reg") else f"{match[1] or ''}{line}" for line in lines]


class _Lines:
    """Statements under way, and registers of their own."""

    def __init__(self) -> None:
        self.out: list[str] = []
        self._say = self.out.append
        self.count = 0

    def _new(self, kind: str) -> str:
        self.count += 1
        name = f"%{_OWN}{self.count}"
        self.out.append(f".reg .{kind} {name}")
        return name


def _registers(vector: str) -> list[str]:
    return split_operands(vector.strip()[1:-1]) if vector.startswith("{") else [vector]


def _parts(registers: list[str], count: int) -> list[list[str]]:
    """Equal parts, in order."""
    each = len(registers) // count
    return [registers[i * each : (i + 1) * each] for i in range(count)]


class _FragmentAccess(_Lines):
    """wmma.load or wmma.store, of a fragment with `stride` elements between rows of its memory."""

    def __init__(
        self,
        statement: str,
        words: list[str],
        operands: list[str],
        is_narrow: Callable[[str], bool],
    ):
        super().__init__()
        self.loads, role, kind = words[0] == "load", words[1], words[-1]
        m, n, k = _shape(words)
        if role in ("a", "b"):
            self.fragment = _operand(role, kind, m, n, k)
            self.neighbours = ("row" if role == "a" else "col") in words
            least = (k if role == "a" else n) if "row" in words else (m if role == "a" else k)
        else:
            self.fragment = _result(kind, m, n)
            self.neighbours = ("row" in words) == (self.fragment.rows == m)
            least = n if "row" in words else m
        address, given = (1, 0) if self.loads else (0, 1)
        self.registers = _registers(operands[given])
        self.stride = operands[2] if len(operands) > 2 else str(least)
        found = _ADDRESS.fullmatch(operands[address])
        if found is None:
            raise Unsupported(f"{statement}: only an address in a register is modelled")
        self.base, sign, offset = found.groups()
        self.offset = f"{sign if sign == '-' else ''}{offset or 0}"
        space = next((w for w in words if w.split("::")[0] in ("global", "shared")), "")
        self.space = f".{space}" if space else ""
        self.bits = 32 if is_narrow(self.base) else 64

    # --- addresses
    def _start(self, row: str, row_step: int, column: str, column_step: int) -> str:
        """base + size * (row_step * row * stride + column_step * column)."""
        size, at = self.fragment.size, self._new(f"u{self.bits}")
        self._say(f"mov.b{self.bits} {at}, {self.base}")
        if self.offset != "0":
            self._say(f"add.s{self.bits} {at}, {at}, {self.offset}")
        scaled, number = self._new("u32"), self._new("u32")
        self._say(f"mov.u32 {number}, {self.stride}")
        self._say(f"mul.lo.u32 {scaled}, {row}, {row_step * size}")
        self._multiply_add(at, scaled, number, at)
        self._multiply_add(at, column, str(column_step * size), at)
        return at

    def _multiply_add(self, out: str, a: str, b: str, c: str) -> None:
        self._say(f"mad.{'wide' if self.bits == 64 else 'lo'}.u32 {out}, {a}, {b}, {c}")

    def _line_at(self, start: str, row: int) -> str:
        """The address `row` lines of memory further on."""
        if row == 0:
            return start
        number, at = self._new("u32"), self._new(f"u{self.bits}")
        self._say(f"mov.u32 {number}, {self.stride}")
        self._multiply_add(at, number, str(row * self.fragment.size), start)
        return at

    # --- the fragment
    def lines(self) -> list[str]:
        lane, row, column = (self._new("u32") for _ in range(3))
        self._say(f"mov.u32 {lane}, %laneid")
        self._say(f"shr.u32 {row}, {lane}, 2")
        self._say(f"and.b32 {column}, {lane}, 3")
        if self.neighbours:
            self._in_rows(row, column, False)
        elif self.fragment.size == 2:
            self._in_rows(row, column, True)
        else:
            self._one_by_one(row, column)
        return self.out

    def _groups(self) -> list[tuple[list[str], int, int]]:
        """(registers, row, column) of each place; a lane's registers may hold the fragment more
        than once, and a store takes the first.
        """
        places = self.fragment.places()
        each = 2 if self.fragment.sums and self.fragment.size > 2 else 1
        held = [self.registers[i : i + each] for i in range(0, len(self.registers), each)]
        return [(some, *places[i % len(places)]) for i, some in enumerate(held)]

    def _in_rows(self, row: str, column: str, transposed: bool) -> None:
        """A lane's neighbours are neighbours in memory, or those of the transposed 8 x 8 are."""
        fragment = self.fragment
        start = self._start(row, 1, column, fragment.width)
        lines: dict[int, str] = {}
        done: dict[tuple[int, int], list[str]] = {}
        for registers, i, j in self._groups():
            if (i, j) in done:
                self._repeat(registers, done[i, j])
                continue
            done[i, j] = registers
            line, at = (j, i) if transposed else (i, j)
            if line not in lines:
                lines[line] = self._line_at(start, line)
            place = f"[{lines[line]}+{at * fragment.size}]"
            self._move(registers, place, transposed)

    def _move(self, registers: list[str], place: str, transposed: bool) -> None:
        kind, bits = self.fragment.kind, 64 if self.fragment.size == 8 else 32
        many = len(registers) > 1
        vector = "{" + ", ".join(registers) + "}" if many else registers[0]
        form = f"{self.space}{'.v2' if many else ''}.b{bits}"
        if not transposed:
            say = f"ld{form} {vector}, {place}" if self.loads else f"st{form} {place}, {vector}"
            self._say(say)
            return
        assert kind in ("f16", "bf16")
        turned, turn = self._new("b32"), "movmatrix.sync.aligned.m8n8.trans.b16"
        if self.loads:
            self._say(f"ld{form} {turned}, {place}")
            self._say(f"{turn} {vector}, {turned}")
        else:
            self._say(f"{turn} {turned}, {vector}")
            self._say(f"st{form} {place}, {turned}")

    def _repeat(self, registers: list[str], first: list[str]) -> None:
        if self.loads:
            for to, source in zip(registers, first, strict=True):
                self._say(f"mov.b{64 if self.fragment.size == 8 else 32} {to}, {source}")

    def _one_by_one(self, row: str, column: str) -> None:
        """A lane's neighbours are `stride` elements apart in memory."""
        fragment = self.fragment
        start = self._start(column, fragment.width, row, 1)
        lines: dict[int, str] = {}
        for registers, i, j in self._groups():
            single = registers
            if fragment.size == 1:
                single = [self._new("b32") for _ in range(4)]
            for n, register in enumerate(single):
                if j + n not in lines:
                    lines[j + n] = self._line_at(start, j + n)
                place = f"[{lines[j + n]}+{i * fragment.size}]"
                form = f"{self.space}.{'u8' if fragment.size == 1 else f'b{8 * fragment.size}'}"
                load, store = f"ld{form} {register}, {place}", f"st{form} {place}, {register}"
                self._say(load if self.loads else store)
            if fragment.size == 1:
                low, high = self._new("b32"), self._new("b32")
                self._say(f"prmt.b32 {low}, {single[0]}, {single[1]}, 0x3340")
                self._say(f"prmt.b32 {high}, {single[2]}, {single[3]}, 0x3340")
                self._say(f"prmt.b32 {registers[0]}, {low}, {high}, 0x5410")


class _Product(_Lines):
    """wmma.mma as mma.sync of the rows and columns of its blocks."""

    def __init__(self, words: list[str], operands: list[str]):
        super().__init__()
        types = [w for w in words if w in _BYTES]
        if len(types) == 2:
            types = [types[0], "f16", "f16", types[1]]
        self.d_kind, a, _, self.c_kind = types
        m, n, k = _shape(words)
        self.saturate, self.kind = ".satfinite" if "satfinite" in words else "", a
        held = {"a": _registers(operands[1]), "b": _registers(operands[2])}
        first, second = ("b", "a") if m == 8 and n != 8 else ("a", "b")
        fragments = {role: _operand(role, a, m, n, k) for role in "ab"}
        self.rows, self.columns = (
            held[role][: len(fragments[role].places())] for role in (first, second)
        )
        self.k, self.steps = (4, 2) if a == "tf32" else (k, 1)
        # how many mma.sync take rows, and columns, of their own
        self.down = max(1, fragments[first].rows // 16)
        self.across = fragments[second].rows // 8
        self.d, self.c = _registers(operands[0]), _registers(operands[3])

    def lines(self) -> list[str]:
        c, kind = self.c, self.d_kind
        if self.c_kind != self.d_kind:  # SASS widens C first, and narrows D last
            kind = "f32"
            c = self._widened() if self.c_kind == "f16" else c
        results = [self._new({"f64": "f64", "f32": "f32"}.get(kind, "b32")) for _ in c]
        sums = _parts(results, self.down * self.across), _parts(c, self.down * self.across)
        pairs = product(_parts(self.rows, self.down), _parts(self.columns, self.across))
        for (rows, columns), d, before in zip(pairs, *sums, strict=True):
            self._multiply(kind, d, rows, columns, before)
        self._hand_over(results, kind)
        return self.out

    def _multiply(self, kind: str, d: list[str], a: list[str], b: list[str], c: list[str]) -> None:
        shape = "m8n8" if self.kind == "f64" else "m16n8"
        name = f"mma.sync.aligned.{shape}k{self.k}.row.col{self.saturate}"
        for x, y in zip(_parts(a, self.steps), _parts(b, self.steps), strict=True):
            vectors = ", ".join("{" + ", ".join(r) + "}" for r in (d, x, y, c))
            self._say(f"{name}.{kind}.{self.kind}.{self.kind}.{kind} {vectors}")
            c = d

    def _widened(self) -> list[str]:
        """C of f16 as f32."""
        wide: list[str] = []
        for pair in self.c:
            low, high = self._new("b16"), self._new("b16")
            self._say(f"mov.b32 {{{low}, {high}}}, {pair}")
            for half in (low, high):
                wide.append(self._new("f32"))
                self._say(f"cvt.f32.f16 {wide[-1]}, {half}")
        return wide

    def _hand_over(self, results: list[str], kind: str) -> None:
        """Results go to D last: its registers may be among those of A, B and C."""
        if kind != self.d_kind:
            for to, low, high in zip(self.d, results[::2], results[1::2], strict=True):
                self._say(f"cvt.rn.f16x2.f32 {to}, {high}, {low}")
            return
        bits = 64 if kind == "f64" else 32
        for to, source in zip(self.d, results, strict=True):
            self._say(f"mov.b{bits} {to}, {source}")
