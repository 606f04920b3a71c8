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
from collections.abc import Iterator, Sequence
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
_ENTRY = r"""
#include <csetjmp>
#include <cstdio>
#include <cstring>
#include <exception>
#include <string>

int program_main(int, char**) asm("main");  // whatever the program declares it to take

namespace {
std::jmp_buf back;
thread_local bool runs_main = false;  // elsewhere there is no way back
void (*last_words)(const char*) = nullptr;  // of a thread beside main; does not return
int status = 0;
char thrown[65536];

[[noreturn]] void leave(int code) {
  status = code;
  std::longjmp(back, 1);
}
}  // namespace

extern "C" {
#define ENDS(exit)                                 \
  [[noreturn]] void __real_##exit(int code);       \
  [[noreturn]] void __wrap_##exit(int code) {      \
    if (!runs_main) __real_##exit(code);           \
    leave(code);                                   \
  }
ENDS(exit)
ENDS(quick_exit)
ENDS(_exit)
ENDS(_Exit)
[[noreturn]] void __real_abort();
[[noreturn]] void __wrap_abort() {
  if (!runs_main) __real_abort();
  std::fputs("aborted\n", stderr);
  leave(ABORTED);
}
[[noreturn]] void __wrap___assert_fail(const char* what, const char* file, unsigned line,
                                       const char* function) {
  std::fprintf(stderr, "%s:%u: %s: Assertion `%s' failed.\n", file, line, function, what);
  __wrap_abort();
}
static void terminated() {
  std::string said = "terminated";
  try {
    if (std::current_exception()) throw;
  } catch (const std::exception& error) {
    said = std::string("terminated by an exception: ") + error.what();
  } catch (...) {
    said = "terminated by an exception";
  }
  if (!runs_main) last_words(said.c_str());
  std::fprintf(stderr, "%s\n", said.c_str());
  leave(ABORTED);
}
__attribute__((visibility("default"))) int b200_run(int count, char** words,
                                                    void (*in_a_thread)(const char*)) {
  runs_main = true;
  last_words = in_a_thread;
  const std::terminate_handler usual = std::set_terminate(terminated);
  if (setjmp(back) == 0) {
    try {
      status = program_main(count, words);
    } catch (const std::exception& error) {
      std::strncpy(thrown, error.what(), sizeof thrown - 1);
      status = -1;
    }
  }
  std::set_terminate(usual);
  runs_main = false;
  std::fflush(nullptr);
  return status;
}
__attribute__((visibility("default"))) const char* b200_thrown() { return thrown; }
__attribute__((visibility("default"))) void b200_leave() {  // by ../shim/guard.cpp
  if (!runs_main) last_words("");
  leave(ABORTED);
}
}
"""


def run(extensions: Extensions, sources: Sequence[Path], arguments: Sequence[str]) -> int:
    """Compile a program for sm_100a, or for TORCH_CUDA_ARCH_LIST, and run it; its status. sources:
    its files, the first of which names it. Raises BuildError, and EmulatorError for a kernel.
    """
    source = sources[0]
    name = re.sub(r"\W", "_", source.stem)
    entry = _ENTRY.replace("ABORTED", str(_ABORTED))
    request = build.Request(
        name,
        (
            *itertools.starmap(build.file_source, enumerate(sources)),
            build.Source("entry.cpp", entry),
        ),
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
        raise (
            driver.error
            if driver.error is not None and said in str(driver.error)
            else RuntimeError(said)
        )
    if status == _ABORTED and driver.error is not None:
        raise driver.error
    if (unasked := driver.unasked()) is not None:
        raise unasked
    return status


@contextlib.contextmanager
def _watched(
    extensions: Extensions, path: Path, library: ctypes.CDLL, origins: dict[str, Origin]
) -> Iterator[None]:
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
