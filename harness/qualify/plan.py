"""What `eval.py qualify` runs: a list of commands in four steps."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from task import PROBLEMS

EVAL = Path(__file__).resolve().parents[2] / "eval.py"
STEPS = {
    "machine": "What is this machine?",
    "right": "Is the kernel right?",
    "fast": "How fast is it, and is its choice the best?",
    "true": "Is the clock true?",
}
TEST_LIMIT = {"emulator": 600, "cuda": 60, "hopper": 180}  # seconds a case


@dataclass(frozen=True)
class Scope:
    """What is asked for. device: cuda, hopper or emulator. chip: constants of the chip that the
    emulator plays, NAME=VALUE. random: random shapes a problem. repeats: calls whose bits must be
    equal. configs: configurations tried a shape. shapes: benchmark shapes a problem, None for all.
    """

    device: str
    submission: Path
    folder: Path
    chip: tuple[str, ...] = ()
    random: int = 50
    repeats: int = 10
    configs: int = 8
    shapes: int | None = None

    @classmethod
    def quick(cls, device: str, submission: Path, folder: Path, chip: tuple[str, ...]) -> Scope:
        """Minutes instead of an hour."""
        return cls(device, submission, folder, chip, random=3, repeats=3, configs=4, shapes=1)

    @property
    def constants(self) -> Path:
        """The file of the constants that the probes told."""
        return self.folder / "constants.json"


@dataclass(frozen=True)
class Command:
    """One command. key: unique, names its result in the state. limit: seconds until it is ended."""

    key: str
    step: str
    title: str
    argv: tuple[str, ...]
    limit: float


def plan(scope: Scope) -> list[Command]:
    """The commands in the order of their worth: right before fast, fast before the clock."""
    commands = [
        _module("machine", "machine", "this machine", "harness.qualify.machine", 120, scope)
    ]
    tests = {
        "official": ("the official cases", ()),
        "quantized": ("random shapes, real matrices", ("--inputs", "quantized", *_random(scope))),
        "full": ("random shapes, every code and scale", ("--inputs", "full", *_random(scope))),
    }
    for key, (title, more) in tests.items():
        commands.append(_eval(f"right.{key}", "right", title, "test", more, scope))
    repeats = ("--times", str(scope.repeats))
    commands.append(
        _module(
            "right.repeats", "right", "repeats", "harness.qualify.repeats", 1800, scope, repeats
        )
    )
    for problem in PROBLEMS.values():
        for i, benchmark in enumerate(problem.benchmarks[: scope.shapes]):
            case = "; ".join(f"{k}: {_text(v)}" for k, v in benchmark.args.items())
            where, at = f"{problem.short}.{i + 1}", (problem.short, "--case", case)
            title = f"{problem.short} {i + 1}"
            commands.append(_eval(f"fast.{where}", "fast", title, "benchmark", at, scope))
            tune = (*at, "-n", str(scope.configs))
            commands.append(_eval(f"tune.{where}", "fast", f"{title}, tuned", "tune", tune, scope))
    commands.append(_measure(scope))
    return commands


def _random(scope: Scope) -> tuple[str, ...]:
    return "--random", str(scope.random)


def _text(value: object) -> str:
    return f"[{', '.join(map(str, value))}]" if isinstance(value, (tuple, list)) else str(value)


def _eval(
    key: str, step: str, title: str, mode: str, more: tuple[str, ...], scope: Scope
) -> Command:
    limit = TEST_LIMIT[scope.device]
    argv = (sys.executable, str(EVAL), mode, *more, "--json", "--device", scope.device)
    argv += ("--submission", str(scope.submission), "--timeout", str(limit))
    return Command(key, step, title, argv, 40.0 * limit)


def _module(
    key: str,
    step: str,
    title: str,
    module: str,
    limit: float,
    scope: Scope,
    more: tuple[str, ...] = (),
) -> Command:
    argv = (sys.executable, "-m", module, "--device", scope.device)
    argv += ("--submission", str(scope.submission), *more)
    return Command(key, step, title, argv, limit)


def _measure(scope: Scope) -> Command:
    """The probes; a Hopper GPU is measured as CUDA, without those of the tensor core."""
    device = "emulator" if scope.device == "emulator" else "cuda"
    argv = [sys.executable, "-m", "b200", "measure", "--device", device, "--lines"]
    argv += ["--out", str(scope.constants)]
    for pair in scope.chip:
        argv += ["--set", pair]
    return Command("true.measure", "true", "the clock's constants", tuple(argv), 3600)
