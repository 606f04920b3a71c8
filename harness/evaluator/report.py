"""What is printed: lines or tables for a person, JSON lines for a program."""

from __future__ import annotations

import json
import re
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from b200.program.names import from_here
from harness.evaluator.case.job import Outcome
from harness.evaluator.cases import Case
from harness.evaluator.devices import Device
from task import Benchmark

LINES_OF_OUTPUT, LONGEST_LINE = 20, 500  # of what a failed case printed

# Lines of a crash's stack that are the harness's own, faulthandler's list of modules, and what the
# DSL says of its own future.
_OURS = re.compile(
    r'  File ".*/(multiprocessing/\w+|pebble/\w+/\w+|harness/(\w+/)*\w+|eval)\.py", line \d+ in '
    r"|Extension modules: "
    r"|.*/(nvidia_cutlass_dsl|cutlass)/.*DeprecationWarning: |  warnings\.warn\("
)


def benchmark_of(case: Case) -> Benchmark | None:
    """The official benchmark of this shape, if there is one."""
    shape = {key: value for key, value in case.args.items() if key != "seed"}
    for benchmark in case.problem.benchmarks:
        if {key: value for key, value in benchmark.args.items() if key != "seed"} == shape:
            return benchmark
    return None


def record(
    case: Case, outcome: Outcome, device: Device, mode: str, made_by: Callable[[], dict[str, str]]
) -> dict[str, Any]:
    """The JSON object of a case. made_by: what a modelled time is made by."""
    fields: dict[str, Any] = {
        "problem": case.problem.name,
        "case": case.text,
        "device": device.name,
        "mode": mode,
        "status": outcome.status,
        "message": outcome.message or outcome.report,
        "seconds": round(outcome.seconds, 3),
    }
    if outcome.incomplete is not None:
        fields |= {
            "checked": "incomplete" if outcome.incomplete else "complete",
            "incomplete": outcome.incomplete,
        }
    if outcome.report:
        fields["report"] = outcome.report
    if outcome.stats:
        fields |= {
            "kind": "measured",
            "time_us": outcome.stats["mean"] / 1e3,
            "low_us": outcome.stats["best"] / 1e3,
            "high_us": outcome.stats["worst"] / 1e3,
            "floor_us": None,  # a timing model's business, as is what the time is bound by
            **_of_board(case),
            "bound_by": None,
        }
    if outcome.modelled:
        names = ("time_us", "apart_us", "low_us", "high_us", "floor_us", "bound_by")
        names += ("kernel_us", "cupti_us", "calls", "parts")
        names += ("kernel_kind", "policies", "range_from", "phases", "dram_bytes", "l2_bytes")
        fields |= {"kind": "modelled", **{name: outcome.modelled[name] for name in names}}
        fields |= {**_of_board(case), "made_by": made_by()}
    return fields


def _of_board(case: Case) -> dict[str, float | None]:
    known = benchmark_of(case)
    us = (known.sol_us, known.best_us) if known else (None, None)
    return dict(zip(("sol_us", "best_known_us"), us))


class JsonReport:
    """One object a line on stdout, and nothing else."""

    stop = False

    def __init__(
        self,
        device: Device,
        mode: str,
        show_output: bool = False,
        made_by: Callable[[], dict[str, str]] = dict,
    ):
        self._device, self._mode = device, mode
        self._show_output, self._made_by = show_output, made_by

    def begin(self, cases: Sequence[Case]) -> None:
        pass

    def add(self, case: Case, outcome: Outcome) -> None:
        found = record(case, outcome, self._device, self._mode, self._made_by)
        print(json.dumps(found), flush=True)
        if self._show_output:
            print_output(outcome.output.splitlines())

    def end(self) -> None:
        pass


def print_output(lines: Sequence[str]) -> None:
    """What a case printed, to stderr; a long line is cut."""
    for line in lines:
        cut = f"{line[:LONGEST_LINE]} ... ({len(line):,} characters)"
        shown = line if len(line) <= LONGEST_LINE else cut
        print("  printed by the case | " + shown, file=sys.stderr, flush=True)


