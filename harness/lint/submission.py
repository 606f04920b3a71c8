"""A submitted file as the rules look at it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from harness.lint.reach import ENTRY, reached


@dataclass(frozen=True)
class Found:
    """What a rule says of a file.

    grade: `refused` by the board; `note`, which it takes, at a price; `offer`, what would help.
    lines: of the file, counted from 1; () for the file as a whole.
    """

    text: str
    lines: tuple[int, ...] = ()
    grade: str = "refused"


@dataclass(frozen=True)
class Submission:
    """A file, and the board it is meant for: a full name, "" where nobody has said."""

    path: Path
    content: bytes
    board: str = ""

    @cached_property
    def text(self) -> str:
        """Where it is not UTF-8 another rule says so, and a byte that is wrong is U+FFFD here."""
        return self.content.decode("utf-8", "replace")

    @cached_property
    def lines(self) -> list[str]:
        return self.text.splitlines()

    @cached_property
    def parsed(self) -> ast.Module | SyntaxError | ValueError:
        try:
            return ast.parse(self.text)
        except (SyntaxError, ValueError) as error:  # ValueError: a NUL byte
            return error

    @cached_property
    def tree(self) -> ast.Module:
        """An empty module where it cannot be parsed: another rule says so."""
        return self.parsed if isinstance(self.parsed, ast.Module) else ast.parse("")

    @cached_property
    def reached(self) -> list[ast.AST]:
        """The nodes that a board can come to (reach.py)."""
        return reached(self.tree)

    @cached_property
    def called(self) -> list[ast.AST]:
        """Those of them that a call of custom_kernel comes to."""
        return reached(self.tree, ENTRY)

    @cached_property
    def strings(self) -> list[tuple[int, str]]:
        """The string constants, docstrings aside: (line, value)."""
        documented = {
            id(node.value)
            for node in ast.walk(self.tree)
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        }
        return [
            (node.lineno, node.value)
            for node in ast.walk(self.tree)
            if isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in documented
        ]

    def beside(self, name: str) -> Path | None:
        """The file of that name in the submission's folder, if there is one."""
        if not name or len(name) > 200 or "\n" in name or "\0" in name:
            return None
        path = self.path.absolute().parent / name
        same = path.is_file() and path.resolve() != self.path.resolve()
        return path if same else None

    def calls(self) -> Iterator[tuple[str, ast.Call]]:
        """The calls, with what is called as it is written: `os.system`."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Call):
                yield dotted(node.func), node


def read(path: Path, board: str = "") -> Submission:
    """The file at `path`. Raises OSError."""
    return Submission(path, path.read_bytes(), board)


def dotted(node: ast.AST) -> str:
    """`a.b.c` of names and attributes; what is no name is left out."""
    if isinstance(node, ast.Attribute):
        before = dotted(node.value)
        return f"{before}.{node.attr}" if before else node.attr
    return node.id if isinstance(node, ast.Name) else ""
