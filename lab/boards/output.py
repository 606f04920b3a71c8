"""Reads measured times out of what a board gives back.

Three forms are public. Repository, commit and file of each:

* A run's report, as popcorn-cli prints and saves it (`--output`): under a case a line of its mean
  and a line of the best and the worst; where a run is awaited in the background, only the geometric
  mean. gpu-mode/kernelbot 4bdd839, src/libkernelbot/report.py (make_benchmark_log) and utils.py
  (format_time); gpu-mode/popcorn-cli 886932d, src/service/mod.rs (leaderboard_score_summary).
* The runner's own lines, `benchmark.0.mean: 19012.3`, in nanoseconds, also as JSON: kernelbot
  4bdd839, src/libkernelbot/run_eval.py; gpu-mode/reference-kernels f83cb92,
  problems/nvidia/eval_better_bench.py.
* `ncu-details.csv` of a hosted profile, in `profile.INDEX-CASE/`: popcorn-cli 886932d,
  docs/profiling.md and src/service/mod.rs; kernelbot pull request 530. Its columns are those of
  `ncu --csv --page details`.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from harness.evaluator.cases import CaseError, parse

UNITS = {"ns": 1e-3, "us": 1.0, "µs": 1.0, "μs": 1.0, "ms": 1e3, "s": 1e6}  # in us
UNITS |= {"nsecond": 1e-3, "usecond": 1.0, "msecond": 1e3, "second": 1e6}  # of Nsight Compute
MEAN, BEST, WORST, FAILED = "⏱", "⚡", "🐌", "❌"
COLUMNS = ("ID", "Kernel Name", "Metric Name", "Metric Unit", "Metric Value")
DURATION = ("Duration", "gpu__time_duration.sum")  # on the details page; raw
NUMBER = r"[\d.]+(?:e[-+]?\d+)?"
_TIME = re.compile(rf"({NUMBER})(?: ± ({NUMBER}))? ([^\W\d_]+)")
_GEOMEAN = re.compile(rf"Geomean score(?: \((\w+)\))? on (.+?): ({NUMBER}) s")
_BOARD = re.compile(r'\\?"leaderboard\\?": \\?"(\w+)\\?"')
_PAIR = re.compile(r'"?benchmark\.(\d+)\.(\w+)\\?"?: *\\?"?([^"\\\n]*)')
_FOLDER = re.compile(r"profile\.\d+-(.+)")


class OutputError(Exception):
    """Text that is not what a board gives back; str() is one line."""


@dataclass(frozen=True)
class Measured:
    """A measured time. case: as in a case file; for a geometric mean "" with the name of its board.
    us: of a call, or of a profile's kernels alone. error_us: of the mean, best_us and worst_us: of
    the repeats; None where they are not told. where: the GPU, "" if it is not told. kernels: of a
    profile, name and us of each launch.
    """

    case: str
    us: float
    error_us: float | None = None
    best_us: float | None = None
    worst_us: float | None = None
    what: str = ""
    where: str = ""
    board: str = ""
    kernels: tuple[tuple[str, float], ...] = ()


def read(path: Path, case: str = "") -> list[Measured]:
    """The times in a file. case: of a profile whose folder does not tell. Raises OutputError."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise OutputError(f"cannot read {path}: {error}") from None
    if '"Metric Name"' in text:
        return [_profile(text, case or _case_of(path.absolute().parent.name), str(path))]
    text = text.replace("\\n", "\n")  # of a report that was saved as JSON
    found = [*_reported(text, str(path)), *_told(text, str(path)), *_means(text)]
    if found:
        return found
    why = f"expected a board's report ({MEAN} under a case), benchmark.0.mean, or ncu-details.csv"
    for line in text.splitlines():
        if FAILED in line:
            why = f"the board says {line.strip(' >')[:200]!r}"
            break
    raise OutputError(f"{path} holds no time: {why}")


# --- a report -------------------------------------------------------------------------------------
def _reported(text: str, where: str) -> Iterator[Measured]:
    lines = text.splitlines()
    gpu = next(iter(re.findall(r"\* GPU: `([^`]*)`", text)), "")
    section = ""
    for number, line in enumerate(lines, 1):
        if heading := re.match(r"## (.*?):?\s*$", line):
            section = heading[1].lower()
        if not line.strip().startswith(MEAN):
            continue
        case = lines[number - 2].strip("` ") if number > 1 else ""
        _check(case, f"{where}:{number - 1}")
        us, error = _time(line.strip().removeprefix(MEAN), f"{where}:{number}")
        best = worst = None
        ends = lines[number].strip() if number < len(lines) else ""
        if ends.startswith(BEST) and WORST in ends:
            low, high = ends.removeprefix(BEST).split(WORST, 1)
            (best, _), (worst, _) = (_time(x, f"{where}:{number + 1}") for x in (low, high))
        yield Measured(case, us, error, best, worst, section, gpu)


