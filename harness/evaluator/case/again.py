"""Runs a case that fails once more, with completions as late as they may come.

In the emulator asynchronous operations complete at once by default. A kernel that does not wait for
one of them may be right on a GPU, where others are late, and wrong here; or the reverse.
"""

from __future__ import annotations

from collections.abc import Callable

from harness.evaluator.case.timing import WrongResult

LATE = "late"  # of --schedule
LONGEST = 60.0  # seconds of a check that is worth another


def right_by_timing(check: Callable[[], object], failure: str) -> str:
    """What to say of a case that ends with `failure` and is right with --schedule late, "" if it is
    not. check: runs the case, raises if its result is wrong.
    """
    # wrong once more in the usual order: else it is a state of the submission that has changed
    if not _passes(check, LATE) or _passes(check, None):
        return ""
    return (
        f"right by timing: the usual order ends with {failure}; with --schedule {LATE}, where"
        " asynchronous operations complete as late as they may, the case is right. A GPU's timing"
        " decides which of the two it does"
    )


def _passes(check: Callable[[], object], schedule: str | None) -> bool:
    import b200

    b200.install(check=False, schedule=schedule)
    try:
        check()
    except (WrongResult, b200.EmulatorError):
        return False
    return True
