"""Records each launch of a GPU in the journal as it ends, in whichever way.

A launch that has ended, one that fails, one that is interrupted: each leaves a record before the
program goes on. While one is under way a thread looks for findings so far, so that a process which
is killed in a launch does not take them along.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import threading
from collections.abc import Callable
from typing import Any

from b200.checker.checked import Checker
from b200.chip.gpu import ONE_LAUNCH, Gpu
from b200.chip.launch import Launch
from b200.errors import EmulatorError
from b200.reports import records
from b200.reports.journal import Journal
from b200.reports.records import JsonRecord

EVERY = 1.0  # seconds between two looks at a launch that is under way


class Recorder:
    """Writes what the GPUs of this process launch into a journal. schedule: the order of their
    machines.
    """

    def __init__(self, journal: Journal):
        self.journal, self.schedule = journal, records.USUAL
        self.gpu: Gpu | None = None  # the one that launches
        self.count = 0  # launches of this process so far
        self._latest: tuple[Launch, JsonRecord, int] | None = None  # findings written of it
        self._shape: tuple[str, tuple[Any, ...]] | None = None  # of the one under way
        self._written = 0  # findings so far of it
        self._before: Any = None  # what the checker had seen when it began
        os.register_at_fork(before=self.sync, after_in_child=self._look_in_a_thread)
        self._look_in_a_thread()

    def watch(self, gpu: Gpu) -> None:
        """From now on record what this GPU launches."""
        if "launch" not in vars(gpu):
            gpu.launch = functools.partial(self._launch, gpu, gpu.launch)  # type: ignore[method-assign]

    def sync(self) -> None:
        """Write findings that the latest launch was given after it had ended: of work of the host
        that it is not ordered with.
        """
        if self._latest is not None:
            launch, record, written = self._latest
            found = list(launch.findings or ())
            if len(found) > written:
                self._latest = launch, record, len(found)
                self._add(records.MORE, record, found[written:])

    def _launch(
        self,
        gpu: Gpu,
        launch: Callable[..., Launch],
        ptx: Any,
        kernel: str | None,
        *shape: Any,
        **named: Any,
    ) -> Launch:
        with ONE_LAUNCH:
            self.sync()
            given = (*shape, *(named[x] for x in ("grid", "block", "cluster") if x in named))
            self.gpu = gpu
            self._before = self._latest_observer()
            self._shape, self._written = (kernel or _only_kernel(ptx), given), 0
            try:
                launched = launch(ptx, kernel, *shape, **named)
            except EmulatorError as error:
                self._failed(error)
                raise
            except BaseException:
                self._interrupted()
                raise
            finally:
                self._shape = None
                self.count += 1
            self._ended(launched)
            return launched

    def _ended(self, launch: Launch) -> None:
        record = records.of_launch(launch) | {"launch": self.count - 1}
        found = list(launch.findings or ())
        self._latest = launch, record, len(found)
        self._add(records.LAUNCH, record, found)

    def _failed(self, error: EmulatorError) -> None:
        """A fault is a finding. A launch that a B200 refuses is none; what is not modelled leaves a
        check incomplete.
        """
        if error.kind == "limit":
            return
        record = self._of_shape()
        record |= {"failed": error.told(), "stopped_by": error.kind}
        first = str(error).partition("\n")[0]
        wrong = [records.of_error(error)] if error.kind in records.WRONG else []
        if not wrong:
            record["incomplete"].append(f"the launch did not end: {first}")
        self._add(records.FAILED, record, error.findings, wrong)

    def _interrupted(self) -> None:
        """The launch is left in the midst: Ctrl-C, SIGTERM, or arguments that are none."""
        found = []
        if (observer := self._observer()) is not None:
            with contextlib.suppress(Exception):  # it looks at a state that is cut off
                observer.conclude()
            found = observer.of_the_author()
        record = self._of_shape()
        record["incomplete"].append("the launch was interrupted")
        self._add(records.FAILED, record, found)

    def _of_shape(self) -> JsonRecord:
        kernel, shape = self._shape or ("", ())
        return records.of_arguments(kernel, shape) | {"launch": self.count}

    def _observer(self) -> Any:
        """What the checker has seen of the launch under way; None where nothing checks, or where it
        has not begun to.
        """
        observer = self._latest_observer()
        begun = observer is not self._before and hasattr(observer, "findings")
        return observer if begun else None

    def _latest_observer(self) -> Any:
        """Of the launch under way or, before the checker has begun with it, of the one before."""
        machine = getattr(self.gpu, "machine", None)
        checker = machine.watcher(Checker) if machine is not None else None
        return getattr(checker, "observer", None)

    def _add(
        self, kind: str, record: JsonRecord, found: Any, besides: list[JsonRecord] | None = None
    ) -> None:
        added = {
            "record": kind,
            "process": os.getpid(),
            "test": records.test_under_way(),
            "schedule": self.schedule,
            "findings": [*(besides or ()), *map(records.of_finding, found)],
        }
        self.journal.add(record | added)

    # --- a launch that is under way
    def _look_in_a_thread(self) -> None:
        threading.Thread(target=self._look, daemon=True).start()

    def _look(self) -> None:
        wait = threading.Event().wait
        while not wait(EVERY):
            with contextlib.suppress(RuntimeError):  # what is looked at changes meanwhile
                self._so_far()

    def _so_far(self) -> None:
        if self._shape is None or (observer := self._observer()) is None:
            return
        found = observer.of_the_author()
        if len(found) <= self._written:
            return
        new, self._written = found[self._written :], len(found)
        record = self._of_shape()
        record["incomplete"].append("the launch was under way")
        self._add(records.SO_FAR, record, new)


def _only_kernel(ptx: Any) -> str:
    """The name of the only kernel of a module, which may be a text that cannot be parsed."""
    if isinstance(ptx, str):
        found = re.search(r"\.entry\s+([\w$]+)", ptx)
        return found[1] if found else ""
    return next(iter(ptx.kernels), "")


_recorder: list[Recorder] = []


def attach(gpu: Gpu, journal: Journal) -> Recorder:
    """Record what a GPU launches from now on. All of a process have one recorder."""
    if not _recorder:
        _recorder.append(Recorder(journal))
    _recorder[0].watch(gpu)
    return _recorder[0]


def sync() -> None:
    """Write what has been found since the latest launch."""
    for each in _recorder:
        each.sync()


@functools.cache
def before_an_abrupt_end(action: Callable[[], None]) -> None:
    """Do something before `os._exit` and `os.abort` end this process: they run no handlers."""
    me = os.getpid()

    def first(end: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(end)
        def ends(*arguments: Any) -> Any:
            if os.getpid() == me:
                with contextlib.suppress(Exception):
                    action()
            return end(*arguments)

        return ends

    os._exit, os.abort = first(os._exit), first(os.abort)  # type: ignore[assignment]
