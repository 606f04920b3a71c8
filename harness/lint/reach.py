"""What of a file a board can come to: the module's own statements, custom_kernel, and every
function that one of these names, and so on. What stands behind `if __name__ == "__main__"` or `if
TYPE_CHECKING` is left out, with the functions that only it names.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

ENTRY = "custom_kernel"
_Function = (ast.FunctionDef, ast.AsyncFunctionDef)


def reached(tree: ast.Module, entry: str = "") -> list[ast.AST]:
    """The nodes that can be executed. entry: by a call of that function; "" also by the import."""
    functions = _functions(tree)
    found: dict[int, ast.AST] = {}
    names = {entry or ENTRY}
    pending: list[ast.AST] = [] if entry else _own(tree.body)
    taken: set[int] = set()
    while True:
        for node in pending:
            found[id(node)] = node
            names |= _named(node)
        new = [f for name in names for f in functions.get(name, ()) if id(f) not in taken]
        if not new:
            return list(found.values())
        taken |= {id(function) for function in new}
        pending = [node for function in new for node in _own(function.body)]


def _functions(tree: ast.Module) -> dict[str, list[ast.FunctionDef | ast.AsyncFunctionDef]]:
    """By the names that reach them; a special method, which no one names, by its class."""
    found: dict[str, list[ast.FunctionDef | ast.AsyncFunctionDef]] = {}
    for node in ast.walk(tree):
        if isinstance(node, _Function):
            found.setdefault(node.name, []).append(node)
        if isinstance(node, ast.ClassDef):
            special = [f for f in node.body if isinstance(f, _Function) and _special(f.name)]
            found.setdefault(node.name, []).extend(special)
    return found


def _special(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _named(node: ast.AST) -> set[str]:
    if isinstance(node, ast.Name):
        return {node.id}
    return {node.attr} if isinstance(node, ast.Attribute) else set()


def _own(body: list[ast.stmt]) -> list[ast.AST]:
    """The nodes of statements, without the bodies of functions and what is guarded."""
    return [node for statement in body for node in _walk(statement)]


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.If) and _guard(node.test):
        for statement in node.orelse:
            yield from _walk(statement)
        return
    yield node
    if isinstance(node, _Function):
        outside = [*node.decorator_list, *node.args.defaults, *filter(None, node.args.kw_defaults)]
        for child in outside:
            yield from _walk(child)
        return
    for child in ast.iter_child_nodes(node):
        yield from _walk(child)


def _guard(test: ast.expr) -> bool:
    text = ast.unparse(test)
    return "TYPE_CHECKING" in text or ("__name__" in text and "__main__" in text)
