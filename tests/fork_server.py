"""A Python that has imported what the commands import, and forks to become one of them.

`python eval.py` and `python -m b200` spend two CPU seconds on importing torch and the CuTe DSL, more
than most tests of theirs need, so tests start them here. What a command does, prints and returns is
its own. What this cannot show is that a command imports what it needs, and when: tests of that start
an interpreter.

`python -m tests.fork_server` reads requests from stdin, a JSON object a line, and answers each with
the exit status of the command, negative for a signal.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import importlib.util
import json
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from b200.chip import tensors
from b200.host.cuda.errors import BuildError
from b200.host.cuda.toolkit import find_toolkit
from b200.isa import grammar
from harness import digest
from tests import ROOT

IMPORTED = (
    *("cutlass.cute.runtime", "cutlass.torch", "reference"),
    *("harness.evaluator.command", "harness.evaluator.case.gpu_data"),
    *("harness.evaluator.case.worker", "harness.own.problem", "torch.utils._device"),
    *("b200.checker.checked", "b200.chip.schedules", "b200.clock", "b200.script"),
    *("b200.host.cuda", "b200.host.cuda.extension", "b200.host.dsl.engine", "b200.host.triton"),
    *("b200.host.own_gpu", "b200.program.linking", "b200.run_arguments", "b200.time_budget"),
    *("harness.diagnosis.diff", "harness.evaluator.made_by", "harness.own.modes"),
    *("b200.clock.draw", "b200.clock.call_time", "b200.clock.profile", "numpy.ma"),
)
IF_THERE = (  # where their package is installed
    *("triton", "triton.compiler.code_generator", "triton.experimental.gluon"),
    *("matplotlib.figure", "matplotlib.font_manager", "matplotlib.backends.backend_svg"),
)
# Read when numpy and the DSL are imported; a command would have set them before that.
ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1", "CUTE_DSL_DISABLE_FILE_CACHING": "1"}
LONGEST = 240  # seconds a command may take


class ForkServer:
    """Runs commands, one after another. The server ends with the process that made it."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.fork_server"],
            cwd=ROOT,
            env={**os.environ, **ENVIRONMENT},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(
        self,
        *command: str,
        cwd: Path = ROOT,
        env: Mapping[str, str] | None = None,
        limit: float = LONGEST,
        files: Mapping[int, Path] | None = None,
        anew: bool = False,
        signal_at: tuple[int, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """What `python COMMAND` returned and printed.

        command: a script, -m and a module, or -c and code; and arguments. env: its environment, if
        not that of this process. limit: seconds, after which it is killed. files: what its other
        descriptors write to, and what it reads from 0, which is nothing without. anew: in a Python
        of its own, for a command that asks CUDA for a GPU, which does not survive a fork. signal_at:
        a signal, and what it has printed when it gets that.
        """
        with tempfile.TemporaryDirectory() as folder:
            stdout, stderr = Path(folder, "stdout"), Path(folder, "stderr")
            stdout.touch(), stderr.touch()  # nothing, where `files` has another place
            # 0: not the server's requests
            given = {0: Path(os.devnull), 1: stdout, 2: stderr} | dict(files or {})
            status = self._status(
                {
                    "command": list(command),
                    "cwd": str(cwd),
                    "env": dict(os.environ if env is None else env),
                    "files": [(descriptor, str(path)) for descriptor, path in given.items()],
                    "limit": limit,
                    "anew": anew,
                    "signal_at": signal_at,
                }
            )
            said = stdout.read_text(), stderr.read_text()
        return subprocess.CompletedProcess(command, status, *said)

    def _status(self, request: dict[str, Any]) -> int:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        self._process.communicate()


def _become(request: dict[str, Any]) -> None:
    """In the fork: carry out the command, up to what it has registered for its end.

    What Python does after that, to free all modules one by one, takes half a second. What modules
    have registered in the server is for the server's end.
    """
    atexit._clear()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    tempfile.tempdir = None  # what the server has found by its own environment
    for descriptor, path in request["files"]:
        opened = os.open(path, os.O_WRONLY | os.O_CREAT if descriptor else os.O_RDONLY, 0o600)
        os.dup2(opened, descriptor)
        os.close(opened)
    sys.stdin = open(0, closefd=False)  # multiprocessing has put another file there
    if request["anew"]:
        os.execv(sys.executable, [sys.executable, *request["command"]])
    try:
        _run(request["command"], request["cwd"])
    except Exception:
        sys.excepthook(*sys.exc_info())
        sys.exit(1)
    finally:
        atexit._run_exitfuncs()


def _run(command: list[str], cwd: str) -> None:
    if command[0] == "-c":
        sys.argv, sys.path[0] = ["-c", *command[2:]], cwd
        sys.modules["__main__"] = main = types.ModuleType("__main__")
        exec(compile(command[1], "<string>", "exec"), main.__dict__)
    elif command[0] == "-m":
        _, module, *arguments = command
        sys.argv, sys.path[0] = [module, *arguments], cwd
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    else:
        sys.argv, sys.path[0] = command, str(Path(command[0]).parent)
        runpy.run_path(command[0], run_name="__main__")


def _status(request: dict[str, Any]) -> int | None:
    """How the command ended, killed where it had not in time."""
    process = multiprocessing.get_context("fork").Process(target=_become, args=(request,))
    process.start()
    if request["signal_at"] is not None:
        _signal(process, request)
    process.join(request["limit"])
    process.kill()
    process.join()
    return process.exitcode


def _signal(process: Any, request: dict[str, Any]) -> None:
    """A signal to a command that has printed what it is awaited to."""
    files, until = dict(request["files"]), time.monotonic() + request["limit"]
    number, awaited = request["signal_at"]
    while process.is_alive() and time.monotonic() < until:
        if any(awaited in Path(files[descriptor]).read_text() for descriptor in (1, 2)):
            os.kill(process.pid, number)
            return
        time.sleep(0.01)


def import_all(modules: Iterable[str]) -> None:
    """Import modules for processes that are forked later. `import cutlass` asks the driver for a
    GPU, and where there is one, torch does not survive a question for it in a fork after that: so
    the driver is not asked.
    """
    from cuda.bindings import driver

    ask = driver.cuInit
    driver.cuInit = lambda flags: (driver.CUresult.CUDA_ERROR_NO_DEVICE,)
    for name in modules:
        importlib.import_module(name)
    driver.cuInit = ask


def of_features() -> set[str]:
    """The modules of b200.host that an install imports."""
    from b200.host.features import FEATURES

    return {f"b200.host.{feature.patch.partition(':')[0]}" for feature in FEATURES}


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all; pytest ends us
    there = [name for name in IF_THERE if importlib.util.find_spec(name.partition(".")[0])]
    import_all((*IMPORTED, *sorted(of_features()), *there))
    grammar.table()  # read once, as the modules are
    digest.made_by()  # of the sources, which no command changes
    digest.part("ranges")
    if "triton" in there:
        importlib.import_module("triton.runtime.cache").triton_key()  # a digest of all its files
    with contextlib.suppress(BuildError):
        find_toolkit()  # asked once, where a command looks for it at the same place
    tensors.set_apart()  # so that a collection in a fork does not write to, and so copy, what is shared
    for line in sys.stdin:
        print(_status(json.loads(line)), flush=True)
    gc.freeze()  # as Python ends, the collector goes over all that is not apart: half a second


if __name__ == "__main__":
    main()
