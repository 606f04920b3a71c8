"""`torch.utils.cpp_extension.load_inline` and `load` with CUDA sources, for a B200 in software."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.util
import os
import re
import shlex
from collections.abc import Generator, Sequence
from pathlib import Path
from types import BuiltinFunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from b200.chip.unwritten import LIMIT, PATTERN
from b200.host.cuda import build
from b200.host.cuda.cache import cache_folder, digest_of, made_once
from b200.host.cuda.driver import CALL, Driver, pointer_to
from b200.host.cuda.errors import BuildError
from b200.host.cuda.registration import Loading
from b200.host.cuda.sources import Origin, callers, on_cpu, origin
from b200.host.cuda.stand_in import FOLDER
from b200.host.cuda.toolkit import Toolkit, check_run, find_toolkit
from b200.program.names import readable

if TYPE_CHECKING:
    from b200.host.torch.overrides import Overrides  # with it comes torch

_TEXT = ctypes.CFUNCTYPE(ctypes.c_void_p)
_WITHOUT_EFFECT = {"keep_intermediates", "use_pch"}


class Extensions:
    """Builds and loads extensions; `driver` answers the CUDA calls of their code."""

    def __init__(self, driver: Driver):
        self.driver = driver
        self._callbacks = (CALL(driver.answer), _TEXT(driver.exception_text))
        self._connected = False
        self._find_allocation = None

    # --- what torch.utils.cpp_extension offers
    def load_inline(
        self,
        name: str,
        cpp_sources: str | Sequence[str],
        cuda_sources: str | Sequence[str] | None = None,
        sycl_sources: Any = None,
        functions: str | Sequence[str] | dict[str, str] | None = None,
        extra_cflags: Sequence[str] | None = None,
        extra_cuda_cflags: Sequence[str] | None = None,
        extra_sycl_cflags: Any = None,
        extra_ldflags: Sequence[str] | None = None,
        extra_include_paths: Sequence[str] | None = None,
        build_directory: str | None = None,
        verbose: bool = False,
        with_cuda: bool | None = None,
        with_sycl: bool | None = None,
        is_python_module: bool = True,
        with_pytorch_error_handling: bool = True,
        no_implicit_headers: bool = False,
        **others: Any,
    ) -> Any:
        """See torch. Compiled libraries are kept by content, whatever build_directory says. others:
        keywords without effect here.
        """
        _check_known(others)
        cpp, cuda = _texts(cpp_sources), _texts(cuda_sources)
        if not no_implicit_headers:
            cpp.insert(0, "#include <torch/extension.h>")
            if cuda:
                cuda[:0] = [
                    f"#include <{h}>" for h in ("torch/types.h", "cuda.h", "cuda_runtime.h")
                ]
        if functions is not None:
            cpp.append(_bindings(functions, with_pytorch_error_handling))
        user_files = callers()
        sources = [_source("main.cpp", "\n".join(cpp), user_files)]
        if cuda:
            sources.append(_source("cuda.cu", "\n".join(cuda), user_files))
        flags = extra_cflags, extra_cuda_cflags, extra_ldflags
        request = _request(name, sources, flags, extra_include_paths, verbose)
        return self._load(request, is_python_module)

    def load(
        self,
        name: str,
        sources: str | Sequence[str],
        extra_cflags: Sequence[str] | None = None,
        extra_cuda_cflags: Sequence[str] | None = None,
        extra_sycl_cflags: Any = None,
        extra_ldflags: Sequence[str] | None = None,
        extra_include_paths: Sequence[str] | None = None,
        build_directory: str | None = None,
        verbose: bool = False,
        with_cuda: bool | None = None,
        with_sycl: bool | None = None,
        is_python_module: bool = True,
        is_standalone: bool = False,
        **others: Any,
    ) -> Any:
        """See torch: an extension of .cpp and .cu files."""
        _check_known(others)
        if is_standalone:
            raise BuildError(f"extension {name!r}: is_standalone is not in the software B200")
        files = [sources] if isinstance(sources, (str, os.PathLike)) else list(sources)
        of = [build.file_source(i, Path(file)) for i, file in enumerate(files)]
        flags = extra_cflags, extra_cuda_cflags, extra_ldflags
        request = _request(name, of, flags, extra_include_paths, verbose)
        return self._load(request, is_python_module)

    # --- loading
    def build_and_load(self, request: build.Request) -> Path:
        """The library of a request, in this process, its kernels registered."""
        path = build.build(request)
        origins = {s.name: s.origin for s in request.sources if s.origin is not None}
        with self.loading(origins):
            try:
                ctypes.CDLL(str(path))  # its registration runs here
            except OSError as error:
                if found := re.search(r"undefined symbol: (\w+)", str(error)):
                    symbol = readable(found[1])
                    error = f"{symbol} is declared and in none of the files that are compiled"
                raise BuildError(f"{request.name!r} does not load: {error}") from None
        return path

    @contextlib.contextmanager
    def loading(self, origins: dict[str, Origin]) -> Generator[None]:
        """Inside, a compiled library comes into this process, and registers what it has. origins:
        of its lines, by a compiled file's name.
        """
        self._connect()
        self.driver.registration.loading = loading = Loading(origins)
        before = _cuda_kernels()
        try:
            yield
        finally:
            self.driver.registration.loading = None
        if loading.error is not None:
            raise loading.error
        _overrides().compiled |= _cuda_kernels() - before

    def _load(self, request: build.Request, is_python_module: bool) -> Any:
        path = self.build_and_load(request)
        if is_python_module:
            return self._module(request.name, path)
        import torch

        torch.ops.load_library(str(path))
        return str(path)

    def _module(self, name: str, path: Path) -> ModuleType:
        spec = importlib.util.spec_from_file_location(name, path)
        if spec is None or spec.loader is None:
            raise BuildError(f"extension {name!r}: {path} is not a Python module")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        self.watch(module)
        return module

    def watch(self, module: ModuleType) -> None:
        """Functions of a compiled module, and of modules in it, work on the GPU's tensors."""
        for attribute, value in list(vars(module).items()):
            inside = f"{module.__name__}.{attribute}"
            if isinstance(value, BuiltinFunctionType):
                setattr(module, attribute, self._raising_ours(value))
            elif isinstance(value, ModuleType) and value.__name__ == inside:
                self.watch(value)

    def _raising_ours(self, function):
        """The function, raising the exception itself where C++ could only carry its text, and the
        error that a call has returned and nobody has asked for.
        """

        from b200.host.torch import devices
        from b200.host.torch.device_arguments import on_gpu

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any):
            self.driver.error = None
            gpu = devices.work_on_gpu(args, kwargs)
            try:
                with on_gpu.making(gpu), devices.overrides.calling(gpu):
                    result = function(*args, **kwargs)
                if gpu:
                    result = devices.on_device(result, args, kwargs)
            except RuntimeError as error:
                ours, self.driver.error = self.driver.error, None
                if ours is not None and str(ours) in str(error):
                    raise ours from None
                raise
            unasked = self.driver.unasked()
            if unasked is not None:
                raise unasked
            return result

        return call

    # --- the C++ parts every program shares
    def _connect(self) -> None:
        """Put the table of callbacks, and the account of allocations, into this process."""
        if self._connected:
            return
        toolkit = find_toolkit()
        table = ctypes.CDLL(str(_shared("table", toolkit)), mode=ctypes.RTLD_GLOBAL)
        call, error = map(pointer_to, self._callbacks)
        ctypes.c_void_p.in_dll(table, "b200_cuda_call").value = call
        ctypes.c_void_p.in_dll(table, "b200_cuda_error").value = error
        _overrides().on_gpu = ctypes.c_int.in_dll(table, "b200_on_gpu")
        account = ctypes.CDLL(str(_shared("allocator", toolkit)))
        pattern = ctypes.c_void_p(PATTERN.ctypes.data)
        if account.b200_account_for_allocations(pattern, PATTERN.nbytes, ctypes.c_uint64(LIMIT)):
            self._find_allocation = account.b200_find_allocation
        self._connected = True
        self._keep = (table, account)

    def guard(self) -> ctypes.CDLL:
        return ctypes.CDLL(str(_shared("guard", find_toolkit())))

    def find(self, _memory: Any, address: int) -> None:
        """Make the allocation that holds an address legal (a `find_more` of GlobalMemory); where
        none does, the one below it, which a report then names.
        """
        modules = self.driver.modules
        found = modules.region_at(address)
        if found is None and self._find_allocation is not None:
            first, size = ctypes.c_uint64(), ctypes.c_uint64()
            if self._find_allocation(
                ctypes.c_uint64(address), ctypes.byref(first), ctypes.byref(size)
            ):
                name = f"a tensor of {size.value} bytes made in C++"
                found = (first.value, size.value, name, False)
        modules.make_legal(found or modules.region_below(address))

    def find_reserved(self, _memory: Any, address: int) -> None:
        """The same of what the driver has made (a `search_first` of GlobalMemory)."""
        self.driver.modules.make_legal(self.driver.modules.reserved_region_at(address))


