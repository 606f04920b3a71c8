"""What the organisers' harness asks of the program, and what it does to it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from harness.lint import boards
from harness.lint.reach import ENTRY
from harness.lint.submission import Found, Submission, dotted

REFERENCE = ("ref_kernel", "_scaled_mm")  # of reference.py, of all four boards
PIP = re.compile(r"\bpip3?\b.*\binstall\b", re.DOTALL)
STARTERS = re.compile(r"(^|\.)(run|call|check_call|check_output|Popen|system|popen|getoutput)$")


def syntax(submission: Submission) -> Iterator[Found]:
    error = submission.parsed
    if isinstance(error, SyntaxError):
        lines = (error.lineno,) if error.lineno else ()
        yield Found(f"{type(error).__name__}: {error.msg}", lines)
    elif isinstance(error, ValueError):
        yield Found(f"not Python: {error}")


def entry(submission: Submission) -> Iterator[Found]:
    """`from submission import custom_kernel`, in a process of its own."""
    if not submission.content or isinstance(submission.parsed, Exception):
        return
    if any(isinstance(node, ast.ImportFrom) and "*" in _bound(node) for node in _top(submission)):
        return
    if not any(ENTRY in _bound(node) for node in _top(submission)):
        yield Found(f"no {ENTRY} at the top level of the file")


def entry_arguments(submission: Submission) -> Iterator[Found]:
    """It is called as custom_kernel(data)."""
    for node in _top(submission):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == ENTRY:
            if isinstance(node, ast.AsyncFunctionDef):
                yield Found(f"{ENTRY} is async: a call does nothing", (node.lineno,))
            elif not _takes_one(node.args):
                shown = f"{ENTRY}({ast.unparse(node.args)})"
                yield Found(f"{shown} is called with one argument, the data", (node.lineno,))


def _top(submission: Submission) -> Iterator[ast.AST]:
    """What binds names of the module: its statements, also those in if, try, with and for."""
    pending: list[ast.AST] = list(submission.tree.body)
    while pending:
        node = pending.pop(0)
        yield node
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            pending += ast.iter_child_nodes(node)


def _bound(node: ast.AST) -> set[str]:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return {node.name}
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return {alias.asname or alias.name for alias in node.names}
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return {node.id}
    return set()


def _takes_one(arguments: ast.arguments) -> bool:
    positional = [*arguments.posonlyargs, *arguments.args]
    needed = len(positional) - len(arguments.defaults)
    keywords = [d for d in arguments.kw_defaults if d is None]
    most = len(positional) + (arguments.vararg is not None)
    return needed <= 1 <= most and not keywords


def installs(submission: Submission) -> Iterator[Found]:
    """Packages at run time: kernelguard's RUNTIME_PACKAGE_INSTALL."""
    lines = tuple(
        node.lineno
        for called, node in submission.calls()
        if STARTERS.search(called) and PIP.search(ast.unparse(node))
    )
    if lines:
        yield Found("installs packages with pip (kernelguard: RUNTIME_PACKAGE_INSTALL)", lines)


def tvm_ffi(submission: Submission) -> Iterator[Found]:
    lines = tuple(line for line, text in submission.strings if boards.TVM_FFI in text)
    lines += tuple(
        node.lineno
        for _, node in submission.calls()
        for keyword in node.keywords
        if keyword.arg == boards.TVM_FFI.replace("-", "_")
        and not (isinstance(keyword.value, ast.Constant) and not keyword.value.value)
    )
    if lines:
        yield Found(f"{boards.TVM_FFI} needs apache-tvm-ffi, which the image lacks", lines)


def prints(submission: Submission) -> Iterator[Found]:
    """To stdout, in a call of custom_kernel."""
    lines = tuple(
        node.lineno
        for node in submission.called
        if isinstance(node, ast.Call)
        and dotted(node.func) == "print"
        and not any(keyword.arg == "file" for keyword in node.keywords)
    )
    if lines:
        yield Found(
            "prints in a call: a report shows 16,384 characters of it, a ranked run none, and"
            " printing a tensor waits for the GPU within the timed calls",
            tuple(sorted(lines)),
            "note",
        )


def computes_reference(submission: Submission) -> Iterator[Found]:
    """A call that computes what the boards hold its result against."""
    lines = tuple(
        node.lineno
        for node in submission.called
        if isinstance(node, ast.Call) and dotted(node.func).rpartition(".")[2] in REFERENCE
    )
    if lines:
        yield Found(
            "a call computes the reference's result by the reference's own functions"
            f" ({', '.join(REFERENCE)}): who returns that measures no kernel",
            tuple(sorted(set(lines))),
            "note",
        )
