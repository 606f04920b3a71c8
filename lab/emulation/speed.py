"""CPU seconds and megabytes that the emulation takes, of this source tree and of another beside it.

python -m lab emulation_speed --against REVISION|FOLDER [--jobs N]
    all official test cases as `eval.py test` does them: two checked calls
python -m lab emulation_speed --against REVISION|FOLDER "dual m: 1536; n: 512; k: 7168; l: 1"
    chosen cases
python -m lab emulation_speed --against REVISION|FOLDER --schedules early,late,random:1
    ... under these orders, too
python -m lab emulation_speed --against REVISION|FOLDER --times
    modelled times of the benchmark shapes

Cases run in one tree and then in the other, in turns, so that a machine that becomes slow is slow
for both. Both run the same program, the submission.py of the other tree, unless --own says that
each runs its own. A line a case:

    CPU s     of the process of the case, its compilers included
    1st, 2nd  CPU seconds of the launches of the first and the second call
    us        CPU microseconds of both calls' launches a warp instruction
    MB        peak memory of the process
    ratio     of this tree over the other; where a column is one number, it is the ratio
    same      yes: results are equal to the last bit, or modelled times are, and what the checker
              says is, word for word; bits: the results alone, as in trees with different rules

Nothing here is a time of the kernel. Exit status 1 if a case fails or something is not the same.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import subprocess
import sys
import tarfile
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from b200.command_line import Parser
from harness.evaluator import cases
from lab.emulation import run as emulation_run
from task import PROBLEMS, find_problem

HERE = Path(__file__).parents[2]
NOTHING = "launched no kernel, so nothing is compared"
MODELLED = ("time_us", "low_us", "high_us", "dram_bytes", "l2_bytes", "phases")
OF_A_TREE = ("CPU s", "1st", "2nd", "us", "MB")
MOST_WORDS = 3  # lines that are shown of what is said in one tree only
BOTH = ("CPU s", "us")  # columns that are shown for each tree, besides the ratio
RUN = "import runpy, sys; runpy.run_path(sys.argv[1], run_name='__main__')"  # this tree's file
Answer = dict[str, Any]


class Tree:
    """A source tree with a process that runs cases in it (lab/emulation/run.py)."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, "-c", RUN, emulation_run.__file__],
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def run(self, job: dict[str, Any]) -> Answer:
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps(job) + "\n")
            self.process.stdin.flush()
            return json.loads(self.process.stdout.readline())
        except (OSError, ValueError):
            return {"error": f"the emulator of {self.folder} cannot be started"}

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


@dataclass(frozen=True)
class Trial:
    """A case under one order of events (None: the plain one), or its modelled time."""

    case: cases.Case
    schedule: str | None
    timed: bool

    @property
    def name(self) -> str:
        order = f"{self.schedule} " if self.schedule else ""
        return f"{order}{self.case.problem.short} {self.case.text}"

    def job(self, submission: Path) -> dict[str, Any]:
        return {
            "problem": self.case.problem.name,
            "args": dict(self.case.args),
            "submission": str(submission),
            "schedule": self.schedule,
            "timed": self.timed,
        }


class Trees:
    """The trees that are compared, each with a process for each thread that runs cases."""

    def __init__(self, folders: Sequence[Path], own: bool):
        self.folders, self.own = folders, own
        self.mine = threading.local()
        self.all: list[Tree] = []

    def run(self, trial: Trial, turn: int) -> list[Answer]:
        """What a trial gives in each tree; in an odd turn the last one begins."""
        if not hasattr(self.mine, "trees"):
            self.mine.trees = [Tree(folder) for folder in self.folders]
            self.all += self.mine.trees
        found: dict[int, Answer] = {}
        order = list(enumerate(self.mine.trees))
        for i, tree in order[::-1] if turn % 2 else order:
            program = tree.folder if self.own else self.folders[-1]
            found[i] = tree.run(trial.job(program / "submission.py"))
        return [found[i] for i in range(len(self.folders))]

    def close(self) -> None:
        for tree in self.all:
            tree.close()


