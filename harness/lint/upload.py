"""What the upload itself refuses: bytes, letters, the name."""

from __future__ import annotations

from collections.abc import Iterator

from harness.lint import boards
from harness.lint.submission import Found, Submission

TAKEN = (".py", ".cu", ".cuh", ".cpp")  # boards.PREPARE


def empty(submission: Submission) -> Iterator[Found]:
    if not submission.content:
        yield Found("the file is empty")


def size(submission: Submission) -> Iterator[Found]:
    if len(submission.content) > boards.LIMIT_BYTES:
        yield Found(f"{len(submission.content):,} bytes, at most {boards.LIMIT_BYTES:,} are taken")


def encoding(submission: Submission) -> Iterator[Found]:
    try:
        submission.content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = submission.content.count(b"\n", 0, error.start) + 1
        yield Found(f"not UTF-8: byte 0x{submission.content[error.start]:02x}", (line,))


def forbidden_word(submission: Submission) -> Iterator[Found]:
    """In comments and strings, too: it is a match of the text."""
    hits = [
        number
        for number, line in enumerate(submission.lines, 1)
        if boards.FORBIDDEN in line.lower()
    ]
    if hits:
        shown = " ".join(submission.lines[hits[0] - 1].split())
        shown = shown if len(shown) <= 60 else f"{shown[:60]} ..."
        text = f'the letters "{boards.FORBIDDEN}" ("Your code contains work on another stream")'
        yield Found(f"{text}: {shown}", tuple(hits))


def name(submission: Submission) -> Iterator[Found]:
    ending = submission.path.suffix
    if ending not in TAKEN:
        yield Found(f"a name that ends in {ending or 'nothing'}; {', '.join(TAKEN)} are taken")


def language(submission: Submission) -> Iterator[Found]:
    ending = submission.path.suffix
    if ending in TAKEN and ending != ".py":
        yield Found(
            f"{ending}: these boards have `lang: py` and import the file as submission.py; CUDA"
            " goes into a string for torch.utils.cpp_extension.load_inline"
        )
