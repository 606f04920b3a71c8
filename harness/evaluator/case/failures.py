"""What a case raised, in words: the exception, and where in the submission or in its kernel."""

from __future__ import annotations

import re
import sys
import traceback
from pathlib import Path

LONGEST_TEXT = 2_000  # characters of an exception's text

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class SubmissionError(Exception):
    """The submission cannot be used at all; str() says why in one line."""


def describe(error: BaseException) -> str:
    """An exception in words: its type and text, and the last line of the submission it passed
    through.
    """
    stage = getattr(error, "stage", "")
    report = _emulator_error(error)
    if report:
        return stage + report
    try:
        text = _COLOUR.sub("", str(error)).strip()
    except Exception:
        text = "(its text cannot be had)"
    text = text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]} ..."
    if isinstance(error, SubmissionError):
        return text
    frames = traceback.extract_tb(error.__traceback__)
    inside = [frame for frame in frames if _in_submission(frame.filename)]
    where = ""
    if inside:
        where = f" ({Path(inside[-1].filename).name}:{inside[-1].lineno}, in {inside[-1].name})"
    said = f": {text}" if text else ""
    return f"{stage}{type(error).__name__}{said}{where}"


def _emulator_error(error: BaseException | None) -> str:
    """The emulator's own report, also where the DSL has wrapped it in an exception of its own; else
    empty.
    """
    if "b200" not in sys.modules:
        return ""
    from b200 import EmulatorError
    from b200.checker.finding import explained

    while error is not None:
        if isinstance(error, EmulatorError):
            kinds = error.kind, *(finding.kind for finding in error.findings)
            return "\n".join(filter(None, [error.told(), explained(kinds)]))
        error = error.__cause__ or error.__context__
    return ""


def whereabouts(late: BaseException) -> str:
    """Where the case was: the kernel's line in the emulator, and the line of the submission."""
    b200 = sys.modules.get("b200")
    kernel = b200.at_work()[:1] if b200 is not None else []
    frames = traceback.extract_tb(late.__traceback__)[:-1]  # the last is the handler's
    inside = [frame for frame in frames if _in_submission(frame.filename)][-1:]
    python = inside if kernel else [*frames[-1:], *inside]
    lines = [f"{Path(f.filename).name}:{f.lineno} in {f.name}" for f in python]
    places = dict.fromkeys([*(f"the kernel's {place}" for place in kernel), *lines])
    return f"; it was at {', called from '.join(places)}" if places else ""


def print_traceback(error: BaseException) -> None:
    """The traceback from the submission on, or all of it if it is the harness's own."""
    trace = error.__traceback__
    while trace is not None and not _in_submission(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    traceback.print_exception(type(error), error, trace or error.__traceback__)


def _in_submission(filename: str) -> bool:
    return filename == getattr(sys.modules.get("submission"), "__file__", None)


def is_cuda_error(message: str) -> bool:
    return any(word in message for word in ("CUDA error", "cudaError", "CUDA_ERROR"))