def _overrides() -> Overrides:
    from b200.host.torch.devices import overrides

    return overrides


def _shared(part: str, toolkit: Toolkit) -> Path:
    """A library of one file of shim/, compiled once for this torch and compiler."""
    import torch

    source = FOLDER / f"{part}.cpp"
    key = digest_of(
        source.read_text(),
        (source.parent / "backend.h").read_text(),
        torch.__version__,
        toolkit.cxx_version,
    )
    home = Path(torch.__file__).parent

    def make(work: Path) -> Path:
        made = work / "part.so"
        command = [toolkit.cxx, "-std=c++20", "-O1", "-fPIC", "-shared", f"-I{source.parent}"]
        command += ["-isystem", str(home / "include"), str(source), "-o", str(made)]
        check_run([*command, f"-L{home / 'lib'}", "-lc10"], work)
        return made

    return made_once(cache_folder() / f"{part}-{key}.so", make)


def _cuda_kernels() -> set[str]:
    """Operators that have a kernel for CUDA, by name and overload."""
    import torch

    return set(torch._C._dispatch_get_registrations_for_dispatch_key("CUDA"))


def _check_known(others: dict[str, Any]) -> None:
    """BuildError for a keyword of a torch that is newer, with a value that may mean something."""
    unknown = sorted(k for k, v in others.items() if v and k not in _WITHOUT_EFFECT)
    if unknown:
        raise BuildError(f"torch.utils.cpp_extension: {unknown[0]}= is not in the software B200")


