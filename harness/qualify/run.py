"""`eval.py qualify`: runs the plan, each command in its own process group under a watchdog."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

from harness import devices
from harness.qualify import page
from harness.qualify.plan import EVAL, STEPS, Command, Scope, plan
from harness.qualify.state import Given, State, StateError
from harness.qualify.summary import summary

TOLD = 2000  # characters of stderr that are kept
DROPPED = ("seconds",)  # wall clock: not the same when a run is repeated


def run(command: Command) -> Given:
    """Run one command to its end, or to its limit."""
    environment = {**os.environ, "PYTHONPATH": _with_checkout(os.environ.get("PYTHONPATH"))}
    process = subprocess.Popen(
        command.argv,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=environment,
    )
    try:
        out, told = process.communicate(timeout=command.limit)
        status: int | str = process.returncode
    except subprocess.TimeoutExpired:
        _end(process)
        out, told = process.communicate()
        status = "timeout"
    except BaseException:
        _end(process)
        raise
    rows = [_row(line) for line in out.splitlines() if line.startswith("{")]
    return Given(status, rows, told[-TOLD:] if status not in (0, 112) else "")


def _with_checkout(path: str | None) -> str:
    return os.pathsep.join([str(EVAL.parent), *([path] if path else [])])


def _end(process: subprocess.Popen) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _row(line: str) -> dict:
    return {key: value for key, value in json.loads(line).items() if key not in DROPPED}


def _arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="eval.py qualify", description="Everything this machine can tell, in one report."
    )
    parser.add_argument("--quick", action="store_true", help="minutes instead of an hour")
    parser.add_argument("--device", choices=devices.CHOICES, default="auto")
    parser.add_argument("--submission", type=Path, default=EVAL.parent / "submission.py")
    parser.add_argument("--out", type=Path, default=Path("qualify"), metavar="FOLDER")
    parser.add_argument("--resume", action="store_true", help="go on with what FOLDER holds")
    parser.add_argument(
        "--chip",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="emulator: a constant of the chip that it plays in the measurements",
    )
    return parser.parse_args(argv)


def main(argv: list[str]) -> int:
    """Exit status: 0 nothing is wrong, 112 something is, 2 bad arguments or set-up."""
    options = _arguments(argv)
    try:
        device = devices.resolve(options.device)
        make = Scope.quick if options.quick else Scope
        chip = tuple(options.chip)
        scope = make(device.kind, options.submission.resolve(), options.out.resolve(), chip)
        state = State(scope.folder, _comparable(scope), options.resume)
    except (devices.SetupError, StateError) as error:
        print(f"eval.py qualify: {error}", file=sys.stderr)
        return 2
    print(f"qualify on {device.label}; results in {scope.folder}", flush=True)
    for command in plan(scope):
        if command.key not in state.given:
            print(f"  {STEPS[command.step]} {command.title} ...", flush=True)
            state.add(command.key, run(command))
    found = summary(scope, state.given)
    report = scope.folder / "report.html"
    report.write_text(page.page(scope, state.given, found))
    print("\n".join(f"- {line}" for line in found) or "nothing is wrong")
    print(f"report: {report}")
    return 112 if found else 0


def _comparable(scope: Scope) -> dict:
    """What a resumed run must have in common with the first."""
    return {k: str(v) if isinstance(v, Path) else v for k, v in asdict(scope).items()}
