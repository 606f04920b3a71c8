"""All rules of `eval.py lint`, and where each stands."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from harness.lint import boards, directives, guard, imports, program, upload
from harness.lint.boards import Source
from harness.lint.submission import Found, Submission


@dataclass(frozen=True)
class Rule:
    """name: what `--rules` and the page list it under. says: what is asked of a file."""

    name: str
    says: str
    source: Source
    find: Callable[[Submission], Iterable[Found]]


RULES = (
    Rule("empty", "there is something in it", boards.UPLOAD, upload.empty),
    Rule("size", "at most 1,000,000 bytes", boards.UPLOAD, upload.size),
    Rule("encoding", "UTF-8", boards.UPLOAD, upload.encoding),
    Rule(
        "word",
        'the letters "stream" are nowhere, in any case, comments included',
        boards.UPLOAD,
        upload.forbidden_word,
    ),
    Rule("name", "the name ends in .py, .cu, .cuh or .cpp", boards.PREPARE, upload.name),
    Rule("language", "these boards take Python", boards.TASK_YML, upload.language),
    Rule(
        "directive",
        "a #!POPCORN line names leaderboard or gpu, once, with a value",
        boards.PREPARE,
        directives.form,
    ),
    Rule(
        "place",
        "#!POPCORN lines are in the first comment block",
        boards.PREPARE,
        directives.place,
    ),
    Rule("board", "the board exists, and is the one meant", boards.BOARDS, directives.board),
    Rule("gpu", "the board has that GPU", boards.BOARDS, directives.gpu),
    Rule("one-gpu", "one GPU", boards.CLI, directives.one_gpu),
    Rule("offered", "board and GPU are named", boards.PREPARE, directives.offered),
    Rule("syntax", "it is Python", boards.HARNESS, program.syntax),
    Rule("entry", "it has a custom_kernel", boards.HARNESS, program.entry),
    Rule(
        "arguments",
        "custom_kernel takes one argument",
        boards.HARNESS,
        program.entry_arguments,
    ),
    Rule("ours", "nothing of this checkout is imported", boards.TASK_YML, imports.ours),
    Rule("one-file", "nothing beside it is imported or read", boards.RUN, imports.one_file),
    Rule("image", "imports are of the runner's image", boards.IMAGE, imports.image),
    Rule(
        "beside",
        "what it takes from task, utils and reference is in the organisers' files",
        boards.TASK_YML,
        imports.beside,
    ),
    Rule("tvm-ffi", "no option that needs apache-tvm-ffi", boards.IMAGE, program.tvm_ffi),
    Rule("installs", "no package is installed at run time", boards.GUARD, program.installs),
    Rule(
        "reference",
        "a call does not compute with the reference's functions",
        boards.HARNESS,
        program.computes_reference,
    ),
    Rule("prints", "a call prints nothing to stdout", boards.REPORT, program.prints),
    Rule("kernelguard", "kernelguard does not filter it", boards.PRECHECK, guard.verdict),
)


@dataclass(frozen=True)
class Remark:
    """A rule that a file does not keep."""

    rule: Rule
    found: Found

    @property
    def refused(self) -> bool:
        return self.found.grade == "refused"


def remarks(submission: Submission) -> Iterator[Remark]:
    """All of them, in the order of the rules."""
    for rule in RULES:
        for found in dict.fromkeys(rule.find(submission)):
            yield Remark(rule, found)
