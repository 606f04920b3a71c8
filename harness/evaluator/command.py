"""eval.py as a command: from its arguments to its exit status, by the parts that this package's
docstring lists.
"""

from __future__ import annotations

import argparse
import functools
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from b200 import pictures
from b200.command_line import UNWRITTEN
from harness.evaluator import devices, protocol, running, together, trials
from harness.evaluator.arguments import SUBMISSION, UsageError, parse
from harness.evaluator.case import configs
from harness.evaluator.cases import Case, CaseError
from harness.evaluator.devices import Device, SetupError
from harness.evaluator.jobs import jobs_of
from harness.evaluator.report import JsonReport, TextReport
from harness.evaluator.selection import select
from harness.lint import command as lint

INTERRUPTED, NO_READER = 130, 141  # as a shell reports SIGINT and SIGPIPE


def main(argv: Sequence[str], description: str | None = None) -> int:
    """The command. Returns the exit status."""
    # So that the cases' processes are ended, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    os.environ.setdefault("CUTE_DSL_DISABLE_FILE_CACHING", "1")  # as the leaderboards have it
    pipe = os.environ.pop("POPCORN_FD", None)
    secret = os.environ.pop("POPCORN_SEED", None)
    try:
        return _main(argv, description, pipe, secret)
    except (UsageError, SetupError, CaseError, protocol.PipeError) as error:
        print(f"eval.py: {error}", file=sys.stderr)
        if isinstance(error, protocol.PipeError):
            return protocol.NO_PIPE
        return protocol.BAD_CASES if pipe and isinstance(error, CaseError) else protocol.USAGE
    except pictures.NoPicture as error:
        print(f"eval.py: --plot: {error}", file=sys.stderr)
        return UNWRITTEN
    except KeyboardInterrupt:
        print("eval.py: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is left in its buffer goes there
        print("eval.py: stopped, since nobody reads the output any more", file=sys.stderr)
        return NO_READER


def _main(
    argv: Sequence[str], description: str | None, pipe: str | None, secret: str | None
) -> int:
    arguments = parse(argv, description)
    if secret and not (secret.isascii() and secret.isdigit() and len(secret) < 100):
        raise UsageError(f"POPCORN_SEED must be a number, got {secret[:50]!r}")
    chosen = select(arguments, int(secret) if secret else arguments.seed)
    if (arguments.problem or "").endswith(".py") and arguments.submission == str(SUBMISSION):
        arguments.submission = arguments.problem  # the kernel may stand beside its reference
    if not Path(arguments.submission).is_file():
        raise UsageError(f"no submission at {arguments.submission}")
    if arguments.mode == "tune":
        _check_choices(Path(arguments.submission))
    reports: list[running.Report] = []
    if pipe:
        reports.append(protocol.PopcornReport(pipe, arguments.mode))
    if len(chosen) > 1 and arguments.mode in ("test", "tune"):
        # Cases run side by side: numpy need not be parallel itself.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    device = _device(arguments, chosen)
    workers, threads = devices.parallel_cases(device, arguments.mode, arguments.jobs)
    jobs = jobs_of(arguments, chosen, device, threads)
    if arguments.mode == "tune":
        return protocol.exit_code(trials.tune(arguments, jobs, chosen, device, workers))
    if arguments.json:
        from harness.evaluator import made_by

        submission, constants = Path(arguments.submission), dict(jobs[0].constants) if jobs else {}
        by = functools.partial(made_by.modelled, submission, constants)
        reports.append(JsonReport(device, arguments.mode, arguments.output, by))
    else:
        reports.append(TextReport(device, arguments.mode, show_output=arguments.output))
    # behind a pipe is a runner that counts the cases
    own = any(job.own for job in jobs)
    board = arguments.mode in ("test", "leaderboard") and not pipe and device.kind != "hopper"
    board = board and not own
    more = together.further if board else None
    status = protocol.exit_code(running.run(jobs, chosen, device.method, workers, reports, more))
    if (
        arguments.mode != "leaderboard" or pipe or own
    ):  # behind a pipe is a runner that has taken it
        return status
    refused = _lint(arguments, chosen)
    return status or refused


def _lint(arguments: argparse.Namespace, chosen: Sequence[Case]) -> int:
    """Whether a board would take the file at all. JSON lines have stdout for themselves."""
    out = sys.stderr if arguments.json else sys.stdout
    problems = [case.problem.name for case in chosen]
    return lint.last_step(Path(arguments.submission), problems, out)


def _check_choices(submission: Path) -> None:
    """Raise UsageError if a submission plainly has nothing to choose from."""
    if absent := configs.absent(submission):
        needed = ", ".join(f"{name}({what})" for name, what in configs.NEEDED.items())
        raise UsageError(
            f"tune times what a submission can choose from, by its functions {needed}:"
            f" {submission.name} has no {', '.join(absent)}"
        )


def _device(arguments: argparse.Namespace, chosen: Sequence[Case]) -> Device:
    """What the cases run on, ready for them. Raises UsageError, SetupError or CaseError."""
    device = devices.resolve(arguments.device)
    if arguments.constants and device.kind != "emulator":
        raise UsageError(
            f"--constants changes the emulator's clock: pass --device emulator, not {device.kind}"
        )
    for case in chosen:
        devices.check_memory(case, device)
    if device.kind == "emulator" and (len(chosen) > 1 or arguments.mode == "tune"):
        devices.start_emulator()
    elif device.kind == "emulator":
        devices.hide_gpus()  # the one process there will be imports what it needs, and no more
    if device.kind == "hopper" and arguments.mode == "tune":
        raise SetupError("tune runs on a B200 or in the emulator: pass --device emulator")
    if device.kind == "hopper" and any(hasattr(case.problem, "file") for case in chosen):
        raise SetupError("--problem FILE.py runs on a B200 or in the emulator: --device emulator")
    return device
