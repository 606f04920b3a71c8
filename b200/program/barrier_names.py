"""Finds the names of a program's mbarriers in the source lines that initialise them.

cute.arch.mbarrier_init(storage.full.data_ptr() + s, 1)          "full"
PipelineTmaUmma.create(barrier_storage=storage.ab.data_ptr(), …)  "ab"
mbarrier_init(&shared.empty[i], 1);                               "empty"
mbarrier.init(ready.index(i), count=1)  (Gluon)                   "ready"
"""

from __future__ import annotations

import ast
import re
import warnings
from functools import cache
from pathlib import Path

from b200.program.module import Loc

LARGEST = 4 << 20  # bytes of a source file that is read
STORAGE = "barrier_storage"  # of the pipelines of CUTLASS and their like
POINTERS = ("ptr", "iterator", "data_ptr", "get_ptr", "index")  # of a thing: it has the name
_CALL = re.compile(r"(\w*(?:init|Init)\w*)\s*(?:<[^>]*>)?\s*\(\s*(.*)")
_CAST = re.compile(r"^(?:reinterpret_cast|static_cast)\s*<[^>]*>\s*\(|^\(\s*\w+\s*\*+\s*\)|^[&*(]+")
_PATH = re.compile(r"^\s*(?:this->)?(\w+(?:(?:\.|->)\w+)*)\s*(\(?)(.*)")


@cache
def barrier_name(loc: Loc | None) -> str:
    """The name of the mbarrier that the code at `loc`, or a caller of it, initialises; the name
    in the outermost call if there are several. "" if there is none or the source is not at hand.
    """
    found = ""
    for each in loc.chain() if loc is not None else ():
        found = _name_at(each.file, each.line) or found
    return found


def _name_at(file: str, line: int) -> str:
    lines = _lines(file)
    if not 0 < line <= len(lines):
        return ""
    if file.endswith(".py") and (tree := _tree(file)) is not None:
        calls = [node for node in tree if node.lineno <= line <= (node.end_lineno or 0)]
        calls.sort(key=lambda node: ((node.end_lineno or 0) - node.lineno, -node.col_offset))
        for name in filter(None, map(_of_call, calls)):
            return name
    return _of_text(lines[line - 1])


@cache
def _lines(file: str) -> list[str]:
    path = Path(file)
    try:
        if path.stat().st_size <= LARGEST:
            return path.read_text(errors="replace").splitlines()
    except (OSError, ValueError):
        pass
    return []


@cache
def _tree(file: str) -> list[ast.Call] | None:
    """The calls of a Python file."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse("\n".join(_lines(file)))
    except (SyntaxError, ValueError):
        return None
    return [node for node in ast.walk(tree) if isinstance(node, ast.Call)]


# --- Python ---------------------------------------------------------------------------------------


def _of_call(call: ast.Call) -> str:
    for keyword in call.keywords:
        if keyword.arg == STORAGE:
            return _of_expression(keyword.value)
    if _initialises(_callee(call)) and call.args:
        return _of_expression(call.args[0])
    return ""


def _callee(call: ast.Call) -> str:
    """The function's name; "mbarrier.init" where a module or a class has it."""
    function = call.func
    if isinstance(function, ast.Attribute):
        owner = function.value
        of = owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")
        return f"{of}.{function.attr}" if function.attr == "init" else function.attr
    return getattr(function, "id", "")


def _initialises(callee: str) -> bool:
    """mbarrier_init, init_barriers, ...; a fence after it is none."""
    name = callee.lower()
    return "init" in name and ("bar" in name) and "fence" not in name


def _of_expression(node: ast.expr) -> str:
    """The variable or field that a pointer is of."""
    while True:
        if isinstance(node, ast.BinOp):
            node = node.left
        elif isinstance(node, ast.Subscript):
            node = node.value
        elif isinstance(node, ast.Call):
            if isinstance(node.func, ast.Attribute) and node.func.attr in POINTERS:
                node = node.func.value
            elif node.args:
                node = node.args[0]
            else:
                return _callee(node)
        elif isinstance(node, ast.Attribute):
            if node.attr not in POINTERS:
                return node.attr
            node = node.value
        else:
            return node.id if isinstance(node, ast.Name) else ""


# --- CUDA -----------------------------------------------------------------------------------------


def _of_text(line: str) -> str:
    """The name in a line of C++: first argument of a call that initialises, or x of `x.init()`."""
    code = line.split("//")[0]
    if method := re.search(r"(\w+)(?:\[[^\]]*\])?\s*(?:\.|->)\s*init\s*\(", code):
        return method.group(1)
    for call in _CALL.finditer(code):
        if _initialises(call.group(1)) and not re.match(r"\s*(?:const\s+)?\w+\s*\*", call.group(2)):
            return _of_argument(call.group(2))
    return ""


def _of_argument(text: str) -> str:
    while cast := _CAST.match(text):
        text = text[cast.end() :]
    path = _PATH.match(text)
    if path is None:
        return ""
    names, call, rest = path.groups()
    if call and rest:
        return _of_argument(rest)
    parts = [part for part in re.split(r"\.|->", names) if part not in POINTERS]
    return parts[-1] if parts and not parts[-1][0].isdigit() else ""
