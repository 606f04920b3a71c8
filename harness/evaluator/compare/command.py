"""Several submissions on the same cases, side by side.

    python eval.py compare A.py B.py gemm                        the benchmark cases of one problem
    python eval.py compare A.py B.py gemm --case "m: 128; n: 256; k: 256; l: 1" --plot both.png

Each case of each submission runs in a process of its own, as by `eval.py leaderboard`: its results
are checked, in the emulator with the checker on. A wrong or crashing one is reported and the others
go on. One whose results are right, but in which the checker finds something, is timed all the same
and counts as failed. In the emulator a time is modelled; on a GPU it is measured in --rounds rounds
in which the submissions take turns, and the median of the rounds counts. --times in the emulator
leaves out what takes longest: results (`eval.py test` checks them). A range in the emulator is the
clock's errors on published times of kernels of that kind; whether a difference of two is more than
the clock can tell is said by pairs of published versions (harness/evaluator/compare/confidence.py).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from b200 import pictures
from b200.clock.strip import Strip, from_json
from b200.command_line import UNWRITTEN, Parser, unwritable
from b200.program.names import from_here
from harness.evaluator import cases, devices
from harness.evaluator.arguments import TIMEOUT_EMULATED
from harness.evaluator.case.job import GOOD
from harness.evaluator.cases import Case, CaseError
from harness.evaluator.compare import confidence, picture, side_by_side
from harness.evaluator.devices import Device
from harness.evaluator.quantities import KERNEL_ALONE
from task import INPUT_KINDS, PROBLEMS, Problem, find_problem

INTERRUPTED = 130  # as a shell reports SIGINT
ROUNDS = 3  # on a GPU
SHOWN = 2  # lines of a message


class CompareError(Exception):
    """Arguments that make no sense, or something missing; str() is one line."""


@dataclass
class Result:
    """What became of one submission on one case, over all rounds.

    records: the JSON records of `eval.py leaderboard --json`, one a round.
    """

    name: str
    case: Case
    records: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])

    @property
    def failed(self) -> dict[str, Any] | None:
        """The first record in which something is wrong."""
        return next((r for r in self.records if r["status"] not in GOOD), None)

    @property
    def time_us(self) -> float | None:
        """The median of the rounds; None if a round failed or was not timed."""
        times = [r["time_us"] for r in self.records if r.get("time_us") is not None]
        return statistics.median(times) if times and len(times) == len(self.records) else None

    def range_us(self) -> tuple[float, float] | None:
        """The range by the clock's errors, or by the rounds."""
        if self.time_us is None:
            return None
        return min(r["low_us"] for r in self.records), max(r["high_us"] for r in self.records)

    @property
    def policies(self) -> list[str]:
        """The policies of the caches that it asks for, which the clock does not time."""
        return self.records[-1].get("policies") or []

    def _trust(self, first: Result) -> str | None:
        modelled = self.records[-1].get("kind") == "modelled"
        against = ratio(self, first)
        if not modelled or against in (None, 1.0):
            return None
        return other_policies(self, first) or str(confidence.of(against))

    def fields(self, first: Result) -> dict[str, Any]:
        """The JSON object of this result. first: that of the first submission on the same case."""
        last = self.failed or self.records[-1]
        low, high = self.range_us() or (None, None)
        kept = ("device", "status", "message", "kind", "floor_us", "sol_us", "best_known_us")
        kept += ("bound_by", "kernel_kind", "range_from", "phases", "dram_bytes", "l2_bytes")
        kept += ("policies", "made_by")
        return {
            "problem": self.case.problem.name,
            "case": self.case.text,
            "submission": self.name,
            **{key: last.get(key) for key in kept},
            "time_us": self.time_us,
            "low_us": low,
            "high_us": high,
            "rounds": len(self.records),
            "ratio": ratio(self, first),
            "trust": self._trust(first),
        }


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = Parser("eval.py compare", __doc__, CompareError)
    parser.add_argument(
        "what", nargs="+", metavar="FILE.py|PROBLEM", help="submissions, the first one is the base"
    )
    parser.add_argument(
        "--problem", metavar="FILE.py", help="a problem of your own (docs/own-problem.md)"
    )
    parser.add_argument("--case", action="append", metavar="TEXT", help="a case; repeatable")
    parser.add_argument("--cases", metavar="FILE", help="a case file")
    parser.add_argument(
        "--inputs", choices=INPUT_KINDS, default="official", help="values (default official)"
    )
    parser.add_argument(
        "--device", choices=devices.CHOICES, default="auto", help="where it runs (default auto)"
    )
    parser.add_argument(
        "--rounds", type=int, default=ROUNDS, help="on a GPU: times each is timed (default 3)"
    )
    parser.add_argument(
        "--times", action="store_true", help="emulator: model times only, check nothing"
    )
    parser.add_argument(
        "--timeout",
        type=float,
        metavar="S",
        help=f"seconds that a case may take (default: in the emulator {TIMEOUT_EMULATED:g})",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object a result on stdout")
    parser.add_argument("--plot", metavar="FILE", help="a picture: times, phases, timelines")
    arguments = parser.parse_args(argv)
    arguments.files = [name for name in arguments.what if name.endswith(".py")]
    names = [name for name in arguments.what if not name.endswith(".py")]
    for name in arguments.files:
        if not Path(name).is_file():
            parser.error(f"{name} is not a file")
    if len(arguments.files) < 2:
        hint = "; eval.py benchmark --submission FILE.py times one" if arguments.files else ""
        got = len(arguments.files) or "none"
        parser.error(f"expected two or more submissions (FILE.py), got {got}{hint}")
    if arguments.problem and names:
        parser.error(f"{names[0]} and --problem {arguments.problem}: expected one problem")
    if len(names) != 1 and not arguments.problem:
        known = ", ".join(p.short for p in PROBLEMS.values())
        parser.error(f"expected one problem ({known}), got {', '.join(names) or 'none'}")
    if arguments.rounds < 1:
        parser.error(f"--rounds must be positive, got {arguments.rounds}")
    arguments.own = arguments.problem
    try:
        arguments.problem = _own(arguments) if arguments.own else find_problem(names[0])
    except ValueError as error:
        parser.error(str(error))
    return arguments


def _own(arguments: argparse.Namespace) -> Problem:
    """The problem of a file. ValueError for a file that is none."""
    from harness.own.problem import read

    return read(Path(arguments.own))


def _select(arguments: argparse.Namespace) -> list[Case]:
    lines = list(arguments.case or [])
    if arguments.cases:
        lines += cases.read_lines(Path(arguments.cases))
    if arguments.own:
        from harness.own.problem import cases_of

        return cases_of(arguments.problem, lines, "leaderboard")
    if not lines:
        return cases.official(arguments.problem, "leaderboard")
    return [cases.make_case(arguments.problem, cases.parse(line), line) for line in lines]


def names_of(files: Sequence[str]) -> list[str]:
    """A short name for each file: its own, with as many folders as tell it from the others."""
    paths = [Path(file).resolve() for file in files]
    for count in range(1, max(len(path.parts) for path in paths) + 1):
        names = ["/".join(path.parts[-count:]) for path in paths]
        if len(set(names)) == len(names):
            return names
    return [f"{path.name} ({i + 1})" for i, path in enumerate(paths)]


def run(
    arguments: argparse.Namespace,
    chosen: Sequence[Case],
    device: Device,
    folder: Path | None = None,
) -> list[list[Result]]:
    """Results by case, then by submission. folder: where the emulator puts timelines of the first
    case (side_by_side.strip_file). Raises CaseError and SetupError.
    """
    names = names_of(arguments.files)
    results = [[Result(name, case) for name in names] for case in chosen]

    def add(index: int, records: Sequence[dict[str, Any]]) -> None:
        for row, record in zip(results, records):
            row[index].records.append(record)

    if device.kind == "emulator":
        print(f"compare: {', '.join(names)}", file=sys.stderr, flush=True)
        for index, records in enumerate(side_by_side.emulated(arguments, chosen, device, folder)):
            add(index, records)
        return results
    rounds = arguments.rounds if device.kind == "cuda" else 1
    for turn in range(rounds):
        for index, file in enumerate(arguments.files):
            of = f", round {turn + 1} of {rounds}" if rounds > 1 else ""
            print(f"compare: {names[index]}{of}", file=sys.stderr, flush=True)
            add(index, side_by_side.measured(arguments, file, chosen))
    return results


def ratio(result: Result, first: Result) -> float | None:
    """How much longer than the first submission on the same case."""
    if result.time_us is None or first.time_us is None:
        return None
    return result.time_us / first.time_us


def other_policies(result: Result, first: Result) -> str:
    """Why two modelled times cannot be compared, where policies of the caches differ; else ""."""
    if result.policies == first.policies:
        return ""
    names = (", ".join(each.policies) or "none" for each in (result, first))
    return f"the clock cannot tell: policies of the caches are {' against '.join(names)}"


def table(results: Sequence[Sequence[Result]]) -> str:
    """What a person reads: a block of lines a case, then the geometric means."""
    width = max(len(result.name) for result in results[0])
    lines: list[str] = []
    for row in results:
        lines += ["", f"{row[0].case.problem.name}: {row[0].case.text}"]
        lines.append(
            f"  {'submission':{width}}  result  call us   range             ratio  DRAM MB    L2 MB"
            "  bound by"
        )
        lines += [f"  {_line(result, row[0], width)}" for result in row]
        lines += _phases(row, width)
        lines += _trust(row)
    lines += _means(results, width)
    sources = {r.records[-1].get("range_from"): None for row in results for r in row}
    if shown := [source for source in sources if source]:
        lines += ["", f"ranges: {'; '.join(shown)}"]
    return "\n".join(lines)


def _line(result: Result, first: Result, width: int) -> str:
    failed = result.failed
    said = from_here(str((failed or result.records[-1])["message"])).splitlines()
    message = " | ".join(line.strip() for line in said[:SHOWN])
    message += " ... (`eval.py test` says more)" if len(said) > SHOWN else ""
    if result.time_us is None:
        word = failed["status"].upper() if failed else result.records[-1]["status"]
        return f"{result.name:{width}}  {word:6}  {message}"
    fields = result.fields(first)
    spread = f"{fields['low_us']:.2f} .. {fields['high_us']:.2f}"
    times = f"{result.time_us:7.2f}  {spread:17}"
    compared = f"{fields['ratio']:8.3f}" if fields["ratio"] is not None else " " * 8
    moved = ""
    if fields["dram_bytes"] is not None:
        moved = f" {fields['dram_bytes'] / 1e6:8.1f} {fields['l2_bytes'] / 1e6:8.1f}"
    bound = f"  {fields['bound_by']}" if fields["bound_by"] else ""
    objected = f"\n  {'':{width}}  {message}" if failed else ""
    word = "CHECK" if failed else result.records[-1]["status"]
    return f"{result.name:{width}}  {word:6}  {times} {compared} {moved}{bound}{objected}"


def _phases(row: Sequence[Result], width: int) -> list[str]:
    """Where the time of each kernel goes, a column a phase."""
    timed = [(r, r.records[-1].get("phases")) for r in row if r.time_us is not None]
    names = list(dict.fromkeys(name for _, phases in timed for name, _ in phases or ()))
    if not names:
        return []
    numbered = "; ".join(f"({i + 1}) {n}" for i, n in enumerate(names))
    lines = [f"  {KERNEL_ALONE}, us, median over CTAs: {numbered}"]
    for result, phases in timed:
        found = dict(phases or ())
        columns = "  ".join(f"({i + 1}) {found.get(n, 0.0):6.2f}" for i, n in enumerate(names))
        lines.append(f"  {result.name:{width}}  {columns}")
    return lines


def _trust(row: Sequence[Result]) -> list[str]:
    """Whether the modelled differences from the first are more than the clock can tell."""
    modelled = [r for r in row[1:] if r.records[-1].get("kind") == "modelled"]
    ratios = [(r, ratio(r, row[0])) for r in modelled]
    lines = []
    for result, against in ratios:
        if against is None:
            continue
        band = confidence.of(against)
        said = other_policies(result, row[0]) or f"{band.word} ({band})"
        lines.append(f"  {result.name}, {against - 1:+.1%}: {said}")
    return lines


def _means(results: Sequence[Sequence[Result]], width: int) -> list[str]:
    """The geometric mean over the cases of each submission that passed them all."""
    first = results[0][0].records[-1]
    how = f"measured on {first.get('device')}" if first.get("kind") == "measured" else "modelled"
    lines, base = ["", f"geometric mean of {len(results)} case(s), us, {how}"], None
    for index, result in enumerate(results[0]):
        times = [row[index].time_us for row in results]
        if None in times:
            lines.append(f"  {result.name:{width}}         -  not right or not timed on every case")
            continue
        mean = statistics.geometric_mean(t for t in times if t)
        base = mean if index == 0 else base
        against = f"  {mean / base:.3f} of the first" if base else ""
        lines.append(f"  {result.name:{width}}  {mean:8.2f}{against}")
    return lines


def _strips(folder: Path | None, row: Sequence[Result]) -> list[Strip]:
    """The timelines on the first case, where the emulator wrote them."""
    found = []
    for index, result in enumerate(row if folder else ()):
        if folder and (file := side_by_side.strip_file(folder, index)).is_file():
            strip = from_json(file.read_text())
            found.append(replace(strip, title=f"{result.name}: {strip.title}"))
    return found


def plot(results: Sequence[Sequence[Result]], strips: Sequence[Strip], path: Path) -> None:
    """Write the picture of `--plot`. Raises NoPicture."""
    problem, kind = results[0][0].case.problem.name, results[0][0].records[-1].get("kind")
    rows = {
        row[0].case.text.split("; seed")[0]: [
            picture.Timed(
                result.name,
                result.time_us,
                *(result.range_us() or (0.0, 0.0)),
                ratio(result, row[0]),
                tuple(map(tuple, result.records[-1].get("phases") or ())),
            )
            for result in row
        ]
        for row in results
    }
    picture.plot(rows, strips, path, problem, kind or "not timed")


def main(argv: Sequence[str]) -> int:
    """The command. 0 if every submission passed every case, else 112; 2 for bad arguments."""
    try:
        arguments = _arguments(argv)
        chosen = _select(arguments)
        if arguments.plot:
            pictures.check(Path(arguments.plot))
            if why := unwritable(Path(arguments.plot)):
                raise CompareError(f"--plot: {why}")
        device = devices.resolve(arguments.device)
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name) if arguments.plot else None
            results = run(arguments, chosen, device, folder)
            strips = _strips(folder, results[0])
    except (CompareError, CaseError, devices.SetupError, pictures.NoPicture) as error:
        print(f"eval.py compare: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("eval.py compare: interrupted", file=sys.stderr)
        return INTERRUPTED
    if arguments.json:
        for row in results:
            for result in row:
                print(json.dumps(result.fields(row[0])))
    else:
        print(f"compare on {device.label}\n{table(results)}")
    try:
        if arguments.plot:
            plot(results, strips, Path(arguments.plot))
    except pictures.NoPicture as error:
        print(f"eval.py compare: --plot: {error}", file=sys.stderr)
        return UNWRITTEN
    return 0 if not any(result.failed for row in results for result in row) else 112
