"""What a survey said, read back: lines of survey.py in a text, or JSON lines of `eval.py tune`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from harness.evaluator import cases
from lab.survey.table import DEFAULT
from lab.tuning.shapes import form
from submission import Config, Problem
from task import find_problem

BEGIN = re.compile(r"survey: begin: (.+); [\d.]+; (\d{4}-\d\d-\d\d); submission (\w+); DSL \S+; ")
TRY = re.compile(r"survey: try (\d+) (.+)")
VERDICT = re.compile(r"survey: (ok|differs|failed|faulted|hung) (\d+):(.*)")
TIMES = re.compile(r"([\d.]+) us, plainest ([\d.]+)")
CUT = re.compile(r"\[\.\.\.\] \d+ lines omitted")  # by a board, which shows the first 16 KB
OF_STATUS = {"pass": "ok", "fail": "differs", "error": "failed", "timeout": "hung"}  # of `tune`


class SaidError(Exception):
    """Text that no survey has said; str() is one line."""


@dataclass(frozen=True)
class Judged:
    """A configuration that was run. verdict: "ok", "differs" from the plainest, "failed" with an
    exception, "faulted" and took the GPU with it, or "hung". us: of a call, plain_us: of the
    plainest configuration, timed by turns; None where not told. digest: of the submission that ran,
    "" where not told.
    """

    case: str  # the problem, and the case as in a case file
    problem: Problem
    config: Config
    verdict: str
    us: float | None
    plain_us: float | None
    detail: str
    device: str
    day: str
    digest: str

    @property
    def score(self) -> float:
        """The less the better, of one problem: surveys are compared by the plainest's times."""
        assert self.us is not None
        return self.us / self.plain_us if self.plain_us else self.us


def is_survey(text: str) -> bool:
    return "survey: begin: " in text or bool(list(_tuned(text)))


def read(text: str, where: str) -> list[Judged]:
    """All that was judged, in order; a configuration that is judged again stands there again.
    Raises SaidError.
    """
    found = [*_surveyed(text.replace("\\n", "\n"), where), *_measured(text, where)]
    if not found:
        raise SaidError(f"{where}: no plan was judged")
    return found


# ---- lines of survey.py --------------------------------------------------------------------------


def _surveyed(text: str, where: str) -> Iterator[Judged]:
    head: tuple[str, ...] = ()
    tried: Judged | None = None
    number = ""
    for line in text.splitlines():
        if begin := BEGIN.search(line):
            if tried:
                yield tried
            tried, head = None, begin.groups()
        elif CUT.search(line):
            tried = None  # what became of it is among the lines that are not there
        elif one := TRY.search(line):
            if tried:
                yield tried
            if not head:
                raise SaidError(f"{where}: a trial stands before any 'survey: begin:'")
            number, tried = one[1], _trial(one[2].strip("`\r "), head, where)
        elif (verdict := VERDICT.search(line)) and tried and verdict[2] == number:
            yield _with_verdict(tried, verdict[1], verdict[3].strip("`\r "))
            tried = None
    if tried:
        yield tried


def _trial(name: str, head: tuple[str, ...], where: str) -> Judged:
    """One that was named, as if nothing came behind it."""
    device, day, digest = head
    case, bar, told = name.partition(" | ")
    if not bar:
        raise SaidError(f"{where}: {name[:100]!r} is no 'PROBLEM CASE | CONFIGURATION'")
    detail = "nothing came behind its name"
    problem, config = problem_of(case, where), config_of(told, where)
    return Judged(case, problem, config, "hung", None, None, detail, device, day, digest)


def problem_of(case: str, where: str = "case") -> Problem:
    """Of "gemm m: 128; n: 7168; k: 2048; l: 1". Raises SaidError."""
    short, _, text = case.partition(" ")
    try:
        problem = find_problem(short)
        return form(problem, cases.make_case(problem, cases.parse(text)).args)
    except ValueError as error:
        raise SaidError(f"{where}: {error}") from None


def config_of(told: str, where: str = "configuration") -> Config:
    """Of "cta_group=2 cluster_n=2". Raises SaidError."""
    known: dict[str, int | bool] = vars(Config())
    fields: dict[str, int | bool] = {}
    for pair in [] if told == DEFAULT else told.split():
        name, _, value = pair.partition("=")
        if name not in known or not re.fullmatch(r"True|False|\d+", value):
            raise SaidError(f"{where}: {pair!r} is no field of a configuration")
        fields[name] = int(value) if value.isdigit() else value == "True"
    return Config(**fields)  # type: ignore[arg-type]


def _with_verdict(tried: Judged, verdict: str, detail: str) -> Judged:
    times = TIMES.fullmatch(detail.strip())
    us, plain_us = (float(times[1]), float(times[2])) if times else (None, None)
    return replace(tried, verdict=verdict, us=us, plain_us=plain_us, detail=detail.strip())


# ---- JSON lines of `eval.py tune` ----------------------------------------------------------------


def _tuned(text: str) -> Iterator[dict]:
    for line in text.splitlines():
        if line.startswith("{") and '"tune"' in line:
            try:
                record = json.loads(line)
            except ValueError:
                continue
            if record.get("mode") == "tune":
                yield record


def _measured(text: str, where: str) -> Iterator[Judged]:
    for record in _tuned(text):
        case = f"{find_problem(record['problem']).short} {record['case']}"
        problem = problem_of(case, where)
        for tried in record["tried"]:
            verdict = OF_STATUS.get(tried["status"])
            if verdict is None:
                continue
            if verdict == "ok" and record.get("kind") != "measured":
                raise SaidError(f"{where}: the times are modelled, of no GPU")
            us = tried["time_us"]
            config = Config(**tried["config"])
            at = record["device"], record["day"], ""
            yield Judged(case, problem, config, verdict, us, None, tried["status"], *at)


# ---- what it says of a problem -------------------------------------------------------------------


def latest(judged: Iterable[Judged]) -> dict[Problem, dict[Config, Judged]]:
    """The last word on each configuration of each problem."""
    found: dict[Problem, dict[Config, Judged]] = {}
    for one in judged:
        found.setdefault(one.problem, {})[one.config] = one
    return found