# Columns of a row: heading and width; the last one is as wide as it needs.
STATUS, WALL = ("status", 7), ("wall s", 7)
CASE = ("case", 0)
TIMED = (("SoL us", 7), ("time/SoL", 9), ("best known us", 14))
COLUMNS = {
    "test": (STATUS, WALL, CASE),
    "measured": (STATUS, ("mean us", 9), ("+- err us", 10), ("best us", 9), *TIMED, CASE),
    "modelled": (
        STATUS,
        ("modelled us", 12),
        ("range us", 18),
        *TIMED,
        WALL,
        ("case; kind; bound by", 0),
    ),
    "emulated": (STATUS, WALL, ("peak MB", 9), CASE),
}


def columns_of(mode: str, device: Device) -> str:
    """Which of COLUMNS a mode has on a device."""
    if mode == "test":
        return "test"
    if mode in ("benchmark", "leaderboard") and device.kind == "cuda":
        return "measured"
    if mode in ("benchmark", "leaderboard", "profile") and device.kind == "emulator":
        return "modelled"
    return "emulated"


def row(columns: str, case: Case, outcome: Outcome) -> list[str]:
    """The cells of a case; a missing time is an empty cell."""
    status = outcome.status if outcome.good else outcome.status.upper()
    wall = f"{outcome.seconds:.1f}"
    if columns == "test":
        return [status, wall, case.text]
    if columns == "emulated":
        return [status, wall, f"{outcome.peak_mb:.0f}", case.text]
    if columns == "measured":
        stats = outcome.stats or {}
        us = [stats[name] / 1e3 for name in ("mean", "err", "best") if name in stats]
        times = [f"{value:.3f}" for value in us] or [""] * 3
        return [status, *times, *_known(case, us[0] if us else None), case.text]
    m = outcome.modelled
    if not m:
        return [status, "", "", *_known(case, None), wall, case.text]
    spread = f"{m['low_us']:.2f} .. {m['high_us']:.2f}"
    known = _known(case, m["time_us"])
    what = f"{case.text}; {m['kernel_kind']}; {m['bound_by']}"
    return [status, f"{m['time_us']:.2f}", spread, *known, wall, what]


def _known(case: Case, us: float | None) -> list[str]:
    """Speed of light, a time over it, and the best known time of a benchmark's case."""
    known = benchmark_of(case)
    if known is None:
        return ["", "", ""]
    ratio = "" if us is None else f"{us / known.sol_us:.2f}"
    return [f"{known.sol_us:.3f}", ratio, f"{known.best_us:.2f}"]


