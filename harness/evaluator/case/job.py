"""What the process of a case is told, and what it answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.evaluator.case.configs import Ranked
from harness.evaluator.cases import Case
from task import CaseArgs

GOOD = ("pass", "timed")  # statuses of a case in which nothing is wrong


@dataclass(frozen=True)
class Job:
    """What a case's process is told. device: "cuda", "hopper" or "emulator". timeout: seconds.
    threads: for torch's CPU work.

    trace, plot: files for the timeline of a modelled launch, if any. check, schedule: of the
    emulator (b200.machine): races are looked for; the order in which things happen.
    strict, all_findings: findings of every severity fail the case; all of them are shown.
    allowed: programs that the submission may start, besides compilers (guard.py).

    sweep_constants: the range of a modelled time is of the constants at their ends. constants: of
    the emulator's clock, in place of its own. count: tune ranks so many configurations. config: of
    test and tune: run with the configuration that has these fields. together: of mode "together",
    the shapes that one process calls, in this order. own: the file of a problem of the user's own.
    """

    mode: str
    device: str
    problem: str
    args: CaseArgs
    inputs: str
    submission: str
    timeout: float
    threads: int = 1
    trace: str = ""
    plot: str = ""
    check: bool | str = True
    schedule: str | None = None
    strict: bool = False
    all_findings: bool = False
    allowed: tuple[str, ...] = ()
    sweep_constants: bool = False
    constants: tuple[tuple[str, float], ...] = ()
    count: int = 0
    config: tuple[tuple[str, Any], ...] = ()
    together: tuple[CaseArgs, ...] = ()
    own: str = ""

    @staticmethod
    def of(case: Case, submission: Path, **fields: Any) -> Job:
        """The job of a case, whose inputs are the official ones if nothing else is said."""
        told = {"problem": case.problem.name, "args": dict(case.args), "inputs": "official"}
        return Job(**{**told, "submission": str(submission.resolve()), **fields})

    @property
    def seed(self) -> int:
        return int(self.args["seed"])  # type: ignore[arg-type]  # of the keys, sizes alone are lists


@dataclass
class Outcome:
    """What became of a case; plain values only, since it travels between processes.

    status: pass | timed (its result was not looked at) | fail (wrong result) | error (an exception
    or a crash) | timeout. seconds: wall
    clock of the case. stats: timing.Stats as a dict, where the case was timed. modelled:
    b200.clock's Reported as a dict, where it was modelled. report: what profile prints. ranked:
    configurations and estimates (configs.py). peak_mb: of its process. incomplete: what of
    its launches the checker did not look at or understand, None where there was nothing to check.
    output: the first and last of what the case printed, for a person.
    """

    status: str
    message: str = ""
    seconds: float = 0.0
    stats: dict[str, float] | None = None
    modelled: dict[str, Any] | None = None
    report: str = ""
    ranked: Ranked | None = None
    peak_mb: float = 0.0
    cuda_error: bool = False
    incomplete: list[str] | None = None
    output: str = field(default="", repr=False)

    @property
    def good(self) -> bool:
        """Whether nothing wrong was found; what was not checked counts as right."""
        return self.status in GOOD

    def add(self, remark: str) -> None:
        """One more line of the message, if it is one."""
        self.message = "\n".join(filter(None, [self.message, remark]))
