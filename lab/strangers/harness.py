"""The benchmark of mlc-ai/TIRx-kernels, which builds each kernel's arguments and launches it.

Its own kernels need a compiler, tvm, which is there for a row of theirs alone (tirx.py). For the
kernels of others it is left out, and what the benchmark holds against its own ones is not held.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.metadata
import importlib.util
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from lab.strangers import schedules, tirx
from lab.strangers.rows import CUTE_DSL, DSL, OWN, SGLANG

PACKAGE = "tirx_kernels"
LEFT_OUT = "tvm"
CHECKS = ("_assert", "_check", "_launch_tir")  # how names of functions begin that need its kernels
MAKERS = ("get_kernel", "compile_spec", "build_launch")  # of those that make them
EXPECTED = (
    "dequantize",
    "_dequantize",
    "k_grouped_dequantize",
)  # of those that make results to expect
DATA = "data"  # the module of a package beside a kernel that has such functions

Launch = Callable[[], Any]
Measure = Callable[[Launch], None]


class _Nothing:
    """What a module of the compiler has under any name: it can be called, indexed, gone over,
    inherited from and entered, and does nothing. Nothing is an instance of it. It also stands for a
    result that is not made: torch's functions of it do nothing.
    """

    def __getattr__(self, name: str) -> _Nothing:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *_args: Any, **_kwargs: Any) -> _Nothing:
        return self

    def __getitem__(self, _key: Any) -> _Nothing:
        return self

    def __iter__(self) -> Iterator[_Nothing]:
        return iter(())

    def __mro_entries__(self, _bases: tuple) -> tuple:
        return ()

    def __or__(self, _other: Any) -> _Nothing:
        return self

    __add__ = __matmul__ = __or__

    @classmethod
    def __torch_function__(cls, *_args: Any, **_kwargs: Any) -> _Nothing:
        return NOTHING

    def __instancecheck__(self, _instance: Any) -> bool:
        return False

    def __enter__(self) -> _Nothing:
        return self

    def __exit__(self, *_error: Any) -> None:
        pass


NOTHING = _Nothing()


class _Module(types.ModuleType):
    def __getattr__(self, name: str) -> _Nothing:
        if name.startswith("__"):
            raise AttributeError(name)
        return NOTHING


class _LeftOut(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the compiler's modules, empty."""

    def find_spec(self, fullname: str, *_: Any) -> importlib.machinery.ModuleSpec | None:
        if fullname.partition(".")[0] != LEFT_OUT:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def run(kernel: str, config: str, implementation: str, measure: Measure) -> None:
    """Build a kernel's arguments, and give `measure` what launches it once. The work tree of
    TIRx-kernels is on the path.

    kernel, config: as its benchmark names them. implementation: one of those that it has of this
    kernel. Raises LookupError for a name that it does not know, and ImportError where the kernel
    would be made by another CuTe DSL than the one that was timed.
    """
    if implementation.endswith(CUTE_DSL):
        _look_at_the_dsl()
    own = implementation == OWN
    if own:
        tirx.prepare(PACKAGE)
    else:
        sys.meta_path.insert(0, _LeftOut())
    if implementation == SGLANG:
        schedules.prepare()
    _hold_nothing()
    runner: Any = importlib.import_module(f"{PACKAGE}.runner")
    found: list[bool] = []

    def bench(
        funcs: Mapping[str, Launch],
        *_args: Any,
        references: Mapping[str, Callable[[], Launch]] = MappingProxyType({}),
        **_kwargs: Any,
    ) -> dict:
        known = funcs if own else references
        if implementation not in known:
            raise LookupError(f"{kernel} has {', '.join(known)}; found {implementation!r}")
        measure(funcs[implementation] if own else references[implementation]())
        found.append(True)
        return {}

    runner.bench = bench
    if not own:
        runner.compile_kernel = NOTHING
        runner.set_external_references_enabled(True)
    module = importlib.import_module(f"{PACKAGE}.registry").load_kernel(kernel, strict=True)
    _leave_out(module, CHECKS if own else (*CHECKS, *MAKERS, *EXPECTED))
    module.run_bench(**_arguments(module, config))
    if not found:
        raise LookupError(f"{kernel}: its benchmark has measured nothing")


def _leave_out(module: types.ModuleType, names: tuple[str, ...]) -> None:
    """Functions whose names begin so do nothing, in a kernel's module and in those beside it, of
    which it has some. What a check gives is None, which some benchmarks ask for; what others give
    can be indexed, as a kernel may be several launches.
    """
    beside = f"{module.__name__.rpartition('.')[0]}."
    for name in [n for n in sys.modules if n.startswith(beside) and _is_package(n)]:
        if importlib.util.find_spec(f"{name}.{DATA}"):
            importlib.import_module(f"{name}.{DATA}")
    for each in [m for name, m in sys.modules.items() if name.startswith(beside)]:
        for name, value in list(vars(each).items()):
            if name.startswith(names) and callable(value):
                check = name.startswith(CHECKS)
                setattr(each, name, _checks_nothing if check else NOTHING)


def _checks_nothing(*_args: Any, **_kwargs: Any) -> None:
    pass


def _is_package(name: str) -> bool:
    return hasattr(sys.modules[name], "__path__")


def _look_at_the_dsl() -> None:
    """Another version makes other code: 4.8.1 loads 16 bytes where 4.6.0.dev0 loads 2 at a time."""
    found = importlib.metadata.version("nvidia-cutlass-dsl")
    if found != DSL:
        raise ImportError(f"nvidia-cutlass-dsl: expected {DSL}, as was timed; found {found}")


def _hold_nothing() -> None:
    """What the benchmark asks of two results is said to hold: one of them is not made."""
    import torch

    torch.equal = torch.allclose = lambda *_args, **_kwargs: True
    torch.testing.assert_close = lambda *_args, **_kwargs: None
    put: Any = torch.Tensor.__setitem__

    def setitem(tensor: torch.Tensor, place: Any, value: Any) -> None:
        if value is not NOTHING:  # a result to expect
            put(tensor, place, value)

    torch.Tensor.__setitem__ = setitem


def _arguments(module: types.ModuleType, config: str) -> dict[str, Any]:
    known = getattr(module, "BENCH_CONFIGS", None) or module.CONFIGS
    for each in known:
        if each.get("label") == config:
            return {name: value for name, value in each.items() if name != "label"}
    raise LookupError(f"{module.__name__} has no configuration {config!r}")
