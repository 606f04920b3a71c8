"""CUDAExtension and BuildExtension of a setup.py: extensions compiled for a B200 in software.

What is built is a library like that of `load` (build.py), where setuptools wants it. Its last bytes
are a mark, by which a process with the software B200 knows it when the program imports it, or gives
it to torch.ops.load_library. Extensions without CUDA stay torch's.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.machinery
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from b200.host.cuda import build
from b200.host.cuda.errors import BuildError

if TYPE_CHECKING:
    from b200.host.cuda.extension import Extensions

_MARK = b"\nfor a B200 in software\n"
_B200 = "-gencode=arch=compute_100a,code=sm_100a"  # whatever a project's list of GPUs says
_DEVICE_LINKING = ("dlink", "dlink_libraries")
_OF_TORCH = re.compile(r"c10|c10_cuda|torch(_\w+)?|cudart\w*|cuda")


def take_over(cpp_extension: Any) -> None:
    from setuptools.command.build_ext import build_ext

    cpp_extension.CUDAExtension = cuda_extension
    command = getattr(cpp_extension, "_BUILD_EXTENSION_CLASS", None)
    command = command or cpp_extension.BuildExtension  # older versions
    plain: Any = build_ext  # of a setup.py that leaves it as it is
    for each in (command, plain):
        each.build_extensions = _building(each.build_extensions)


def cuda_extension(name: str, sources: Any, *args: Any, **kwargs: Any) -> Any:
    """A setuptools.Extension that build_ext or BuildExtension compiles here. See torch."""
    import setuptools

    if given := [word for word in _DEVICE_LINKING if kwargs.pop(word, None)]:
        raise BuildError(f"extension {name!r}: {given[0]}= is not in the software B200")
    kwargs["language"] = "c++"
    made = setuptools.Extension(name, list(map(str, sources)), *args, **kwargs)
    made._b200 = True  # type: ignore[attr-defined]
    return made


def _building(build_extensions: Callable[[Any], None]) -> Callable[[Any], None]:
    """`build_extensions` of a command: ours are compiled here, the others as before."""

    @functools.wraps(build_extensions)
    def call(self: Any) -> None:
        every = self.extensions
        for extension in every:
            if hasattr(extension, "_b200"):
                compile_into(extension, Path(self.get_ext_fullpath(extension.name)))
        self.extensions = [x for x in every if not hasattr(x, "_b200")]
        try:
            if self.extensions:
                build_extensions(self)
        finally:
            self.extensions = every

    return call


def compile_into(extension: Any, out: Path) -> None:
    """Compile an Extension of setuptools into the library `out`. BuildError in one line."""
    given = extension.extra_compile_args or []
    per_compiler = given if isinstance(given, dict) else {"cxx": given, "nvcc": given}
    defined = extension.define_macros
    macros = [f"-D{name}" if value is None else f"-D{name}={value}" for name, value in defined]
    macros += [f"-U{name}" for name in extension.undef_macros]
    if getattr(extension, "py_limited_api", False):
        from torch.utils.cpp_extension import min_supported_cpython

        macros.append(f"-DPy_LIMITED_API={min_supported_cpython}")
    links = [f"-L{folder}" for folder in extension.library_dirs]
    links += [f"-l{name}" for name in extension.libraries if not _OF_TORCH.fullmatch(name)]
    request = build.Request(
        extension.name.rpartition(".")[2],
        tuple(_source(i, Path(file)) for i, file in enumerate(extension.sources)),
        (*macros, *per_compiler.get("cxx", ())),
        (*macros, *per_compiler.get("nvcc", ()), _B200),
        (*extension.extra_objects, *links, *extension.extra_link_args),
        tuple(map(os.path.abspath, extension.include_dirs)),
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(build.build(request), out)
    with out.open("ab") as file:
        file.write(_MARK)


def _source(index: int, path: Path) -> build.Source:
    """A file whose lines the library itself names: who loads it has not seen the file."""
    made = build.file_source(index, path)
    return dataclasses.replace(made, text=f'#line 1 "{path.resolve()}"\n{made.text}', origin=None)


def is_ours(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            file.seek(-len(_MARK), os.SEEK_END)
            return file.read() == _MARK
    except OSError:
        return False


def follow_imports(extensions: Extensions) -> None:
    """From now on libraries of `compile_into` that the program imports are the software B200's."""
    loader = importlib.machinery.ExtensionFileLoader
    create, execute = loader.create_module, loader.exec_module

    def create_module(self: Any, spec: Any) -> ModuleType:
        if not is_ours(self.path):
            return create(self, spec)
        with extensions.loading({}):
            return create(self, spec)

    def exec_module(self: Any, module: ModuleType) -> None:
        execute(self, module)
        if is_ours(self.path):
            extensions.watch(module)

    loader.create_module, loader.exec_module = create_module, exec_module  # type: ignore[method-assign]


def follow_libraries(ops: Any, extensions: Extensions) -> None:
    """The same for torch.ops.load_library. ops: the class of torch.ops."""
    load = ops.load_library

    @functools.wraps(load)
    def load_library(self: Any, path: Any) -> Any:
        if not is_ours(os.fspath(path)):
            return load(self, path)
        with extensions.loading({}):
            return load(self, path)

    ops.load_library = load_library
