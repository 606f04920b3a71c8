"""A CUDA program of one file with a `main`, compiled and run in this process.

It becomes a library like an extension's. Its `main` is called through an entry that keeps what
would end the process: `exit` comes back here, and so does a C++ exception of ../shim.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from b200.host.cuda import build
from b200.host.cuda.errors import BuildError

if TYPE_CHECKING:
    from b200.host.cuda.extension import Extensions

_THROWN = -1
B200 = ("-gencode=arch=compute_100a,code=sm_100a",)  # what tcgen05 takes
_ENTRY = r"""
#include <csetjmp>
#include <cstdio>
#include <cstring>
#include <exception>

int program_main(int, char**) asm("main");  // whatever the program declares it to take

namespace {
std::jmp_buf back;
int status = 0;
char thrown[65536];
}  // namespace

extern "C" {
// The linker puts it in the place of the program's exit.
[[noreturn]] void __wrap_exit(int code) {
  status = code;
  std::longjmp(back, 1);
}
__attribute__((visibility("default"))) int b200_run(int count, char** words) {
  if (setjmp(back) == 0) {
    try {
      status = program_main(count, words);
    } catch (const std::exception& error) {
      std::strncpy(thrown, error.what(), sizeof thrown - 1);
      status = -1;
    }
  }
  std::fflush(nullptr);
  return status;
}
__attribute__((visibility("default"))) const char* b200_thrown() { return thrown; }
}
"""


def run(extensions: Extensions, source: Path, arguments: Sequence[str]) -> int:
    """Compile a program for sm_100a, or for TORCH_CUDA_ARCH_LIST, and run it; its status. Raises
    BuildError, and EmulatorError for a kernel.
    """
    name = re.sub(r"\W", "_", source.stem)
    request = build.Request(
        name,
        (build.file_source(0, source), build.Source("entry.cpp", _ENTRY)),
        cuda_cflags=() if os.environ.get("TORCH_CUDA_ARCH_LIST") else B200,
        ldflags=("-Wl,--wrap=exit", "-Wl,--require-defined=main"),
        program=True,
    )
    library = ctypes.CDLL(str(_built(extensions, request, source)))
    words = [str(source), *arguments]
    array = (ctypes.c_char_p * (len(words) + 1))(*(word.encode() for word in words), None)
    driver = extensions.driver
    driver.error = None
    status = library.b200_run(len(words), array)
    library.b200_thrown.restype = ctypes.c_char_p
    if status == _THROWN and (said := library.b200_thrown().decode()):
        raise (
            driver.error
            if driver.error is not None and said in str(driver.error)
            else RuntimeError(said)
        )
    if (unasked := driver.unasked()) is not None:
        raise unasked
    return status


def _built(extensions: Extensions, request: build.Request, source: Path) -> Path:
    """The program's library, in this process. Its `main` may come from a file that it includes."""
    try:
        return extensions.build_and_load(request)
    except BuildError as error:
        if "required symbol" not in error.log:
            raise
        raise BuildError(f"{source}: a program needs a function main, this file has none") from None
