"""What each case's process is told, from the arguments of the command."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from harness.evaluator.arguments import TIMEOUT, TIMEOUT_EMULATED, UsageError
from harness.evaluator.case.job import Job
from harness.evaluator.cases import Case
from harness.evaluator.devices import Device


def jobs_of(
    arguments: argparse.Namespace, chosen: Sequence[Case], device: Device, threads: int
) -> list[Job]:
    """A job a case. threads: of the CPU, for each. Raises UsageError."""
    constants = _constants(arguments.constants)
    return [
        Job(
            mode=arguments.mode,
            device=device.kind,
            problem=case.problem.name,
            args=dict(case.args),
            inputs=arguments.inputs,
            submission=str(Path(arguments.submission).resolve()),
            timeout=_timeout(arguments, device),
            threads=threads,
            trace=_numbered(arguments.trace, i, len(chosen)),
            plot=_numbered(arguments.plot, i, len(chosen)),
            check=arguments.check,
            schedule=arguments.schedule,
            strict=arguments.strict,
            all_findings=arguments.all_findings,
            allowed=tuple(arguments.allow),
            sweep_constants=arguments.sweep_constants,
            constants=constants,
            own=getattr(case.problem, "file", ""),
        )
        for i, case in enumerate(chosen)
    ]


def _timeout(arguments: argparse.Namespace, device: Device) -> float:
    """Seconds that a case may take."""
    usual = TIMEOUT[arguments.mode] if device.kind == "cuda" else TIMEOUT_EMULATED
    return arguments.timeout or usual


def _numbered(name: str | None, index: int, count: int) -> str:
    """A file name for one of `count` cases, absolute: out.json, or out.0.json where there are
    several.
    """
    if not name:
        return ""
    path = Path(name).absolute()
    return str(path if count == 1 else path.with_suffix(f".{index}{path.suffix}"))


def _constants(path: Path | None) -> tuple[tuple[str, float], ...]:
    """The clock's constants from a file. Raises UsageError."""
    if path is None:
        return ()
    from b200.clock.overrides import read_file

    try:
        return tuple(read_file(path).items())
    except ValueError as error:
        raise UsageError(f"--constants: {error}") from None