def _request(
    name: str,
    sources: Sequence[build.Source],
    flags: Sequence[Sequence[str] | None],
    includes: Sequence[str] | None,
    verbose: bool,
) -> build.Request:
    """flags: of the C++ compiler, of nvcc, of the linker."""
    cxx, nvcc, linker = map(_words, flags)
    paths = tuple(map(os.path.abspath, includes or ()))
    return build.Request(name, tuple(sources), cxx, nvcc, linker, paths, bool(verbose))


def _words(flags: Sequence[str] | None) -> tuple[str, ...]:
    """Flags as torch passes them on: joined into a line, where empty ones vanish and one with
    blanks is several.
    """
    return tuple(shlex.split(" ".join(flags or ())))


def _texts(sources: str | Sequence[str] | None) -> list[str]:
    return [sources] if isinstance(sources, str) else list(sources or ())


def _bindings(functions: str | Sequence[str] | dict[str, str], safe: bool) -> str:
    if isinstance(functions, str):
        functions = [functions]
    if not isinstance(functions, dict):
        functions = {name: name for name in functions}
    lines = ["PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {"]
    for name, text in functions.items():
        target = f"torch::wrap_pybind_function({name})" if safe else name
        lines.append(f'm.def("{name}", {target}, "{text}");')
    return "\n".join([*lines, "}"])


def _source(name: str, text: str, user_files: Sequence[str]) -> build.Source:
    return build.Source(name, on_cpu(text) + "\n", None, origin(text, user_files))
