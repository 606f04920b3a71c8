"""What `eval.py qualify` runs: a list of commands in four steps."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.evaluator import cases
from harness.evaluator.cases import Case
from harness.qualify import planted
from task import PROBLEMS

EVAL = Path(__file__).resolve().parents[2] / "eval.py"
STEPS = {
    "machine": "What is this machine?",
    "right": "Is the kernel right?",
    "fast": "How fast is it, and is its choice the best?",
    "true": "Is the clock true?",
}
TEST_LIMIT = {"emulator": 900, "cuda": 60, "hopper": 180}  # seconds a case
REHEARSED_LIMIT = {"emulator": 45, "hopper": 30}
MOST_TESTS = 8  # at a time on a GPU


@dataclass(frozen=True)
class Scope:
    """What is asked for. device: cuda, hopper or emulator. chip: constants of the chip that the
    emulator plays, NAME=VALUE. minutes: no command begins later; None: all run. official,
    benchmarks: official cases of each a problem, the smallest or the first; None: all. random:
    random shapes a problem and kind of inputs. repeats: calls whose bits must be equal. covering:
    configurations of the covering set, None: all. configs: configurations timed a shape. sanitized,
    tools: problems and tools of compute-sanitizer. rehearsal: sizes are small, and the submission
    has the mistakes of planted.py.
    """

    device: str
    submission: Path
    folder: Path
    chip: tuple[str, ...] = ()
    minutes: float | None = None
    official: int | None = None
    random: int = 25
    repeats: int = 10
    covering: int | None = None
    benchmarks: int | None = None
    configs: int = 8
    sanitized: tuple[str, ...] = tuple(problem.short for problem in PROBLEMS.values())
    tools: tuple[str, ...] = ("memcheck", "racecheck", "synccheck", "initcheck")
    rehearsal: bool = False

    @property
    def constants(self) -> Path:
        """The file of the constants that the probes told."""
        return self.folder / "constants.json"

    @property
    def played(self) -> Path:
        """The file of the constants of the chip that the emulator plays."""
        return self.folder / "chip.json"

    @property
    def limit(self) -> int:
        """Seconds a case."""
        return (REHEARSED_LIMIT if self.rehearsal else TEST_LIMIT)[self.device]


QUICK = {
    "minutes": 5.0,
    "official": 2,
    "random": 2,
    "repeats": 3,
    "covering": 6,
    "configs": 3,
    "tools": ("memcheck",),
}
REHEARSED = {
    "official": 2,
    "random": 1,
    "repeats": 2,
    "covering": 6,
    "benchmarks": 1,
    "configs": 2,
    "sanitized": ("gemm",),
    "tools": ("memcheck",),
    "rehearsal": True,
}


@dataclass(frozen=True)
class Command:
    """One command. key: unique, names its result in the state. limit: seconds until it is ended."""

    key: str
    step: str
    title: str
    argv: tuple[str, ...]
    limit: float


def plan(scope: Scope) -> list[Command]:
    """The commands by priority: correctness, then speed, then tests of the clock. In each group the
    quick ones come first.
    """
    commands = [_module(scope, "machine", "this machine", "machine", 120)]
    smallest = () if scope.official is None else ("--smallest", str(scope.official))
    commands.append(_eval(scope, "right.official", "right", "official cases", "test", smallest))
    if scope.minutes is not None:  # the shortest first
        commands += [_measure(scope), *_timed(scope), *_right(scope), *_tuned(scope)]
    else:
        commands += [*_right(scope), *_timed(scope), *_tuned(scope), _measure(scope)]
    return [*commands, *_fitted(scope)]


def timed_cases(scope: Scope) -> Iterator[tuple[str, Case]]:
    """(name, shape) of what is timed: the benchmarks; small shapes where a rehearsal models."""
    for problem in PROBLEMS.values():
        chosen = cases.official(problem, "benchmark")[: scope.benchmarks]
        if scope.rehearsal and scope.device == "emulator":
            chosen = [
                cases.make_case(problem, cases.parse(text)) for text in planted.TIMED[problem.short]
            ]
        for i, case in enumerate(chosen, 1):
            yield f"{problem.short}.{i}", case


def _right(scope: Scope) -> Iterator[Command]:
    tests = {
        "quantized": ("random shapes, real matrices", "1"),
        "full": ("random shapes, every code and scale", "2"),
    }
    for kind, (title, seed) in tests.items():
        more = ("--inputs", kind, "--random", str(scope.random), "--seed", seed)
        yield _eval(scope, f"right.{kind}", "right", title, "test", more)
    most = () if scope.covering is None else ("--most", str(scope.covering))
    limit = ("--timeout", str(scope.limit), *_jobs(scope))
    if scope.rehearsal or scope.device == "emulator":
        limit += ("--small",)
    title = "configurations, every pair of settings"
    yield _module(scope, "right.covering", title, "covering", 3600, (*limit, *most))
    times = ("--times", str(scope.repeats))
    yield _module(scope, "right.repeats", "the same bits again", "repeats", 1800, times)
    if scope.device != "emulator":
        yield _module(scope, "right.launcher", "the DSL's own launcher", "launcher", 600)
        tools = ("--tools", *scope.tools, "--problems", *scope.sanitized)
        title = "compute-sanitizer"
        yield _module(scope, "right.sanitize", title, "sanitize", 320 * len(scope.tools), tools)


def _timed(scope: Scope) -> Iterator[Command]:
    for name, case in timed_cases(scope) if scope.device != "hopper" else ():
        more = (case.problem.short, "--case", case.text, *_played(scope))
        title = name.replace(".", " ")
        yield _eval(scope, f"fast.{name}", "fast", title, "benchmark", more)


def _tuned(scope: Scope) -> Iterator[Command]:
    for name, case in timed_cases(scope) if scope.device != "hopper" else ():
        more = (case.problem.short, "--case", case.text, "-n", str(scope.configs))
        title = f"{name.replace('.', ' ')}, configurations"
        yield _eval(scope, f"tune.{name}", "fast", title, "tune", (*more, *_played(scope)))


def _fitted(scope: Scope) -> Iterator[Command]:
    """What is told by all that was measured before."""
    found = ("--constants", str(scope.constants))
    if scope.device == "hopper":
        most = () if scope.benchmarks is None else ("--shapes", str(scope.benchmarks))
        title = "load pipelines alone"
        yield _module(scope, "fast.pipelines", title, "pipelines", 1800, (*found, *most), "fast")
        return
    known = ("--state", str(scope.folder / "state.json"), *found)
    title = "coefficients of the kernel's estimate"
    yield _module(scope, "fast.costs", title, "costs", 900, known, "fast")
    title = "the clock's error"
    yield _module(scope, "true.error", title, "clock_error", 3600, known, "true")


def _played(scope: Scope) -> tuple[str, ...]:
    return ("--constants", str(scope.played)) if scope.chip else ()


def _jobs(scope: Scope) -> tuple[str, ...]:
    """How many tests at a time, where a GPU would else take one."""
    if scope.device == "emulator":
        return ()
    return "--jobs", str(max(1, min(MOST_TESTS, len(os.sched_getaffinity(0)) // 2)))


def _eval(scope: Scope, key: str, step: str, title: str, mode: str, more: Sequence[str]) -> Command:
    jobs = _jobs(scope) if mode == "test" else ()
    argv = (sys.executable, str(EVAL), mode, *more, *jobs, "--json", "--device", scope.device)
    argv += ("--submission", str(scope.submission), "--timeout", str(scope.limit))
    return Command(key, step, title, argv, 40.0 * scope.limit)


def _module(
    scope: Scope,
    key: str,
    title: str,
    module: str,
    limit: float,
    more: Sequence[str] = (),
    step: str = "",
) -> Command:
    argv = [sys.executable, "-m", f"harness.qualify.{module}"]
    if module not in ("costs", "clock_error"):  # which need no device
        argv += ["--device", scope.device]
    argv += ["--submission", str(scope.submission)]
    return Command(key, step or key.partition(".")[0], title, (*argv, *more), limit)


def _measure(scope: Scope) -> Command:
    """The probes; a Hopper GPU is measured as CUDA, without those of the tensor core."""
    device = "emulator" if scope.device == "emulator" else "cuda"
    argv = [sys.executable, str(EVAL), "measure", "--device", device, "--json"]
    argv += ["--out", str(scope.constants)]
    for pair in scope.chip:
        argv += ["--set", pair]
    return Command("true.measure", "true", "the clock's constants", tuple(argv), 3600)
