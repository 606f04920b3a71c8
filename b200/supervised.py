"""A program in a process of its own, so that what it has found is told however it ends: by a
signal, by os._exit, by abort, or as another program.

The process that stays waits for it. It passes signals on, and ends as the program has ended.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

GRACE = 3.0  # seconds from SIGTERM to the end of a program that goes on
PATIENCE = 2.0  # seconds more, until it is killed
EVERY = 0.5  # seconds between two looks at what it has found
_FROM_THE_TERMINAL = 128  # si_code SI_KERNEL: the whole group has had the signal
_DEATH_SIGNAL = 1  # prctl: PR_SET_PDEATHSIG
_PASSED_ON = {
    *(signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT),
    *(signal.SIGUSR1, signal.SIGUSR2),
}
_WAITED_FOR = _PASSED_ON | {signal.SIGCHLD}


@dataclass(frozen=True)
class Ended:
    """How a program ended. signal: that has killed it, 0 if none has. passed_on: signals that were
    sent to it.
    """

    status: int
    signal: int
    passed_on: frozenset[int]

    @property
    def words(self) -> str:
        """What has ended it. A program may answer a signal with the status of it."""
        answered = {128 + signal.SIGTERM: signal.SIGTERM, 128 + signal.SIGINT: signal.SIGINT}
        by = self.signal or answered.get(self.status, 0)
        by = signal.SIGTERM if signal.SIGTERM in self.passed_on else by
        return signal.Signals(by).name if by else f"exit status {self.status}"


class Supervisor:
    """The process that stays, in which a program is started by `fork`."""

    def __init__(self) -> None:
        self._mask: set[signal.Signals | int] = set()
        self._child = 0

    def fork(self) -> bool:
        """Whether this is the program's process. It ends by SIGTERM where the other one is gone."""
        sys.stdout.flush()
        sys.stderr.flush()
        self._mask = set(signal.pthread_sigmask(signal.SIG_BLOCK, _WAITED_FOR))
        supervisor = os.getpid()
        self._child = os.fork()
        if self._child:
            return False
        ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGTERM)
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
        if os.getppid() != supervisor:
            os.kill(os.getpid(), signal.SIGTERM)
        return True

    def wait(self, meanwhile: Callable[[], None]) -> Ended:
        """Until the program has ended. `meanwhile` is called now and then."""
        passed_on: set[int] = set()
        last = float("inf")
        next_look = time.monotonic() + EVERY
        while True:
            found = signal.sigtimedwait(_WAITED_FOR, max(0.0, next_look - time.monotonic()))
            ended, waited = os.waitpid(self._child, os.WNOHANG)
            if ended:
                return _ended(waited, passed_on)
            now = time.monotonic()
            if found is not None and found.si_signo in _PASSED_ON:
                if found.si_code != _FROM_THE_TERMINAL:
                    os.kill(self._child, found.si_signo)
                passed_on.add(found.si_signo)
                if found.si_signo == signal.SIGTERM:
                    last = min(last, now + GRACE + PATIENCE)
            if now >= last:
                os.kill(self._child, signal.SIGKILL)
                last = float("inf")
            if now >= next_look:
                meanwhile()
                next_look = time.monotonic() + EVERY

    def over(self) -> None:
        """All is told: signals are the process's own again. Those that came twice are forgotten."""
        while signal.sigtimedwait(_WAITED_FOR, 0) is not None:
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)


def _ended(waited: int, passed_on: set[int]) -> Ended:
    if os.WIFSIGNALED(waited):
        killed = os.WTERMSIG(waited)
        return Ended(128 + killed, killed, frozenset(passed_on))
    return Ended(os.WEXITSTATUS(waited), 0, frozenset(passed_on))


def end_by(number: int) -> None:
    """End this process by a signal, as the program was. Its core is the program's."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    signal.signal(number, signal.SIG_DFL) if number != signal.SIGKILL else None
    os.kill(os.getpid(), number)