@contextlib.contextmanager
def folder_of(what: str) -> Iterator[Path]:
    """A source tree: a folder, or a revision of this repository. Raises ValueError."""
    if Path(what).is_dir():
        yield Path(what).resolve()
        return
    archive = subprocess.run(["git", "archive", what], cwd=HERE, capture_output=True)
    if archive.returncode:
        raise ValueError(
            f"--against: expected a folder or a revision of {HERE}, found {what!r}:"
            f" {archive.stderr.decode().strip()}"
        )
    with tempfile.TemporaryDirectory(prefix="tree-") as folder:
        with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
            tar.extractall(folder)
        yield Path(folder)


def numbers(answer: Answer) -> dict[str, float]:
    """The columns of a tree; nan where a case did not end."""
    found: dict[str, float] = dict.fromkeys(OF_A_TREE, math.nan)
    if answer["error"]:
        return found
    found |= {"CPU s": answer["seconds"], "MB": answer["peak_mb"]}
    calls = answer.get("launches", [])
    for name, launches in zip(("1st", "2nd"), calls):
        found[name] = sum(seconds for seconds, _ in launches)
    executed = sum(count for launches in calls for _, count in launches)
    if executed:
        found["us"] = 1e6 * (found["1st"] + found["2nd"]) / executed
    return found


def launched_nothing(answer: Answer) -> bool:
    """Whether a case that ended has launched no kernel: none of the emulation is compared then."""
    if "modelled" in answer:
        return answer["modelled"] is None
    return not any(answer["launches"])


def differences(answers: Sequence[Answer]) -> list[str]:
    """What is not the same in two trees; errors of each, too."""
    errors = [answer["error"].strip() for answer in answers if answer["error"]]
    if not errors and any(map(launched_nothing, answers)):
        errors = [NOTHING]
    if errors or len(answers) == 1:
        return errors
    mine, other = answers
    if "modelled" in mine:
        return other_times(mine["modelled"] or {}, other["modelled"] or {})
    found = [] if mine["bits"] == other["bits"] else ["other bits"]
    return found + other_words(mine["said"].splitlines(), other["said"].splitlines())


def same_bits(answers: Sequence[Answer]) -> bool:
    """Whether results are there, and the same in both trees."""
    first, *others = (answer.get("bits") for answer in answers)
    return first is not None and all(first == other for other in others)


def other_times(mine: dict[str, Any], other: dict[str, Any]) -> list[str]:
    return [
        f"{key}: {mine.get(key)}, other {other.get(key)}"
        for key in MODELLED
        if mine.get(key) != other.get(key)
    ]


def other_words(mine: Sequence[str], other: Sequence[str]) -> list[str]:
    """The first lines that one of two reports has and the other has not."""
    found = [f"only this tree says: {line.strip()}" for line in mine if line not in other]
    found += [f"only the other says: {line.strip()}" for line in other if line not in mine]
    if not found and mine != other:
        found = ["the same findings in another order"]
    more = len(found) - MOST_WORDS
    return found[:MOST_WORDS] + ([f"... {more} more lines"] if more > 0 else [])


def ratio(one: float, other: float) -> float:
    return one / other if other else math.nan


def cells(column: str, trees: Sequence[dict[str, float]]) -> list[float]:
    """What is shown of a column: numbers of each tree, the ratio, or both."""
    values = [tree[column] for tree in trees]
    if len(values) == 1:
        return values
    return [*values, ratio(*values)] if column in BOTH else [ratio(*values)]


def line(name: str, trees: Sequence[dict[str, float]], note: str) -> str:
    shown = (cells(column, trees) for column in OF_A_TREE)
    parts = (" ".join(f"{v:7.2f}" if math.isfinite(v) else " " * 7 for v in c) for c in shown)
    return f"{name[:56]:56} | {' | '.join(parts)} | {note}"


