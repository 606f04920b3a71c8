"""Keeps a submission from starting other programs: one public file starts pip and so replaces the
DSL that everybody else is judged with.

Not a sandbox: it stops what is started through Python's own functions, not what machine code does.
"""

from __future__ import annotations

import os
import shlex
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import Any

# Compilers and what they and torch ask of the machine (torch.utils.cpp_extension, ctypes.util).
ALLOWED = frozenset(
    """
    nvcc cicc ptxas ptxas-blackwell fatbinary nvlink cuobjdump nvdisasm ninja
    c++ g++ gcc cc clang clang++ ld ld.lld ar nm objdump
    ldconfig lscpu uname which
    """.split()
)
_EVENTS = {"subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "pty.spawn"}


class ProgramStarted(BaseException):
    """Stops a submission that starts a program; no Exception, so that it is not swallowed."""


class Guard:
    """Stops the start of programs in this process, for as long as it lives.

    allowed: names of programs besides ALLOWED. stopped: what was tried, a line each.
    """

    def __init__(self, allowed: Iterable[str] = ()):
        self.stopped: list[str] = []
        self._allowed = ALLOWED | set(allowed) | _compilers_of_environment()

        # Python calls it for each id() and each f_code of a frame, too, hundreds of thousands in a
        # case. A function is a third of the price of a bound method.
        def hook(event: str, args: tuple[Any, ...]) -> None:
            if event in _EVENTS:
                self._started(event, args)

        sys.addaudithook(hook)

    def _started(self, event: str, args: tuple[Any, ...]) -> None:
        name, command = _command(event, args)
        if name not in self._allowed:
            text = (
                f"the submission started a program, `{command[:200]}`{_place()}: stopped. Compilers"
                f" may run; --allow {name} lets this one"
            )
            self.stopped.append(text)
            raise ProgramStarted(text)


def _command(event: str, args: tuple[Any, ...]) -> tuple[str, str]:
    """The program's name and the command line that an audit event is about (docs.python.org, Audit
    events table). A shell is a program, too, whatever it is told.
    """
    if event == "os.system":
        return "sh", os.fsdecode(args[0])
    program: Any = args[0]
    given: Any = args[1] if len(args) > 1 else ()
    words = [given] if isinstance(given, (str, bytes, os.PathLike)) else list(given or ())
    words = [os.fsdecode(word) for word in words]
    program = words[0] if program is None and words else os.fsdecode(program or "?")
    return Path(program).name, shlex.join([program, *words[1:]])


def _compilers_of_environment() -> set[str]:
    """Compilers that the user named as build tools expect it."""
    named = (os.environ.get(key, "") for key in ("CC", "CXX", "CUDAHOSTCXX", "NVCC"))
    return {Path(name.split()[0]).name for name in named if name.strip()}


def _place() -> str:
    """The innermost line of the submission that is being executed."""
    source = getattr(sys.modules.get("submission"), "__file__", None)
    for frame in reversed(traceback.extract_stack()):
        if source is not None and frame.filename == source:
            return f" ({Path(source).name}:{frame.lineno}, in {frame.name})"
    return ""
