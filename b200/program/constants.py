"""Integer constant expressions of PTX (PTX ISA 4.5): numbers, operators, parentheses, WARP_SZ."""

from __future__ import annotations

import ast
import operator
import re

from b200.errors import Unsupported

# The one identifier that PTX predefines as a constant (PTX ISA 4.4).
WARP_SZ = 32
EXPRESSION = re.compile(r"(?:WARP_SZ|0[xX][0-9a-fA-F]+U?|\d+U?|[-+*/%~()<>&|^\s])+")
_OPERATORS = {
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
    ast.Invert: operator.invert,
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: lambda a, b: int(a / b),
    ast.Mod: lambda a, b: a - b * int(a / b),
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
}


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
        return int(node.value)  # pyright: ignore[reportArgumentType]  EXPRESSION has integers only
    if isinstance(node, ast.Name):
        return {"WARP_SZ": WARP_SZ}[node.id]
    if isinstance(node, ast.UnaryOp):
        return _OPERATORS[type(node.op)](_value(node.operand))
    if isinstance(node, ast.BinOp):
        return _OPERATORS[type(node.op)](_value(node.left), _value(node.right))
    raise KeyError(type(node))
