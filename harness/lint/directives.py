"""`#!POPCORN` lines: which board and GPU a file is for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches

from harness.lint import boards
from harness.lint.submission import Found, Submission

MARKS = ("#!POPCORN", "//!POPCORN")
CLOSE = 0.9  # of difflib's ratio: a slip of a letter
ARGUMENTS = {"gpu": "gpu", "gpus": "gpu", "leaderboard": "leaderboard"}


@dataclass(frozen=True)
class Directive:
    """A line, as both readers split it. first: in the first comment block, all that kernelbot
    reads; popcorn-cli reads every line.
    """

    line: int
    words: tuple[str, ...]
    first: bool

    @property
    def argument(self) -> str:
        """`gpu`, `leaderboard`, or "" where it is neither."""
        return ARGUMENTS.get(self.words[1].lower(), "") if len(self.words) > 1 else ""

    @property
    def values(self) -> tuple[str, ...]:
        return self.words[2:]


def directives(submission: Submission) -> list[Directive]:
    found: list[Directive] = []
    first = True
    for number, line in enumerate(submission.lines, 1):
        if not line.startswith(("#", "//")):
            first = False
            continue
        words = tuple(line.split())
        if words[0] in MARKS:
            found.append(Directive(number, words, first))
    return found


def _values(submission: Submission, argument: str) -> list[Directive]:
    return [d for d in directives(submission) if d.argument == argument and d.values]


def board_of(submission: Submission) -> str:
    """The board that the file names, else the one it was said to be for; "" for neither."""
    named = [d.values[0] for d in _values(submission, "leaderboard")]
    return named[0] if named else submission.board


def form(submission: Submission) -> Iterator[Found]:
    seen: set[str] = set()
    for directive in directives(submission):
        if not directive.first:
            continue
        shown = " ".join(directive.words)
        if len(directive.words) < 3:
            yield Found(f"{shown}: an argument is missing", (directive.line,))
        elif not directive.argument:
            known = "leaderboard or gpu"
            yield Found(f"{shown}: expected {known}, got {directive.words[1]}", (directive.line,))
        elif directive.argument in seen:
            yield Found(f"{shown}: {directive.argument} is named twice", (directive.line,))
        seen.add(directive.argument)


def place(submission: Submission) -> Iterator[Found]:
    late = tuple(d.line for d in directives(submission) if not d.first)
    if late:
        yield Found(
            "stands after the file's first comment block: popcorn-cli reads it, the server"
            " does not",
            late,
            "note",
        )


def board(submission: Submission) -> Iterator[Found]:
    """A name that is nearly one of theirs is refused; another one may be a board of its own."""
    for directive in _values(submission, "leaderboard"):
        name = directive.values[0]
        close = get_close_matches(name, boards.GPUS, 2, CLOSE)
        if name in boards.GPUS:
            if submission.board and not name.endswith(submission.board):
                yield Found(f"for the board {name}, not {submission.board}", (directive.line,))
        elif close:
            meant = " or ".join(close)
            yield Found(f"no board is called {name}; meant {meant}?", (directive.line,))
        else:
            known = ", ".join(boards.GPUS)
            yield Found(f"{name} is none of {known}", (directive.line,), "note")


def gpu(submission: Submission) -> Iterator[Found]:
    board = board_of(submission)
    taken = boards.GPUS.get(board, ())
    for directive in _values(submission, "gpu"):
        name = directive.values[0]
        if taken and name not in taken:
            names = " or ".join(taken)
            yield Found(f"{board} has the GPU {names}, not {name}", (directive.line,))


def one_gpu(submission: Submission) -> Iterator[Found]:
    for directive in _values(submission, "gpu"):
        if len(directive.values) > 1:
            names = ", ".join(directive.values)
            yield Found(f"{names}: popcorn-cli takes one GPU", (directive.line,))


def offered(submission: Submission) -> Iterator[Found]:
    """The lines that are missing, for the board if it is known."""
    if not submission.text:
        return
    name = board_of(submission)
    missing: list[str] = []
    if not _values(submission, "leaderboard"):
        missing.append(f"#!POPCORN leaderboard {name or 'BOARD'}")
    if not _values(submission, "gpu"):
        missing.append(f"#!POPCORN gpu {boards.GPUS.get(name, ('NVIDIA',))[0]}")
    if missing:
        lines = " and ".join(missing)
        yield Found(f"{lines} can be its first lines, or arguments of popcorn-cli", grade="offer")
