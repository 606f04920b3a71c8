"""`eval.py qualify`: runs the plan, each command in its own process group under a watchdog."""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from b200.clock.overrides import read_overrides
from b200.command_line import Parser
from harness.evaluator import devices
from harness.qualify import page, planted
from harness.qualify.plan import EVAL, QUICK, REHEARSED, STEPS, Command, Scope, plan
from harness.qualify.state import Given, State, StateError
from harness.qualify.summary import not_run, summary

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
    return given(status, out, told)


def given(status: int | str, out: str, told: str) -> Given:
    """What a command gave that has ended so, by what it wrote to stdout and to stderr."""
    rows = [_row(line) for line in out.splitlines() if line.startswith("{")]
    return Given(status, rows, told[-TOLD:] if status not in (0, 112) else "")


def _with_checkout(path: str | None) -> str:
    return os.pathsep.join([str(EVAL.parent), *([path] if path else [])])


def _end(process: subprocess.Popen) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _row(line: str) -> dict[str, Any]:
    return {key: value for key, value in json.loads(line).items() if key not in DROPPED}


def _arguments(argv: list[str]) -> argparse.Namespace:
    parser = Parser(
        prog="eval.py qualify",
        description="Is the kernel right, how fast is it, and is the clock true? One report of what"
        " this machine can tell.",
    )
    parser.add_argument("--quick", action="store_true", help="take five minutes instead of an hour")
    parser.add_argument(
        "--rehearse",
        action="store_true",
        help="emulator or Hopper GPU: plant mistakes, at small sizes, and see whether the report"
        " names them",
    )
    parser.add_argument(
        "--device", choices=devices.CHOICES, default="auto", help="where it runs (default auto)"
    )
    parser.add_argument(
        "--submission",
        type=Path,
        default=EVAL.parent / "submission.py",
        metavar="FILE",
        help="the file with custom_kernel (default: submission.py of the checkout)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("qualify"),
        metavar="FOLDER",
        help="where report.html and results go (default: qualify)",
    )
    parser.add_argument(
        "--resume", action="store_true", help="go on with the run whose results are in FOLDER"
    )
    parser.add_argument(
        "--minutes", type=float, help="start no step after so many minutes (--quick: 5)"
    )
    parser.add_argument(
        "--chip",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="emulator: measure a chip with another value of this constant; repeatable",
    )
    return parser.parse_args(argv)


def main(argv: list[str]) -> int:
    """Exit status: 0 nothing is wrong, or a rehearsal found what was planted and nothing else; 112
    something is; 2 bad arguments or set-up.
    """
    options = _arguments(argv)
    try:
        device = devices.resolve(options.device)
        scope = _scope(options, device.kind)
        state = State(scope.folder, _comparable(scope, options.submission), options.resume)
        _prepare(scope, options.submission)
    except (devices.SetupError, StateError, ValueError) as error:
        print(f"eval.py qualify: {error}", file=sys.stderr)
        return 2
    print(f"qualify on {device.label}; results in {scope.folder}", flush=True)
    _run_all(scope, state)
    found = summary(scope, state.given)
    report = scope.folder / "report.html"
    left = not_run(scope, state.given)
    report.write_text(page.page(scope, state.given, found, left), encoding="utf-8")
    print("\n".join(f"- {line}" for line in found) or "nothing is wrong")
    if left:
        print(left)
    print(f"report: {report}")
    if not scope.rehearsal:
        return 112 if found else 0
    missed = list(planted.missed(scope.device, state.given, scope.chip, found))
    print("\n".join(missed) or "rehearsal: found what was planted, and nothing else")
    return 112 if missed else 0


def _scope(options: argparse.Namespace, device: str) -> Scope:
    """Raises ValueError for arguments that do not go together."""
    chosen: dict[str, Any] = dict(QUICK if options.quick else {})
    if options.rehearse:
        if device == "cuda":
            raise ValueError("--rehearse needs --device emulator or hopper: this is a B200")
        chosen = dict(REHEARSED)
    if options.minutes is not None:
        chosen["minutes"] = options.minutes
    folder, submission = options.out.resolve(), options.submission.resolve()
    if not submission.is_file():
        raise ValueError(f"no submission at {submission}")
    chip = tuple(options.chip)
    if chip and device != "emulator":
        raise ValueError("--chip changes the chip that is emulated: it needs --device emulator")
    if options.rehearse:
        submission = folder / "planted.py"
        chip = chip or (planted.chip() if device == "emulator" else ())
    read_overrides(chip)
    return Scope(device, submission, folder, chip, **chosen)


def _prepare(scope: Scope, submission: Path) -> None:
    """The files that the commands take."""
    if scope.rehearsal:
        planted.write(submission, scope.submission, scope.device)
    if scope.chip:
        scope.played.write_text(json.dumps(read_overrides(scope.chip), indent=1) + "\n")


def _run_all(scope: Scope, state: State) -> None:
    """Run what has no result yet; nothing begins after the minutes of the scope."""
    begun = time.monotonic()
    for command in plan(scope):
        late = scope.minutes is not None and time.monotonic() - begun > 60 * scope.minutes
        if command.key in state.given or late:
            continue
        print(f"  {STEPS[command.step]} {command.title} ...", flush=True)
        state.add(command.key, run(command))


def _comparable(scope: Scope, submission: Path) -> dict[str, Any]:
    """What a resumed run must have in common with the first; submission: without mistakes."""
    told = {k: v for k, v in asdict(scope).items() if k not in ("folder", "submission")}
    digest = hashlib.sha256(submission.read_bytes()).hexdigest()
    return {**told, "submission": submission.name, "sha256": digest}
