"""survey.py: one file for a board's test mode or a hosted GPU, that tries what could be faster.

    python -m lab survey gemm                                  the benchmark shapes of a problem
    python -m lab survey gemm --case "m: 64; n: 512; k: 1024; l: 1"
    python -m lab survey gemm --after OUT.txt                  goes on where that one stopped

The file is submission.py with lab/survey/paste.py behind it. What it prints is given to `python -m
lab measured OUT.txt --apply`, which writes rows of the table of picks. With --after, configurations
that OUT.txt judges are left out, and so is what hung, faulted or differed.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from b200.command_line import Parser
from harness.evaluator import cases
from harness.evaluator.case.configs import kind
from harness.lint.boards import FORBIDDEN, GPUS
from lab.survey import paste, said, table
from lab.survey.plans import MAX_CANDIDATES, candidates
from lab.survey.said import Judged
from submission import Problem
from task import Problem as Board
from task import find_problem

ROOT = Path(__file__).resolve().parents[2]
SHOWN = 15_000  # characters that a report has room for, of 16,384
A_VERDICT = 60  # characters of a line that follows a trial's
HEAD = """#!POPCORN leaderboard {board}
#!POPCORN gpu {gpu}
# A survey of configurations: made by `python -m lab survey`, for a board's test mode.
"""


# ---- which trials --------------------------------------------------------------------------------


def trials(
    shapes: Sequence[tuple[str, Problem]], judged: Iterable[Judged], count: int
) -> list[paste.Trial]:
    """What is to be run of each shape, the plainest that may run first; none of a shape where all
    else is judged.
    """
    known = said.latest(judged)
    found: list[paste.Trial] = []
    for case, problem in shapes:
        verdicts = {config: one.verdict for config, one in known.get(problem, {}).items()}
        may_run = [c for c in candidates(problem, count) if verdicts.get(c, "ok") == "ok"]
        if not may_run:
            continue
        first = min(may_run, key=lambda c: len(kind(c)))
        new = [c for c in may_run if c not in verdicts and c != first]
        if new or first not in verdicts:
            for config in (first, *new):
                name = f"{case} | {table.name(config)}"
                found.append(paste.Trial(len(found) + 1, name, problem, config))
    return found


def that_fit(found: Sequence[paste.Trial]) -> list[paste.Trial]:
    """Those whose lines a report has room for."""
    room, kept = SHOWN, []
    for trial in found:
        room -= len(trial.name) + A_VERDICT
        if room > 0:
            kept.append(trial)
    return kept


# ---- the file ------------------------------------------------------------------------------------


def compose(submission: str, found: Sequence[paste.Trial], board: Board) -> str:
    """The text of survey.py. Raises table.TableError if the text is no submission.py."""
    behind = _code_of_paste()
    lines = [f"    {_source(trial)}," for trial in found]
    listed = "\n".join(["TRIALS: list[Trial] = [", *lines, "]"])
    behind = _replaced(behind, "TRIALS: list[Trial] = []", listed)
    behind = _replaced(behind, 'DIGEST = ""', f'DIGEST = "{table.digest(submission)}"')
    own = _without(submission, "custom_kernel")
    own = _replaced(own, "from task import input_t, output_t\n", "input_t = output_t = object\n")
    head = HEAD.format(board=board.name, gpu=GPUS[board.name][-1])
    text = f"{head}{own.rstrip()}\n\n\n{behind}"
    if FORBIDDEN in text.lower():
        raise table.TableError(f'the letters "{FORBIDDEN}" stand in it, which boards refuse')
    return text


def _source(trial: paste.Trial) -> str:
    parts = table.problem_source(trial.problem), table.config_source(trial.config)
    return f"Trial({trial.number}, {trial.name!r}, {', '.join(parts)})"


def _code_of_paste() -> str:
    """paste.py without its docstring, and without what is above it in survey.py."""
    text = Path(paste.__file__).read_text()
    lines = text.split("\n")
    for node in reversed(ast.parse(text).body):
        is_docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        from_here = isinstance(node, ast.ImportFrom) and node.module in ("submission", "__future__")
        if is_docstring or from_here:
            del lines[node.lineno - 1 : node.end_lineno]
    return "\n".join(lines).lstrip("\n")


def _without(text: str, name: str) -> str:
    """A text without its function of that name."""
    lines = text.split("\n")
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            del lines[node.lineno - 1 : node.end_lineno]
            return "\n".join(lines)
    raise table.TableError(f"no function {name}: expected a submission.py of this checkout")


def _replaced(text: str, old: str, new: str) -> str:
    if text.count(old) != 1:
        raise table.TableError(f"expected one {old.strip()!r}, found {text.count(old)}")
    return text.replace(old, new)


# ---- the command ---------------------------------------------------------------------------------


def main(argv: Sequence[str]) -> int:
    parser = Parser("python -m lab survey", __doc__)
    parser.add_argument("problem", help="gemv, gemm, dual or group: a board has one problem")
    parser.add_argument("--case", action="append", metavar="TEXT", help="a shape of your own")
    parser.add_argument("--after", action="append", default=[], type=Path, metavar="OUT.txt",
                        help="what a survey before said; repeatable")  # fmt: skip
    parser.add_argument("--count", type=int, default=MAX_CANDIDATES, metavar="N",
                        help="configurations a shape (default %(default)s)")  # fmt: skip
    parser.add_argument("--out", type=Path, default=Path("survey.py"), metavar="FILE.py",
                        help="the file to write (default %(default)s)")  # fmt: skip
    parser.add_argument("--submission", type=Path, default=ROOT / "submission.py",
                        metavar="FILE.py", help="the kernel (default: the checkout's)")  # fmt: skip
    options = parser.parse_args(argv)
    try:
        board = find_problem(options.problem)
        shapes = _shapes(board, options.case)
        text = options.submission.read_text(encoding="utf-8")
        judged = [one for path in options.after for one in read(path, text)]
        found = trials(shapes, judged, options.count)
        if not found:
            print("nothing is left to try: python -m lab measured OUT.txt --apply")
            return 0
        kept = that_fit(found)
        options.out.write_text(compose(text, kept, board), encoding="utf-8")
    except (OSError, ValueError, said.SaidError, table.TableError) as error:
        parser.error(str(error))
    left = f"; {len(found) - len(kept)} more would not fit a report" if kept != found else ""
    print(f"{options.out}: {len(kept)} trials of {board.name}{left}")
    return 0


def _shapes(board: Board, texts: Sequence[str] | None) -> list[tuple[str, Problem]]:
    """The cases, each with what the kernel makes of it; the benchmarks' where none is given."""
    given = [cases.parse(text) for text in texts] if texts else [b.args for b in board.benchmarks]
    checked = [cases.make_case(board, args) for args in given]
    named = [f"{board.short} {re.sub(r'; seed: .*', '', case.text)}" for case in checked]
    return [(name, said.problem_of(name)) for name in named]


def read(path: Path, submission: str) -> list[Judged]:
    """What a file says, of this submission. Raises OSError, SaidError."""
    judged = said.read(path.read_text(encoding="utf-8"), str(path))
    now = table.digest(submission)
    if others := {one.digest for one in judged} - {now, ""}:
        raise said.SaidError(f"{path} is of another submission.py ({others.pop()}, now {now})")
    return judged


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