class TextReport:
    """For a person: the cases under a heading a problem, then a summary. On a terminal a table a
    problem, else a line a case.
    """

    stop = False

    def __init__(self, device: Device, mode: str, show_output: bool = False):
        self._device, self._mode, self._show_all = device, mode, show_output
        self._columns = columns_of(mode, device)
        self._console = Console(markup=False, highlight=False, emoji=False)
        self._table: Table | None = None
        self._problem = ""
        self._count = 0
        self._done: list[tuple[Case, Outcome]] = []
        self._shown: list[str] = []
        self._since = time.monotonic()

    def begin(self, cases: Sequence[Case]) -> None:
        self._count = len(cases)
        print(
            f"{self._mode} of {len(cases)} {'case' if len(cases) == 1 else 'cases'} on"
            f" {self._device.label}",
            flush=True,
        )

    def add(self, case: Case, outcome: Outcome) -> None:
        self._done.append((case, outcome))
        if case.problem.name != self._problem:
            self._end_table()
            self._problem = case.problem.name
            self._begin_table()
        cells = row(self._columns, case, outcome)
        if self._table is not None:
            colour = "green" if outcome.good else "red"
            self._table.add_row(Text(cells[0], style=colour), *map(Text, cells[1:]))
        else:
            print(self._line(cells))
        self._details(case, outcome)
        sys.stdout.flush()
        if not outcome.good or self._show_all:
            self._show_output(outcome.output)

    def _details(self, case: Case, outcome: Outcome) -> None:
        """What there is to say beside the row; over a table it needs the name of the case."""
        lines = [*outcome.message.splitlines(), *outcome.report.splitlines()]
        if self._mode == "profile" and self._device.kind == "cuda" and outcome.status == "pass":
            lines.append("more: " + ncu_command(case))
        if lines and self._table is not None:
            print(f"{case.problem.short} {case.text}: {outcome.status}")
        for line in lines:
            print("          " + from_here(line))

    def _begin_table(self) -> None:
        headings = COLUMNS[self._columns]
        if not self._console.is_terminal:
            print(f"\n{self._problem}\n" + self._line([heading for heading, _ in headings]))
            return
        self._table = Table(title=self._problem, title_justify="left", box=box.SIMPLE_HEAD)
        for heading, width in headings:
            right = width and heading != "status"
            self._table.add_column(
                heading, justify="right" if right else "left", overflow="fold", no_wrap=bool(width)
            )

    def _end_table(self) -> None:
        if self._table is not None:
            self._console.print(self._table)
            self._table = None

    def _line(self, cells: Sequence[str]) -> str:
        widths = [width for _, width in COLUMNS[self._columns][1:-1]]
        inner = [f"{cell:>{width}}" for cell, width in zip(cells[1:-1], widths)]
        return f"  {cells[0]:7} " + "  ".join([*inner, cells[-1]])

    def _show_output(self, output: str) -> None:
        """What a case printed, unless the case before it printed the same; of a failed one the
        end.
        """
        lines = [line for line in output.splitlines() if not _OURS.match(line)]
        lines = lines if self._show_all else lines[-LINES_OF_OUTPUT:]
        if lines and lines == self._shown:
            lines = ["(as the case before)"]
        else:
            self._shown = lines
        print_output(lines)

    def end(self) -> None:
        self._end_table()
        passed = sum(outcome.good for _, outcome in self._done)
        took = time.monotonic() - self._since
        for name, mean in self._means().items():
            how = "measured on" if self._device.kind == "cuda" else "modelled in the"
            print(f"\n{name}: geometric mean {mean:.3f} us, {how} {self._device.name}")
        sources = dict.fromkeys(o.modelled["range_from"] for _, o in self._done if o.modelled)
        if sources:
            print("\nranges:", "; ".join(sources))
        left = max(0, self._count - len(self._done))  # what is called in one process comes on top
        not_run = f", {left} not finished" if left else ""
        print(
            f"\n{passed} of {len(self._done)} {self._said()}{not_run} in {took:.0f} s on"
            f" {self._device.label}",
            flush=True,
        )

    def _said(self) -> str:
        unchecked = any(outcome.status == "timed" for _, outcome in self._done)
        return "timed, results not checked" if unchecked else "passed"

    def _means(self) -> dict[str, float]:
        """Geometric mean in us of each problem all of whose cases were timed."""
        means = {}
        for name in dict.fromkeys(case.problem.name for case, _ in self._done):
            outcomes = [o for case, o in self._done if case.problem.name == name]
            times = [us for o in outcomes if (us := _microseconds(o))]
            if len(times) == len(outcomes):
                means[name] = statistics.geometric_mean(times)
        return means


def _microseconds(outcome: Outcome) -> float | None:
    """The time that a case was modelled or measured to take."""
    if outcome.modelled:
        return outcome.modelled["time_us"]
    return outcome.stats["mean"] / 1e3 if outcome.stats else None


def ncu_command(case: Case) -> str:
    """The command that profiles this case's one kernel with Nsight Compute."""
    return (
        "POPCORN_NCU=1 ncu --set full --import-source yes --target-processes all --nvtx "
        '--nvtx-include "custom_kernel/" '
        f'python eval.py profile {case.problem.name} --device cuda --case "{case.text}"'
    )
