"""What is printed: lines for a person, JSON lines for a program, progress on stderr."""

from __future__ import annotations

import json
import math
import re
import shutil
import sys
import time
from collections.abc import Sequence
from typing import Any

from harness.cases import Case
from harness.devices import Device
from harness.worker import Outcome
from task import Benchmark

QUIET = 20.0  # seconds between lines of progress where stderr is no terminal
LINES_OF_OUTPUT = 20  # of what a failed case printed

# Lines of a crash's stack that are the harness's own, and faulthandler's list of modules.
_OURS = re.compile(
    r'  File ".*/(multiprocessing/\w+|harness/\w+|eval)\.py", line \d+ in |Extension modules: '
)


def benchmark_of(case: Case) -> Benchmark | None:
    """The official benchmark of this shape, if there is one."""
    shape = {key: value for key, value in case.args.items() if key != "seed"}
    for benchmark in case.problem.benchmarks:
        if {key: value for key, value in benchmark.args.items() if key != "seed"} == shape:
            return benchmark
    return None


def record(case: Case, outcome: Outcome, device: Device, mode: str) -> dict[str, Any]:
    """The JSON object of a case."""
    fields: dict[str, Any] = {
        "problem": case.problem.name,
        "case": case.text,
        "device": device.name,
        "mode": mode,
        "status": outcome.status,
        "message": outcome.message or outcome.report,
        "seconds": round(outcome.seconds, 3),
    }
    if outcome.stats:
        known = benchmark_of(case)
        fields |= {
            "kind": "measured",
            "time_us": outcome.stats["mean"] / 1e3,
            "low_us": outcome.stats["best"] / 1e3,
            "high_us": outcome.stats["worst"] / 1e3,
            "floor_us": None,  # a timing model's business, as is what the time is bound by
            "sol_us": known.sol_us if known else None,
            "best_known_us": known.best_us if known else None,
            "bound_by": None,
        }
    if outcome.modelled:
        known = benchmark_of(case)
        names = ("time_us", "low_us", "high_us", "floor_us", "bound_by")
        names += ("phases", "dram_bytes", "l2_bytes")
        fields |= {"kind": "modelled", **{name: outcome.modelled[name] for name in names}}
        fields |= {
            "sol_us": known.sol_us if known else None,
            "best_known_us": known.best_us if known else None,
        }
    return fields


class JsonReport:
    """One object a line on stdout, and nothing else."""

    def __init__(self, device: Device, mode: str):
        self._device, self._mode = device, mode

    def begin(self, cases: Sequence[Case]) -> None:
        pass

    def add(self, case: Case, outcome: Outcome) -> None:
        print(json.dumps(record(case, outcome, self._device, self._mode)), flush=True)

    def end(self) -> None:
        pass


