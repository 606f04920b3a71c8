"""Kernels as the host code of raw CUDA knows them, and one launch: its configuration as C++ hands
it over, its parameters, its limits.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

from b200 import occupancy
from b200.hardware import MAX_BLOCK, MAX_GRID, MAX_THREADS, SM_REGISTERS, SMEM_DEFAULT, SMEM_OPT_IN
from b200.host import refusals
from b200.host.poke import parameters_at, peek
from b200.host.refusals import Refused, check_cooperative
from b200.program.module import Kernel, Program
from b200.program.names import readable

_END, _POINTER, _SIZE = 0, 1, 2  # CU_LAUNCH_PARAM_*


@dataclass
class Module:
    """A module that a library registered, or a program loaded. registers: a thread's, by kernel."""

    program: Program
    registers: dict[str, int] = field(default_factory=dict[str, int])


@dataclass
class Function:
    """A kernel. dynamic_smem, non_portable_cluster: what cudaFuncSetAttribute has set of it; bytes,
    None as compiled.
    """

    module: Module
    kernel: Kernel
    dynamic_smem: int | None = None
    non_portable_cluster: bool = False

    @property
    def registers(self) -> int:
        """Registers a thread, as ptxas said; 0 if it did not run."""
        return self.module.registers.get(self.kernel.name, 0)

    @property
    def static_smem(self) -> int:
        return self.module.program.static_smem(self.kernel)

    @property
    def local_bytes(self) -> int:
        return sum(v.size for v in self.kernel.variables.values() if v.space == "local")

    @property
    def constant_bytes(self) -> int:
        return sum(v.size for v in self.module.program.variables.values() if v.space == "const")

    @property
    def most_threads(self) -> int:
        """Threads that a CTA may have."""
        directives = self.kernel.directives
        return prod(directives.get("maxntid") or directives.get("reqntid") or (MAX_THREADS,))

    @property
    def dynamic_smem_limit(self) -> int:
        limit = self.dynamic_smem
        return max(SMEM_DEFAULT - self.static_smem, 0) if limit is None else limit


class LaunchWords(ctypes.Structure):
    """`b200::Launch` of shim/backend.h."""

    _fields_ = [
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("cluster", ctypes.c_uint32 * 3),
        ("cooperative", ctypes.c_uint32),
        ("dependent", ctypes.c_uint32),
        ("dynamic_smem", ctypes.c_uint64),
        ("arguments", ctypes.c_uint64),
        ("packed", ctypes.c_uint64),
        ("queue", ctypes.c_uint64),
    ]

    @classmethod
    def of(cls, grid: Sequence[int], block: Sequence[int], dynamic_smem: int) -> LaunchWords:
        """A launch without clusters and, so far, without arguments."""
        words = cls(dynamic_smem=int(dynamic_smem))
        words.grid[:], words.block[:] = list(map(int, grid)), list(map(int, block))
        return words


def cluster_of(kernel: Kernel, words: LaunchWords) -> tuple[int, int, int]:
    """The cluster of a launch: the kernel's own (`__cluster_dims__`), or the launch's."""
    asked = tuple(words.cluster)
    own = kernel.directives.get("reqnctapercluster")
    if own:
        x, y, z = (*own, 1, 1)[:3]
        own = (x, y, z)
        if any(asked) and asked != own:
            raise _refused(kernel, f"cluster {asked}, but it is compiled for clusters of {own}")
        return own
    if any(asked) and not all(asked):
        raise _refused(kernel, f"cluster {asked} has an empty dimension")
    return asked if any(asked) else (1, 1, 1)


def parameters(kernel: Kernel, words: LaunchWords) -> bytes:
    """The kernel's parameters as they lie in memory, from an array of pointers or a packed copy."""
    if not words.arguments and words.packed:
        return _packed(kernel, words.packed)
    count = len(kernel.params)
    if count and not words.arguments:
        raise _refused(kernel, f"no arguments, but it has {count} parameters")
    places = peek(words.arguments, f"<{count}Q")
    if not all(places):
        i = places.index(0)
        raise _refused(kernel, f"argument {i} of {count} is a null pointer in the array")
    return parameters_at(kernel, places)


def _packed(kernel: Kernel, at: int) -> bytes:
    """CU_LAUNCH_PARAM_BUFFER_POINTER, CU_LAUNCH_PARAM_BUFFER_SIZE, CU_LAUNCH_PARAM_END."""
    pointer, size = 0, 0
    while (pair := peek(at, "<QQ"))[0] != _END:
        kind, value = pair
        if kind == _POINTER:
            pointer = value
        elif kind == _SIZE:
            (size,) = peek(value, "<Q")
        at += 16
    if size < kernel.param_bytes:
        raise _refused(kernel, f"{size} bytes of arguments, it takes {kernel.param_bytes}")
    return ctypes.string_at(pointer, kernel.param_bytes)


def check(function: Function, words: LaunchWords, cluster: tuple[int, int, int]) -> None:
    """Refuse what a B200 refuses because of how a kernel was compiled and what was set of it."""
    kernel, grid, block = function.kernel, tuple(words.grid), tuple(words.block)
    for name, sizes, limits in (("grid", grid, MAX_GRID), ("block", block, MAX_BLOCK)):
        if any(not 1 <= n <= most for n, most in zip(sizes, limits, strict=True)):
            raise _refused(kernel, f"{name} {sizes}, each dimension must be 1..{limits}")
    _check_threads(function, block)
    _check_smem(function, words.dynamic_smem)
    ctas = prod(cluster)
    if ctas > occupancy.PORTABLE_CLUSTER and not function.non_portable_cluster:
        raise _refused(
            kernel,
            f"cluster {cluster} of {ctas} CTAs: more than {occupancy.PORTABLE_CLUSTER} need"
            " cudaFuncAttributeNonPortableClusterSizeAllowed",
        )
    if words.cooperative:
        smem = function.static_smem + words.dynamic_smem
        check_cooperative(kernel.name, prod(grid), prod(block), smem, function.registers)


def _check_threads(function: Function, block: tuple[int, ...]) -> None:
    kernel, threads = function.kernel, prod(block)
    required = kernel.directives.get("reqntid")
    if required and block != (*required, 1, 1)[:3]:
        raise _refused(kernel, f"block {block}, but it is compiled for blocks of {required}")
    bounds = kernel.directives.get("maxntid")
    if bounds and threads > (most := prod(bounds)):
        raise _refused(kernel, f"{threads} threads a CTA, its __launch_bounds__ allow {most}")
    taken = occupancy.registers_of(threads, function.registers)
    if taken > SM_REGISTERS:
        raise _refused(
            kernel,
            f"too many resources: {threads} threads of {function.registers} registers take"
            f" {taken}, an SM has {SM_REGISTERS}",
            refusals.OUT_OF_RESOURCES,
        )


def _check_smem(function: Function, dynamic: int) -> None:
    kernel, static, limit = function.kernel, function.static_smem, function.dynamic_smem_limit
    if static + dynamic > SMEM_OPT_IN:
        said = (
            f"{dynamic} bytes of dynamic and {static} of static shared memory a CTA, a B200 has"
            f" {SMEM_OPT_IN}"
        )
    elif dynamic > limit:
        said = (
            f"{dynamic} bytes of dynamic shared memory, its limit is {limit}: raise it with"
            " cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,"
            f" {dynamic})"
        )
    else:
        return
    raise _refused(kernel, said, refusals.INVALID_VALUE)


def _refused(kernel: Kernel, reason: str, code: int = refusals.INVALID_CONFIGURATION) -> Refused:
    return Refused(code, f"launch of {readable(kernel.name)} refused: {reason}")
