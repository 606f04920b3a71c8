"""Imports, and files that a submission reads: a runner has its image and one submitted file."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from harness.lint import boards
from harness.lint.submission import Found, Submission, dotted

CAUGHT = {"ImportError", "ModuleNotFoundError", "Exception", "BaseException", ""}
IMPORTERS = ("importlib.import_module", "import_module", "__import__")
INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"\n]+)"', re.MULTILINE)


@dataclass(frozen=True)
class Import:
    """names: of `from module import names`. optional: a failure is caught."""

    line: int
    module: str
    names: tuple[str, ...] = ()
    relative: bool = False
    optional: bool = False

    @property
    def top(self) -> str:
        return self.module.partition(".")[0]


def imports(submission: Submission) -> Iterator[Import]:
    """Those that the board comes to, `importlib.import_module("name")` included."""
    optional = _optional(submission.tree)
    for node in submission.reached:
        caught = id(node) in optional
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(node.lineno, alias.name, optional=caught)
        elif isinstance(node, ast.ImportFrom):
            names = tuple(alias.name for alias in node.names)
            yield Import(node.lineno, node.module or "", names, bool(node.level), caught)
        elif isinstance(node, ast.Call) and node.args:
            name = _literal(node.args[0])
            if name is not None and dotted(node.func) in IMPORTERS:
                yield Import(node.lineno, name, optional=caught)


def _literal(node: ast.expr) -> str | None:
    value = node.value if isinstance(node, ast.Constant) else None
    return value if isinstance(value, str) else None


def _optional(tree: ast.Module) -> set[int]:
    """The nodes in a `try` whose failed import is caught."""
    found: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Try) and any(_catches(h) for h in node.handlers):
            found |= {id(inner) for statement in node.body for inner in ast.walk(statement)}
    return found


def _catches(handler: ast.ExceptHandler) -> bool:
    kinds = handler.type
    each = kinds.elts if isinstance(kinds, ast.Tuple) else [kinds]
    return any((dotted(kind) if kind else "").rpartition(".")[2] in CAUGHT for kind in each)


def _grade(item: Import) -> str:
    return "note" if item.optional else "refused"


def ours(submission: Submission) -> Iterator[Found]:
    for item in imports(submission):
        if not item.relative and item.top in boards.OURS:
            yield Found(
                f"import {item.module}: of this checkout; the runner does not have it",
                (item.line,),
                _grade(item),
            )


def one_file(submission: Submission) -> Iterator[Found]:
    """Modules and files beside the submission."""
    for item in imports(submission):
        if item.relative:
            yield Found("a relative import: a submission is one file", (item.line,), _grade(item))
        elif item.top not in (*boards.BESIDE, *boards.OURS) and _sibling(submission, item.top):
            yield Found(
                f"import {item.module} is a file beside it: a submission is one file",
                (item.line,),
                _grade(item),
            )
    for line, text in submission.strings:
        for name in (text, *INCLUDE.findall(text)):
            if "." in name and submission.beside(name):
                yield Found(f"{name} is a file beside it: a submission is one file", (line,))


def _sibling(submission: Submission, module: str) -> bool:
    folder = submission.path.absolute().parent
    package = (folder / module / "__init__.py").is_file()
    known = module in boards.KNOWN
    return not known and (package or submission.beside(f"{module}.py") is not None)


def image(submission: Submission) -> Iterator[Found]:
    """What the runner's image does not have."""
    for item in imports(submission):
        if item.relative or not item.top or item.top in (*boards.BESIDE, *boards.OURS):
            continue
        if item.top in boards.GONE:
            version = ".".join(map(str, boards.PYTHON))
            text = f"import {item.module}: gone from the standard library of Python {version}"
            yield Found(f"{text}, the runner's", (item.line,), _grade(item))
        elif item.top not in boards.KNOWN and not _sibling(submission, item.top):
            yield Found(
                f"import {item.module}: the runner's image does not have it",
                (item.line,),
                _grade(item),
            )
        elif item.top == "cuda":
            yield from _cuda(item)


def _cuda(item: Import) -> Iterator[Found]:
    """cuda-python 13 has no `cuda.cuda`, `cuda.cudart`, `cuda.nvrtc` any more."""
    parts = item.module.split(".")
    names = parts[1:2] or [name for name in item.names if name != "*"]
    for name in names:
        if name not in boards.CUDA_MODULES:
            yield Found(
                f"cuda.{name}: cuda-python 13 has {', '.join(boards.CUDA_MODULES)}",
                (item.line,),
                _grade(item),
            )


def beside(submission: Submission) -> Iterator[Found]:
    """Names of task, utils and reference: on a board these are the organisers' files."""
    modules = {}
    for item in imports(submission):
        known = boards.BESIDE.get(item.module)
        if known:
            modules[item.module] = known
            for name in item.names:
                if name != "*" and name not in known:
                    yield _not_there(item.module, name, item.line, _grade(item))
    for node in submission.reached:
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            module = node.value.id
            if module in modules and node.attr not in modules[module]:
                if _bound_by_import(submission, module):
                    yield _not_there(module, node.attr, node.lineno, "refused")


def _bound_by_import(submission: Submission, module: str) -> bool:
    """Whether the name is that module's, and nothing else's (`import cutlass.utils as utils`)."""
    bound = [
        (alias.asname or alias.name, alias.name if isinstance(node, ast.Import) else "")
        for node in ast.walk(submission.tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
    ]
    return {what for name, what in bound if name == module} == {module}


def _not_there(module: str, name: str, line: int, grade: str) -> Found:
    return Found(f"the board's {module}.py has no {name}", (line,), grade)
