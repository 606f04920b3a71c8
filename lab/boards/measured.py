"""Measured times that a board gives back, beside the modelled ones.

    python -m lab measured REPORT.txt                     of this checkout's submission.py
    python -m lab measured REPORT.txt --submission MINE.py
    python -m lab measured profile.0-.../ncu-details.csv

    python -m lab measured REPORT.txt --ladder v7 >> TIMES.csv      rows for `eval.py ladder`

    python -m lab measured OUT.txt             what a survey chooses, and the rows that it changes
    python -m lab measured OUT.txt --apply     those rows are written into the table of picks

REPORT.txt is what `popcorn submit --no-tui --output REPORT.txt` has saved, or the text of its
window; board_output.py says which forms are read. A time of a board is of a call, and stands beside
the modelled time of a call. A profile's is of the kernels alone. Nsight Compute holds the clock of
the chip at its base and empties the caches, so a profile is slower than a board.

Modelled times of submission.py are those of docs/results/benchmark.jsonl. With --submission the
file is modelled now, on the cases of the report.

OUT.txt is what survey.py of `python -m lab survey` has printed, alone or in a report, or what
`eval.py tune --json` has on a B200. --apply changes the table of picks in submission.py, or in the
file of --submission, and nothing else.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from b200.command_line import Parser
from harness.evaluator import cases
from lab.boards.output import Measured, OutputError, read
from lab.survey import make, outcome, said, table
from lab.survey.said import SaidError
from task import Problem, find_problem

ROOT = Path(__file__).resolve().parents[2]
RECORDS = ROOT / "docs" / "results" / "benchmark.jsonl"


@dataclass(frozen=True)
class Pair:
    """A measured time and the record of `eval.py benchmark --json` of the same case."""

    problem: Problem
    measured: Measured
    record: dict[str, Any]

    @property
    def modelled_us(self) -> float:
        return self.record["kernel_us" if self.measured.kernels else "time_us"]

    @property
    def range_us(self) -> tuple[float, float]:
        """Of the clock's errors on kernels of this kind, which are those of whole calls."""
        scale = self.modelled_us / self.record["time_us"]
        return self.record["low_us"] * scale, self.record["high_us"] * scale

    @property
    def within(self) -> bool:
        low, high = self.range_us
        return low <= self.measured.us <= high


def shape(text: str) -> str:
    """A case without its seed."""
    args = cases.parse(text)
    return cases.format_args({key: value for key, value in args.items() if key != "seed"})


def problem_of(measured: Measured, name: str) -> Problem:
    """name: of a problem, "" where the case or the board is to tell. Raises ValueError."""
    if name or measured.board:
        return find_problem(name or measured.board)
    if not measured.case:
        raise OutputError("a geometric mean belongs to a problem: pass --problem NAME")
    return cases.infer_problem([cases.parse(measured.case)])


def pairs(found: Sequence[Measured], records: Sequence[dict[str, Any]], name: str) -> list[Pair]:
    """Each measured time with its record. Raises OutputError where one has none."""
    by_case = {(r["problem"], shape(r["case"])): r for r in records if r.get("time_us")}
    made = []
    for measured in found:
        problem = problem_of(measured, name)
        record = by_case.get((problem.name, shape(measured.case))) if measured.case else None
        record = record or (None if measured.case else _mean(problem, records))
        if record is None:
            raise OutputError(
                f"no modelled time of {problem.short} {measured.case or 'as a whole'}"
            )
        made.append(Pair(problem, measured, record))
    return made