def heading(trees: int) -> str:
    parts = []
    for column in OF_A_TREE:
        names = [column, "other", "ratio"] if trees == 2 and column in BOTH else [column]
        parts.append(" ".join(f"{n:>7}" for n in names))
    return f"{'case':56} | {' | '.join(parts)} | {'same' if trees == 2 else ''}"


def total(rows: Sequence[list[dict[str, float]]]) -> list[dict[str, float]]:
    """Sums of seconds of each tree, its greatest memory, its mean microseconds a warp
    instruction weighted by what is executed.
    """
    found = []
    for tree in zip(*rows):
        sums = {c: math.fsum(row[c] for row in tree) for c in ("CPU s", "1st", "2nd")}
        executed = math.fsum((row["1st"] + row["2nd"]) / row["us"] for row in tree)
        spent = sums["1st"] + sums["2nd"]
        found.append(sums | {"us": spent / executed, "MB": max(row["MB"] for row in tree)})
    return found


def chosen(texts: Sequence[str], timed: bool) -> list[cases.Case]:
    """Cases given as `PROBLEM CASE`, or all official ones. Raises ValueError."""
    if not texts:
        mode = "benchmark" if timed else "test"
        return [case for p in PROBLEMS.values() for case in cases.official(p, mode)]
    found = []
    for text in texts:
        problem, _, sizes = text.partition(" ")
        found.append(cases.make_case(find_problem(problem), cases.parse(sizes)))
    return found


def main(argv: Sequence[str]) -> int:
    parser = Parser("python -m lab emulation_speed", __doc__)
    parser.add_argument("case", nargs="*", help="PROBLEM and a line of a case file; all if none")
    parser.add_argument("--against", metavar="REVISION|FOLDER", help="the other tree")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="cases at a time (1)")
    parser.add_argument("--schedules", default="", metavar="A,B", help="as --schedule of eval.py")
    parser.add_argument("--times", action="store_true", help="modelled times in place of results")
    parser.add_argument("--own", action="store_true", help="each tree runs its own submission.py")
    arguments = parser.parse_args(argv)
    schedules = [None, *filter(None, arguments.schedules.split(","))]
    with contextlib.ExitStack() as stack:
        try:
            found = chosen(arguments.case, arguments.times)
            folders = [HERE]
            if arguments.against:
                folders.append(stack.enter_context(folder_of(arguments.against)))
        except ValueError as error:
            parser.error(str(error))
        trials = [
            Trial(case, schedule, arguments.times)
            for schedule in (schedules if not arguments.times else [None])
            for case in found
        ]
        trees = Trees(folders, arguments.own)
        stack.callback(trees.close)
        with ThreadPoolExecutor(arguments.jobs) as pool:
            return report(trials, pool.map(trees.run, trials, range(len(trials))), len(folders))


def report(trials: Sequence[Trial], found: Iterator[list[Answer]], trees: int) -> int:
    """Prints a line a trial as it comes, and the sum of those that ended. Returns the status."""
    print(heading(trees), flush=True)
    rows: list[list[dict[str, float]]] = []
    same: Counter[str] = Counter()
    for trial, answers in zip(trials, found):
        row, notes = [numbers(answer) for answer in answers], differences(answers)
        ended = not any(answer["error"] for answer in answers)
        rows += [row] if ended else []
        verdict = "yes" if not notes else "bits" if same_bits(answers) else "NO"
        same[verdict] += 1
        print(line(trial.name, row, verdict if trees == 2 or notes else ""), flush=True)
        for note in notes:
            print(f"    {note}", flush=True)
    if rows:
        said = ", ".join(f"{verdict}: {n}" for verdict, n in same.items()) if trees == 2 else ""
        print(line(f"sum of {len(rows)}", total(rows), said))
    return 0 if set(same) <= {"yes"} else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
