"""Parses small pieces of PTX: numbers, operand lists, variable declarations (PTX ISA 4.5, 5.4).

Integer constants are expressions: numbers, operators, parentheses, WARP_SZ.
"""

from __future__ import annotations

import ast
import operator
import re
import struct
from collections.abc import Callable

from b200.errors import Unsupported
from b200.program.module import TYPE_BITS, Pointer, Variable

_INTEGERS = {
    re.compile(f"[-+]?{digits}"): base
    for digits, base in (("0x[0-9a-f]+", 16), ("0b[01]+", 2), ("0[0-7]+", 8), (r"\d+", 10))
}
# The one identifier that PTX predefines as a constant (PTX ISA 4.4).
WARP_SZ = 32
_EXPRESSION = re.compile(r"(?:WARP_SZ|0[xX][0-9a-fA-F]+U?|\d+U?|[-+*/%~()<>&|^\s])+")
_NUMBER = re.compile(r"[-+]?(\d|\.\d)")
_OPENING = re.compile(r"[{[(]")
_SIGNS: dict[type[ast.unaryop], Callable[[int], int]] = {
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
    ast.Invert: operator.invert,
}
_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: lambda a, b: int(a / b),
    ast.Mod: lambda a, b: a - b * int(a / b),
    ast.LShift: lambda a, b: a << b,
    ast.RShift: lambda a, b: a >> b,
    ast.BitAnd: lambda a, b: a & b,
    ast.BitOr: lambda a, b: a | b,
    ast.BitXor: lambda a, b: a ^ b,
}
_VARIABLE = re.compile(
    r"\.(param|shared|global|const|local)\s*(?:\.attribute\([^)]*\)\s*)?(?:\.align\s+(\d+))?\s*"
    r"(?:\.attribute\([^)]*\)\s*)?"
    r"(?:\.v(\d)\s*)?\.(\w+)\s+(?:\.ptr(?:\s+\.\w+)*(?:\s+\d+)?\s+)?([\w$]+)\s*"
    r"((?:\[\d*\])*)\s*(?:=\s*(.*))?",
    re.S,
)
_ADDRESS = re.compile(
    r"(?:(0x[0-9a-fA-F]+|0b[01]+|\d+)\s*\(\s*)?(?:generic\s*\(\s*)?([A-Za-z_$%][\w$]*)\s*\)?\s*\)?"
    r"\s*([+-]\s*\w+)?\s*\)?"
)


def declaration(text: str) -> Variable | None:
    match = _VARIABLE.search(text)
    if match is None:
        return None
    space, align, vector, kind, name, dims, init = match.groups()
    size = (TYPE_BITS[kind] // 8) * int(vector or 1)
    for dim in re.findall(r"\[(\d*)\]", dims):
        size *= int(dim or 0)
    variable = Variable(name, space, int(align or (TYPE_BITS[kind] // 8)), size)
    if init is not None:
        _initialise(variable, init, kind)
    return variable


def _initialise(variable: Variable, text: str, kind: str) -> None:
    """The initial value of a variable whose elements have PTX type `kind` (PTX ISA 5.4.4)."""
    width = TYPE_BITS[kind] // 8
    data = b""
    pointers: list[Pointer] = []
    for item in text.replace("{", " ").replace("}", " ").split(","):
        token = item.strip()
        if pointer := _pointer(token, len(data), width):
            pointers.append(pointer)
            data += bytes(width)
        elif token:
            data += (immediate(token, kind) & ((1 << 8 * width) - 1)).to_bytes(width, "little")
    variable.init, variable.pointers = data.ljust(variable.size, b"\0"), tuple(pointers)


def _pointer(token: str, at: int, width: int) -> Pointer | None:
    """The address that an item of an initial value is: `name`, `generic(name) + 4`, or one of its
    bytes, `0xff00(name)`. None for a number.
    """
    if "(" not in token and not re.match(r"[A-Za-z_$%]", token):
        return None
    match = _ADDRESS.fullmatch(token)
    if match is None:
        raise Unsupported(f"the initial value {token} of a variable is not modelled")
    mask, name, addend = match.groups()
    more = immediate(addend.replace(" ", "")) if addend else 0
    return Pointer(at, width, name, more, int(mask, 0) if mask else 0)


def immediate(token: str, kind: str = "b32") -> int:
    """The value of a numeric token. A float gives its bit pattern: 0f..., 0d..., or a decimal one,
    which has PTX type `kind`.
    """
    if token.isdecimal() and token[0] != "0":
        return int(token)  # most are
    token = token.rstrip("uU") if token[:2].lower() not in ("0f", "0d") else token
    low = token.lower()
    if low.startswith(("0f", "0d")) and len(low) in (10, 18):
        return int(token[2:], 16)
    for pattern, base in _INTEGERS.items():
        if pattern.fullmatch(low):
            return int(low, base)
    if _EXPRESSION.fullmatch(token):
        return constant(token)
    code, as_int = ("<d", "<Q") if kind == "f64" else ("<f", "<I")
    return struct.unpack(as_int, struct.pack(code, float(token)))[0]


def is_number(token: str) -> bool:
    """Whether a token is a number or an integer constant expression."""
    return bool(_NUMBER.match(token) or _EXPRESSION.fullmatch(token))


def split_operands(text: str) -> list[str]:
    """Split at commas outside of braces and brackets."""
    if _OPENING.search(text) is None:
        parts = [part.strip() for part in text.split(",")]
        return parts if parts[-1] else parts[:-1]
    out: list[str] = []
    depth = start = 0
    for i, c in enumerate(text):
        if c in "{[(":
            depth += 1
        elif c in "}])":
            depth -= 1
        elif c == "," and depth == 0:
            out.append(text[start:i].strip())
            start = i + 1
    last = text[start:].strip()
    return out + [last] if last else out


def constant(text: str) -> int:
    """The value of an expression; Unsupported for a text that is none."""
    python = re.sub(r"(?<=[0-9a-fA-F])U\b", "", text.strip())
    python = re.sub(r"\b0(?=[0-7]+\b)", "0o", python)
    try:
        return _value(ast.parse(python, mode="eval").body)
    except (SyntaxError, KeyError, ZeroDivisionError, ValueError):
        raise Unsupported(f"the constant expression {text} is not modelled") from None


def _value(node: ast.expr) -> int:
    if isinstance(node, ast.Constant):
        return int(node.value)  # pyright: ignore[reportArgumentType]  _EXPRESSION has integers only
    if isinstance(node, ast.Name):
        return {"WARP_SZ": WARP_SZ}[node.id]
    if isinstance(node, ast.UnaryOp):
        return _SIGNS[type(node.op)](_value(node.operand))
    if isinstance(node, ast.BinOp):
        return _OPERATORS[type(node.op)](_value(node.left), _value(node.right))
    raise KeyError(type(node))