def _mean(problem: Problem, records: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """The geometric means over the benchmark cases, as a record."""
    own = {shape(r["case"]): r for r in records if r["problem"] == problem.name}
    timed = [own.get(shape(cases.format_args(b.args))) for b in problem.benchmarks]
    kept = [r for r in timed if r is not None and r.get("time_us")]
    if len(kept) < len(problem.benchmarks):
        return None
    keys = ("time_us", "low_us", "high_us")
    means = {key: statistics.geometric_mean(r[key] for r in kept) for key in keys}
    return {**means, "range_from": "the errors of each case's kind"}


def model(
    submission: Path, problem: Problem, texts: Sequence[str], timeout: float
) -> list[dict[str, Any]]:
    """Records of `eval.py benchmark` on some cases. Raises OutputError."""
    command = [sys.executable, str(ROOT / "eval.py"), "benchmark", problem.short, "--json"]
    command += ["--device", "emulator", "--submission", str(submission)]
    command += [option for text in texts for option in ("--case", text)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    records = [json.loads(line) for line in done.stdout.splitlines()]
    wrong = next((r for r in records if not r.get("time_us")), None)
    if wrong or not records:
        said = wrong["message"] if wrong else done.stderr.strip()
        raise OutputError(f"{submission} cannot be modelled: {said.partition(chr(10))[0]}")
    return records


# --- in words -------------------------------------------------------------------------------------
def lines(pair: Pair) -> list[str]:
    measured, record = pair.measured, pair.record
    low, high = pair.range_us
    of = "kernels alone" if measured.kernels else "a call" if measured.case else measured.what
    ratio = pair.modelled_us / measured.us
    verdict = "within the clock's errors" if pair.within else "outside of the clock's errors"
    text = [
        f"{pair.problem.short} {shape(measured.case) if measured.case else 'geometric mean'}",
        f"  measured {measured.us:8.2f} us  {of}{_repeats(measured)}{_where(measured)}",
        f"  modelled {pair.modelled_us:8.2f} us  {low:.2f} .. {high:.2f} by {record['range_from']}",
        f"  modelled over measured {ratio:.2f}: {verdict}",
    ]
    if len(measured.kernels) > 1:
        text += [f"    {us:8.2f} us  {name[:80]}" for name, us in measured.kernels]
    return text


def _repeats(measured: Measured) -> str:
    error = "" if measured.error_us is None else f" ± {measured.error_us:.2f}"
    if measured.best_us is None or measured.worst_us is None:
        return error
    return f"{error}, {measured.best_us:.2f} .. {measured.worst_us:.2f}"


def _where(measured: Measured) -> str:
    told = filter(None, (measured.what if measured.case else "", measured.where))
    return "".join(f", {part}" for part in told)


def as_json(pair: Pair) -> str:
    low, high = pair.range_us
    return json.dumps(
        {
            "problem": pair.problem.name,
            "case": pair.measured.case,
            "what": pair.measured.what,
            "device": pair.measured.where,
            "measured_us": pair.measured.us,
            "modelled_us": pair.modelled_us,
            "low_us": low,
            "high_us": high,
            "within": pair.within,
        }
    )


def _rows(made: Sequence[Pair], version: str) -> list[str]:
    """Rows of a file of published times: of calls on benchmark cases."""
    rows = {}  # of a case that was timed twice the last, which is the ranked run's
    for pair in made:
        shapes = [shape(cases.format_args(b.args)) for b in pair.problem.benchmarks]
        of = shape(pair.measured.case) if pair.measured.case else ""
        if of in shapes and not pair.measured.kernels:
            start = f"{pair.problem.short},{version},{1 + shapes.index(of)}"
            rows[start] = f'{start},{pair.measured.us:g},"{pair.measured.where or "a board"}"'
    return list(rows.values())


# --- the command ----------------------------------------------------------------------------------
def main(argv: Sequence[str]) -> int:
    parser = Parser("python -m lab measured", __doc__)
    parser.add_argument("file", type=Path, nargs="+", metavar="FILE", help="what a board gave back")
    parser.add_argument("--submission", type=Path, metavar="FILE.py", help="model this file")
    parser.add_argument("--problem", default="", help="where the cases do not tell")
    parser.add_argument(
        "--case", default="", metavar="TEXT", help="of a profile outside its folder"
    )
    parser.add_argument("--timeout", type=float, default=1800.0, help="seconds of --submission")
    parser.add_argument("--ladder", metavar="VERSION", help="print rows of a ladder's TIMES.csv")
    parser.add_argument("--json", action="store_true", help="a JSON object a time")
    parser.add_argument("--apply", action="store_true", help="of a survey: write the rows")
    parser.add_argument("--any-gpu", action="store_true", help="apply what no B200 has measured")
    options = parser.parse_args(argv)
    if options.submission and not options.submission.is_file():
        parser.error(f"{options.submission} is not a file")
    if any(_is_survey(path) for path in options.file):
        return survey(parser, options)
    if options.apply or len(options.file) > 1:
        parser.error(f"{options.file[0]} holds no survey: --apply and several files are of surveys")
    try:
        made = _made(options)
    except (OutputError, ValueError, subprocess.TimeoutExpired) as error:
        parser.error(str(error))
    if options.ladder:
        text = _rows(made, options.ladder)
    else:
        text = map(as_json, made) if options.json else (x for pair in made for x in lines(pair))
    print(*text, sep="\n")
    return 0


def _is_survey(path: Path) -> bool:
    try:
        return said.is_survey(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        return False  # another reader says what is wrong with it


def survey(parser: Parser, options: Any) -> int:
    """What surveys choose, as a difference of the table of picks, or written into it."""
    path = options.submission or ROOT / "submission.py"
    try:
        text = path.read_text(encoding="utf-8")
        judged = [one for file in options.file for one in make.read(file, text)]
        rows = outcome.chosen(judged)
        print(*outcome.lines(judged, rows), sep="\n")
        if not options.apply:
            print(outcome.difference(path, rows))
            return 0
        if (odd := outcome.no_b200(rows)) and not options.any_gpu:
            parser.error(f"{odd}: not measured on a B200; --any-gpu writes it all the same")
        outcome.apply(path, rows)
    except (OSError, SaidError, table.TableError) as error:
        parser.error(str(error))
    print(f"{path}: {len(rows)} {'row' if len(rows) == 1 else 'rows'}")
    return 0


def _made(options: Any) -> list[Pair]:
    found = read(options.file[0], options.case)
    if not options.submission:
        records = [json.loads(line) for line in RECORDS.read_text().splitlines()]
        return pairs(found, records, options.problem)
    problem = problem_of(found[0], options.problem)
    texts = list(dict.fromkeys(shape(m.case) for m in found if m.case))
    texts = texts or [cases.format_args(b.args) for b in problem.benchmarks]
    return pairs(found, model(options.submission, problem, texts, options.timeout), problem.name)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