def _time(text: str, where: str) -> tuple[float, float | None]:
    """Microseconds, and those of its error, of "19.0 ± 0.02 µs"."""
    match = _TIME.fullmatch(text.strip())
    if match is None or match[3] not in UNITS:
        raise OutputError(f"{where}: {text.strip()[:80]!r} is no time; expected '19.0 ± 0.02 µs'")
    scale = UNITS[match[3]]
    return float(match[1]) * scale, float(match[2]) * scale if match[2] else None


def _check(case: str, where: str) -> None:
    try:
        parse(case)
    except CaseError as error:
        raise OutputError(f"{where}: {error}") from None


def _means(text: str) -> Iterator[Measured]:
    board = next(iter(_BOARD.findall(text)), "")
    for kind, runner, seconds in _GEOMEAN.findall(text):
        what = f"geometric mean{f', {kind}' if kind else ''}"
        yield Measured("", float(seconds) * 1e6, what=what, where=runner, board=board)


# --- the runner's lines ---------------------------------------------------------------------------
def _told(text: str, where: str) -> Iterator[Measured]:
    cases: dict[int, dict[str, str]] = {}
    for index, key, value in _PAIR.findall(text):
        cases.setdefault(int(index), {})[key] = value.strip()
    for index, pairs in sorted(cases.items()):
        if "mean" not in pairs:
            continue
        name = f"{where}: benchmark.{index}"
        _check(pairs.get("spec", ""), f"{name}.spec")
        keys = ("mean", "err", "best", "worst")
        mean, *rest = (_nanoseconds(pairs.get(key), f"{name}.{key}") for key in keys)
        if mean is None:
            raise OutputError(f"{name}.mean holds no number")
        yield Measured(pairs["spec"], mean, *rest, what="benchmark")


def _nanoseconds(text: str | None, where: str) -> float | None:
    if text is None:
        return None
    try:
        return float(text) * UNITS["ns"]
    except ValueError:
        raise OutputError(f"{where}: {text[:80]!r} is no number of nanoseconds") from None


# --- a profile ------------------------------------------------------------------------------------
def _profile(text: str, case: str, where: str) -> Measured:
    lines = text.splitlines(keepends=True)
    start = next(i for i, line in enumerate(lines) if '"Metric Name"' in line)
    rows = csv.DictReader(lines[start:])
    if missing := [name for name in COLUMNS if name not in (rows.fieldnames or ())]:
        raise OutputError(f"{where}: ncu's details have no column {missing[0]!r}")
    kernels: dict[str, tuple[str, float]] = {}
    for number, row in enumerate(rows, start + 2):
        if row["Metric Name"] in DURATION:
            us = _duration(row["Metric Value"], row["Metric Unit"], f"{where}:{number}")
            kernels[row["ID"]] = row["Kernel Name"], us
    if not kernels:
        raise OutputError(f"{where}: ncu's details have no {DURATION[0]!r} of a kernel")
    if not case:
        raise OutputError(f"{where}: no folder profile.INDEX-CASE tells the case: pass --case TEXT")
    _check(case, where)
    total = sum(us for _, us in kernels.values())
    return Measured(case, total, what="profile", kernels=tuple(kernels.values()))


def _duration(value: str, unit: str, where: str) -> float:
    try:
        us = float(value.replace(",", "")) * UNITS[unit]
    except (AttributeError, KeyError, ValueError):
        us = float("nan")
    if not us > 0:
        raise OutputError(f"{where}: the duration {value!r} {unit!r} is no time")
    return us


def _case_of(folder: str) -> str:
    """The case in the name of a profile's folder: "profile.0-m-128-k-256-l-1-seed-1111"; "" if
    there is none. Of a list the numbers follow each other.
    """
    match = _FOLDER.fullmatch(folder)
    pairs = re.findall(r"([a-z]+)((?:[-_]+\d+)+)", match[1]) if match else []
    numbers = {key: [int(n) for n in re.findall(r"\d+", text)] for key, text in pairs}
    return "; ".join(
        f"{key}: {values if 'g' in numbers and key not in ('g', 'seed') else values[0]}"
        for key, values in numbers.items()
    )
