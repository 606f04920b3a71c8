"""CUDA programs for the tests: compiled without torch's headers, called through ctypes.

A function of a program returns the text of the C++ exception it ended with, "" if it did not.
"""

from __future__ import annotations

import ctypes
import importlib
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType

import pytest

import b200
from b200.host.cuda.cache import cache_folder, digest_of, locked
from b200.host.cuda.driver import Driver
from b200.host.cuda.errors import BuildError
from b200.host.cuda.toolkit import check_run, find_toolkit

HEAD = """
#include <cuda.h>
#include <cuda_runtime.h>
#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>
#define EXPORT extern "C" __attribute__((visibility("default")))
#define TEST(name, ...) EXPORT const char* name(uint64_t a, uint64_t b) { static std::string said; \\
  said.clear(); try __VA_ARGS__ catch (const std::exception& error) { said = error.what(); } \\
  return said.c_str(); }
"""


def needs(find: Callable[[], object]) -> pytest.MarkDecorator:
    """Skips a test where `find` does not find what it looks for, for the reason that it gives."""
    try:
        find()
    except BuildError as error:
        return pytest.mark.skip(reason=str(error))
    return pytest.mark.skipif(False, reason="-")


needs_nvcc = needs(find_toolkit)


def one_folder(files: Mapping[str, str], *besides: str) -> Path:
    """A folder with these files, by name, beside what is compiled of them: the same one for the same
    files, in each process of the tests and in the next run of them. `b200 run` compiles a program
    again in another folder, as its includes may be others there, and that takes 3 CPU seconds.
    besides: what else it depends on.
    """
    base = cache_folder()
    folder = base / f"program-{digest_of(*besides, *files, *files.values())}"
    if not folder.exists():
        made = Path(tempfile.mkdtemp(dir=base))
        for name, text in files.items():
            (made / name).write_text(text)
        try:
            made.rename(folder)
        except OSError:  # another process was faster
            shutil.rmtree(made)
    return folder


def made_once_of(files: Mapping[str, str], make: Callable[[Path], object], *besides: str) -> Path:
    """`one_folder`, where `make` has put what it makes of the files, and then nobody writes."""
    folder = one_folder(files, *besides)
    with locked(folder / "lock"):
        if not (done := folder / "made").exists():
            make(folder)
            done.touch()
    return folder


def made_by_nvcc(files: Mapping[str, str], *words: str) -> Path:
    """A folder with these files, where nvcc was called with these words. said.txt: what it has said."""
    toolkit = find_toolkit()

    def make(folder: Path) -> None:
        (folder / "said.txt").write_text(check_run([str(toolkit.nvcc), *words], folder))

    return made_once_of(files, make, toolkit.build, toolkit.cxx_version, *words)


def compile_program(name: str, source: str | None, head: str = HEAD, **options) -> ctypes.CDLL:
    """A program of one CUDA source, compiled and loaded as load_inline does it. None: with a source
    of C++ alone, cpp_sources.
    """
    from torch.utils.cpp_extension import load_inline

    options.setdefault("extra_cuda_cflags", ["-gencode=arch=compute_100a,code=sm_100a"])
    options.setdefault("cpp_sources", "")
    path = load_inline(
        name,
        cuda_sources=None if source is None else head + source,
        is_python_module=False,
        no_implicit_headers=True,
        **options,
    )
    return ctypes.CDLL(path)


# Each has a SOURCE, of functions on tensors, and their declarations by name: DECLARED. REGISTERED of
# the last stands beside these: with torch's own headers, which it needs, g++ takes a third of the
# time that nvcc does.
WITH_TORCH = ("test_error_codes", "test_side_queues", "test_operators")


def torch_program() -> ModuleType:
    """The functions of all of WITH_TORCH in one extension: with torch's headers a compile takes ten
    seconds. Emulation is installed.
    """
    b200.install()
    from torch.utils.cpp_extension import load_inline

    parts = [importlib.import_module(f"tests.b200.host.cuda.{name}") for name in WITH_TORCH]
    functions = {name: text for part in parts for name, text in part.DECLARED.items()}
    return load_inline(
        "with_torch",
        cpp_sources="\n".join([*functions.values(), parts[-1].REGISTERED]),
        cuda_sources="\n".join(part.SOURCE for part in parts),
        functions=list(functions),
    )


def _driver() -> Driver:
    from torch.utils.cpp_extension import load_inline

    return load_inline.__self__.driver


def refusals() -> dict[int, str]:
    """Why calls were refused, by the number that they returned."""
    return _driver().refused


def caller(library: ctypes.CDLL) -> Callable[..., str]:
    """call(function, a, b): the function's exception text, "" without one. An error that the
    function has not asked CUDA for is forgotten: it would be raised in the next program's call.
    """

    def call(name: str, a: int = 0, b: int = 0) -> str:
        function = getattr(library, name)
        function.restype = ctypes.c_char_p
        said = function(ctypes.c_uint64(a), ctypes.c_uint64(b)).decode()
        _driver().unasked()
        return said

    return call
