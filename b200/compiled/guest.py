"""The software B200 in the process of a compiled CUDA program: answers its CUDA calls, and tells
what was found when the process ends.

guest.cpp starts it. Launches go into the journal of the run as they end (b200/reports), so nothing
is lost where the process ends without a word.
"""

from __future__ import annotations

import atexit
import ctypes
import json
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

import b200
from b200.checker.finding import ERROR
from b200.compiled import OPTIONS
from b200.errors import EmulatorError
from b200.host.cuda.driver import CALL, Driver, pointer_to
from b200.host.cuda.modules import Modules
from b200.host.cuda.numbered import NumberedDriver
from b200.reports import journal, recorder, records, words
from b200.reports.choice import Accepted, Choice
from b200.reports.document import ReportedRun
from b200.reports.journal import Journal

_FINISH = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)
_keep: list[Any] = []  # what C++ has the address of


def connect(call: int, finish: int, in_python: bool) -> None:
    """Put the two functions that C++ calls where it looks for them. in_python: the program is
    Python, which has its own standard output and its own end.
    """
    found = journal.of_the_run()
    if found is None:
        raise SystemExit("b200 exec: the run is over, or the program was not started by it")
    kept, settings = found
    if not in_python:
        sys.stdout = ProgramOutput()  # type: ignore[assignment]
    driver = NumberedDriver(_modules(settings, in_python), Telling(kept))
    end = End(driver, kept)
    made = CALL(driver.answer), _FINISH(end.finish)
    _keep.extend(made)
    ctypes.c_void_p.from_address(call).value = pointer_to(made[0])
    if in_python:
        atexit.register(end.of_python)
    else:
        ctypes.c_void_p.from_address(finish).value = pointer_to(made[1])


def _modules(settings: dict[str, Any], in_python: bool) -> Modules:
    """The GPU of this process. A program that is not Python has neither torch nor the DSL."""
    if in_python:
        b200.install(**settings)
        return b200.modules()
    return b200.install_alone(**settings)


class Telling:
    """Tells what is not modelled on stderr, each text once, and in the journal."""

    def __init__(self, kept: Journal):
        self._journal, self._told = kept, set[str]()

    def __call__(self, error: BaseException) -> None:
        if isinstance(error, EmulatorError):
            said = error.told()
        else:
            said = f"{type(error).__name__}: {error}"
            traceback.print_exception(error)
        if said not in self._told:
            self._told.add(said)
            print(f"b200 exec: {said}", file=sys.stderr, flush=True)
            failure = said.partition("\n")[0]
            end = {"record": records.REFUSED, "process": os.getpid(), "failure": failure}
            self._journal.add(end)


class End:
    """Tells what a process has launched and found."""

    def __init__(self, driver: Driver, kept: Journal):
        self._driver, self._journal, self._begin = driver, kept, kept.size
        told = json.loads(os.environ.get(OPTIONS, "{}"))
        self._everything = bool(told.get("everything"))
        chosen = told.get("choice", {}) | {"used": set()}
        chosen["accepted"] = [Accepted(**entry) for entry in chosen.get("accepted", ())]
        self._choice = Choice(**chosen)

    def finish(self, status: int) -> int:
        """Tell it; the status to end with, which is 1 where the program says 0 and an error was
        found.
        """
        try:
            unasked = self._driver.unasked()
            recorder.sync()
            me = os.getpid()
            new, _ = self._journal.read(self._begin)
            own = [record for record in new if record.get("process") == me]
            run = ReportedRun(b200.__version__, [], records=own)
            why_not = self._choice.why_not
            told = words.lines(run.reported(), me, (), self._everything, why_not, "b200 exec")
            said = [] if unasked is None else [str(unasked)]
            for text in (*told, *(f"b200 exec: {text}" for text in said)):
                print(text, file=sys.stderr, flush=True)
            end = {"record": records.END, "process": me, "status": status, "failure": ""}
            self._journal.add(end | {"unasked": said})
            return status or int(self._is_bad(run, own) or bool(said))
        except Exception:  # noqa: BLE001  it must not unwind through machine code
            traceback.print_exc()
            return status or 1

    def of_python(self) -> None:
        """The same at the end of a Python program, whose status is its own."""
        self.finish(0)

    def _is_bad(self, run: ReportedRun, own: list[records.JsonRecord]) -> bool:
        if any(record["record"] == records.REFUSED for record in own):
            return True
        document = run.document(self._choice)
        found = document["findings"]
        remarks = self._choice.strict and (found or document["incomplete"])
        return bool(remarks) or any(finding["severity"] == ERROR for finding in found)


class ProgramOutput:
    """sys.stdout, as the program's own stdout: what kernels print keeps its place."""

    encoding = "utf-8"

    def __init__(self) -> None:
        libc = ctypes.CDLL(None)
        self._stdout = ctypes.c_void_p.in_dll(libc, "stdout")
        self._write: Callable[..., int] = libc.fwrite
        self._flush: Callable[..., int] = libc.fflush

    def write(self, text: str) -> int:
        data = text.encode()
        self._write(data, ctypes.c_size_t(1), ctypes.c_size_t(len(data)), self._stdout)
        return len(text)

    def flush(self) -> None:
        self._flush(self._stdout)

    def isatty(self) -> bool:
        return False