class TextReport:
    """A line a case under a heading a problem, then a summary."""

    def __init__(self, device: Device, mode: str):
        self._device, self._mode = device, mode
        self._problem = ""
        self._done: list[tuple[Case, Outcome]] = []
        self._shown: list[str] = []
        self._since = time.monotonic()

    def begin(self, cases: Sequence[Case]) -> None:
        print(
            f"{self._mode} of {len(cases)} {'case' if len(cases) == 1 else 'cases'} on"
            f" {self._device.label}",
            flush=True,
        )

    def add(self, case: Case, outcome: Outcome) -> None:
        self._done.append((case, outcome))
        if case.problem.name != self._problem:
            self._problem = case.problem.name
            print(f"\n{self._problem}\n{self._heading()}")
        print(self._line(case, outcome))
        for text in (outcome.message, outcome.report):
            for line in text.splitlines():
                print("          " + line)
        if self._mode == "profile" and self._device.kind == "cuda" and outcome.status == "pass":
            print("          more: " + ncu_command(case))
        sys.stdout.flush()
        if outcome.status != "pass":
            self._show_output(outcome.output)

    def _show_output(self, output: str) -> None:
        """The end of what a failed case printed, unless the case before it printed the same."""
        lines = [line for line in output.splitlines() if not _OURS.match(line)][-LINES_OF_OUTPUT:]
        if lines and lines == self._shown:
            lines = ["(as the case before)"]
        else:
            self._shown = lines
        for line in lines:
            print("  printed by the case | " + line, file=sys.stderr, flush=True)

    def end(self) -> None:
        passed = sum(outcome.status == "pass" for _, outcome in self._done)
        took = time.monotonic() - self._since
        for name, mean in self._means().items():
            how = "measured on" if self._device.kind == "cuda" else "modelled in the"
            print(f"\n{name}: geometric mean {mean:.3f} us, {how} {self._device.name}")
        print(
            f"\n{passed} of {len(self._done)} passed in {took:.0f} s on {self._device.label}",
            flush=True,
        )

    def _heading(self) -> str:
        if self._mode in ("benchmark", "leaderboard") and self._device.kind == "cuda":
            return "  status   mean us  +- err us   best us  SoL us  mean/SoL  best known us  case"
        if self._mode == "test":
            return "  status   wall s  case"
        if self._device.kind == "emulator":
            return (
                "  status   modelled us   range             SoL us  modelled/SoL  best known us "
                " wall s  case; bound by"
            )
        return "  status   wall s   peak MB  case   (wall clock and memory of the emulation)"

    def _line(self, case: Case, outcome: Outcome) -> str:
        status = outcome.status if outcome.status == "pass" else outcome.status.upper()
        if outcome.stats:
            us = {name: value / 1e3 for name, value in outcome.stats.items()}
            known = benchmark_of(case)
            columns = f"{us['mean']:9.3f}  {us['err']:9.3f} {us['best']:9.3f}"
            if known is None:
                return f"  {status:7} {columns}       -         -              -  {case.text}"
            ratio = us["mean"] / known.sol_us
            return (
                f"  {status:7} {columns} {known.sol_us:7.3f} {ratio:9.2f}  {known.best_us:13.2f} "
                f" {case.text}"
            )
        if outcome.modelled:
            return f"  {status:7} {self._modelled(case, outcome)}"
        memory = "" if self._mode == "test" else f"{outcome.peak_mb:9.0f} "
        return f"  {status:7} {outcome.seconds:7.1f} {memory} {case.text}"

    @staticmethod
    def _modelled(case: Case, outcome: Outcome) -> str:
        m, known = outcome.modelled or {}, benchmark_of(case)
        columns = f"{m['time_us']:12.2f}   {m['low_us']:6.2f} ..{m['high_us']:7.2f}"
        sol = (
            f"{known.sol_us:9.3f} {m['time_us'] / known.sol_us:13.2f}  {known.best_us:13.2f}"
            if known
            else " " * 38
        )
        return f"{columns} {sol} {outcome.seconds:7.1f}  {case.text}; {m['bound_by']}"

    def _means(self) -> dict[str, float]:
        """Geometric mean in us of each problem all of whose cases were timed."""
        means = {}
        for name in dict.fromkeys(case.problem.name for case, _ in self._done):
            times = [
                o.modelled["time_us"] if o.modelled else o.stats["mean"] / 1e3 if o.stats else 0.0
                for case, o in self._done
                if case.problem.name == name
            ]
            if all(times):
                means[name] = math.exp(sum(map(math.log, times)) / len(times))
        return means


def ncu_command(case: Case) -> str:
    """The command that profiles this case's one kernel with Nsight Compute."""
    return (
        "POPCORN_NCU=1 ncu --set full --import-source yes --target-processes all --nvtx "
        '--nvtx-include "custom_kernel/" '
        f'python eval.py profile {case.problem.name} --device cuda --case "{case.text}"'
    )


class Progress:
    """What is running, on stderr: one changing line on a terminal, else a line now and then."""

    def __init__(self, cases: Sequence[Case]):
        self._cases = cases
        self._terminal = sys.stderr.isatty()
        self._said = time.monotonic()

    def tick(self, done: int, running: dict[int, float]) -> None:
        """done: finished cases. running: index of a case -> seconds so far."""
        if not self._terminal and time.monotonic() - self._said < QUIET:
            return
        self._said = time.monotonic()
        at_work = ", ".join(
            f"{self._cases[i].problem.short} {self._cases[i].text} ({age:.0f} s)"
            for i, age in sorted(running.items())
        )
        line = f"[{done}/{len(self._cases)} done] running: {at_work}" if at_work else ""
        if self._terminal:
            self.clear()
            print(
                line[: shutil.get_terminal_size().columns - 1],
                end="\r",
                file=sys.stderr,
                flush=True,
            )
        elif line:
            print(line, file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Wipe the changing line, before something else is printed."""
        if self._terminal:
            print("\x1b[2K", end="\r", file=sys.stderr, flush=True)
