"""A CUDA program with a `main`, compiled and run in this process.

It becomes a library like an extension's. Its `main` is called through an entry that keeps what
would end the process, and with it what the launches were: `exit`, `abort`, a failed `assert`, an
exception that nobody catches, and one in a destructor, come back here.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import os
import re
import sys
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from b200.errors import EmulatorError
from b200.host.cuda import build
from b200.host.cuda.errors import BuildError
from b200.host.cuda.host_lines import HostLines
from b200.host.cuda.host_view import HostView
from b200.host.cuda.sources import Origin

if TYPE_CHECKING:
    from b200.host.cuda.driver import Driver
    from b200.host.cuda.extension import Extensions

_THROWN = -1
_ABORTED = 128 + 6  # as a shell has it, of SIGABRT
# what of the program's the linker replaces
_ENDS = ("exit", "quick_exit", "_exit", "_Exit", "abort", "__assert_fail")
B200 = ("-gencode=arch=compute_100a,code=sm_100a",)  # what tcgen05 takes


def run(extensions: Extensions, sources: Sequence[Path], arguments: Sequence[str]) -> int:
    """Compile a program for sm_100a, or for TORCH_CUDA_ARCH_LIST, and run it; its status. sources:
    its files, the first of which names it. Raises BuildError, and EmulatorError for a kernel.
    """
    source = sources[0]
    name = re.sub(r"\W", "_", source.stem)
    request = build.Request(
        name,
        tuple(itertools.starmap(build.file_source, enumerate(sources))),
        cuda_cflags=() if os.environ.get("TORCH_CUDA_ARCH_LIST") else B200,
        ldflags=(*(f"-Wl,--wrap={name}" for name in _ENDS), "-Wl,--require-defined=main"),
        program=True,
    )
    path = _built(extensions, request, source)
    library = ctypes.CDLL(str(path))
    words = [str(source), *arguments]
    array = (ctypes.c_char_p * (len(words) + 1))(*(word.encode() for word in words), None)
    driver = extensions.driver
    driver.error = None
    origins = {s.name: s.origin for s in request.sources if s.origin is not None}
    with _watched(extensions, path, library, origins):
        status = library.b200_run(len(words), array, _LAST_WORDS(functools.partial(_end, driver)))
    library.b200_thrown.restype = ctypes.c_char_p
    if status == _THROWN and (said := library.b200_thrown().decode()):
        ours = driver.error
        raise ours if ours is not None and said in str(ours) else RuntimeError(said)
    if status == _ABORTED and driver.error is not None:
        raise driver.error
    if (unasked := driver.unasked()) is not None:
        raise unasked
    return status


@contextlib.contextmanager
def _watched(
    extensions: Extensions, path: Path, library: ctypes.CDLL, origins: dict[str, Origin]
) -> Generator[None]:
    """What the host code of a program touches is looked at (host_view.py)."""
    driver, modules = extensions.driver, extensions.driver.modules
    lines = HostLines(path, origins)
    view = HostView(modules.runtime, lines, modules.name_at, driver.failed_outside)
    guard, queues = extensions.guard(), modules.runtime.queues
    limits = ctypes.c_uint64(view.first), ctypes.c_uint64(view.end)
    guard.b200_guard(*limits, view.asked, library.b200_leave)
    modules.view, modules.lines, queues.place = view, lines, lines.here
    try:
        yield
    finally:
        guard.b200_unguard()


_LAST_WORDS = ctypes.CFUNCTYPE(None, ctypes.c_char_p)


def _end(driver: Driver, said: bytes) -> None:
    """A thread of the program beside its main one has ended it: there is no way back to `run`."""
    error = driver.error
    text = error.told() if isinstance(error, EmulatorError) else said.decode()
    print(f"b200 run: in a thread of the program: {text}", file=sys.stderr, flush=True)
    sys.stdout.flush()
    os._exit(1)


def _built(extensions: Extensions, request: build.Request, source: Path) -> Path:
    """The program's library, in this process. Its `main` may come from a file that it includes."""
    try:
        return extensions.build_and_load(request)
    except BuildError as error:
        if "required symbol" not in error.log:
            raise
        raise BuildError(f"{source}: a program needs a function main, this file has none") from None
