"""The leaderboard runner's protocol: `key: value` lines into the pipe POPCORN_FD, exit codes.

As in gpu-mode/kernelbot and in eval.py of gpu-mode/reference-kernels.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Iterable, Sequence
from typing import Any

from harness.evaluator.case.job import Outcome
from harness.evaluator.cases import Case

OK, USAGE = 0, 2
CUDA_FAILED, NO_PIPE, WRONG, BAD_CASES, TIMED_OUT = 110, 111, 112, 113, 114


class PipeError(Exception):
    """POPCORN_FD names no pipe that can be written to."""


def exit_code(outcomes: Iterable[Outcome]) -> int:
    """0 if all passed; else the code of the gravest: a CUDA error, a timeout, anything else."""
    outcomes = list(outcomes)
    if any(outcome.cuda_error for outcome in outcomes):
        return CUDA_FAILED
    if any(outcome.status == "timeout" for outcome in outcomes):
        return TIMED_OUT
    return OK if all(outcome.good for outcome in outcomes) else WRONG


class PopcornReport:
    """Writes the protocol of `mode`. stop: true after the first failure of a leaderboard run."""

    def __init__(self, descriptor: str, mode: str):
        try:
            self.descriptor = int(descriptor)
            self._file = os.fdopen(self.descriptor, "w")
        except (ValueError, OSError) as error:
            raise PipeError(f"POPCORN_FD={descriptor!r} is no open pipe: {error}") from None
        os.set_inheritable(self.descriptor, False)
        self._mode = mode
        self._prefix = "test" if mode == "test" else "benchmark"
        self._count, self._expected, self._passed = 0, 0, True

    @property
    def stop(self) -> bool:
        return self._mode == "leaderboard" and not self._passed

    def _log(self, key: str, value: Any) -> None:
        # A value is one line there; a report of several becomes one.
        print(f"{key}: {' | '.join(str(value).splitlines())}", file=self._file, flush=True)

    def begin(self, cases: Sequence[Case]) -> None:
        self._expected = len(cases)
        self._log(f"{self._prefix}-count", len(cases))

    def add(self, case: Case, outcome: Outcome) -> None:
        key = f"{self._prefix}.{self._count}"
        self._count += 1
        self._log(f"{key}.spec", case.text)
        if not outcome.good:
            self._passed = False
            self._log(f"{key}.status", "fail")
            self._log(f"{key}.error", outcome.message)
            return
        if outcome.stats:
            for name, value in outcome.stats.items():
                self._log(f"{key}.{name}", value)
        if self._mode == "profile":
            encoded = base64.b64encode(outcome.report.encode(), b"+*").decode()
            self._log(f"{key}.report", encoded)
        if not outcome.stats and self._mode != "profile":
            self._log(f"{key}.status", "pass")
            if outcome.message:
                self._log(f"{key}.message", outcome.message)

    def end(self) -> None:
        complete = self._count == self._expected  # not if interrupted
        self._log("check", "pass" if self._passed and complete else "fail")
        self._file.close()
