"""One launch of raw CUDA: its configuration as C++ hands it over, its parameters, its limits."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from b200 import occupancy
from b200.hardware import MAX_BLOCK, MAX_GRID, SM_REGISTERS, SMEM_DEFAULT, SMEM_OPT_IN
from b200.host import refusals
from b200.host.refusals import Refused, check_cooperative
from b200.program.module import Kernel
from b200.program.names import readable

if TYPE_CHECKING:
    from b200.host.cuda.loaded import Function

_END, _POINTER, _SIZE = 0, 1, 2  # CU_LAUNCH_PARAM_*


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


@dataclass
class Attributes:
    """What cudaFuncSetAttribute has set of a kernel. dynamic_smem: bytes, None as compiled."""

    dynamic_smem: int | None = None
    non_portable_cluster: bool = False


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
    if not any(asked):
        return (1, 1, 1)
    return asked


def parameters(kernel: Kernel, words: LaunchWords) -> bytes:
    """The kernel's parameters as they lie in memory, from an array of pointers or a packed copy."""
    if not words.arguments and words.packed:
        return _packed(kernel, words.packed)
    data = bytearray(kernel.param_bytes)
    if kernel.params and not words.arguments:
        raise _refused(kernel, f"no arguments, but it has {len(kernel.params)} parameters")
    for i, parameter in enumerate(kernel.params):
        (address,) = struct.unpack("<Q", ctypes.string_at(words.arguments + 8 * i, 8))
        if not address:
            raise _refused(
                kernel, f"argument {i} of {len(kernel.params)} is a null pointer in the array"
            )
        found = ctypes.string_at(address, parameter.size)
        data[parameter.offset : parameter.offset + parameter.size] = found
    return bytes(data)


def _packed(kernel: Kernel, at: int) -> bytes:
    """CU_LAUNCH_PARAM_BUFFER_POINTER, CU_LAUNCH_PARAM_BUFFER_SIZE, CU_LAUNCH_PARAM_END."""
    pointer, size = 0, 0
    while True:
        kind, value = struct.unpack("<QQ", ctypes.string_at(at, 16))
        if kind == _END:
            break
        if kind == _POINTER:
            pointer = value
        elif kind == _SIZE:
            (size,) = struct.unpack("<Q", ctypes.string_at(value, 8))
        at += 16
    if size < kernel.param_bytes:
        raise _refused(kernel, f"{size} bytes of arguments, it takes {kernel.param_bytes}")
    return ctypes.string_at(pointer, kernel.param_bytes)


def check(function: Function, words: LaunchWords, cluster: tuple[int, int, int]) -> None:
    """Refuse what a B200 refuses because of how a kernel was compiled and what was set of it."""
    kernel, block = function.kernel, tuple(words.block)
    threads = block[0] * block[1] * block[2]
    for name, sizes, limits in (
        ("grid", tuple(words.grid), MAX_GRID),
        ("block", block, MAX_BLOCK),
    ):
        if any(not 1 <= n <= most for n, most in zip(sizes, limits, strict=True)):
            raise _refused(kernel, f"{name} {sizes}, each dimension must be 1..{limits}")
    _check_threads(function, block, threads)
    _check_smem(function, words.dynamic_smem)
    ctas = cluster[0] * cluster[1] * cluster[2]
    if ctas > occupancy.PORTABLE_CLUSTER and not function.attributes.non_portable_cluster:
        raise _refused(
            kernel,
            f"cluster {cluster} of {ctas} CTAs: more than {occupancy.PORTABLE_CLUSTER} need"
            " cudaFuncAttributeNonPortableClusterSizeAllowed",
        )
    if words.cooperative:
        smem = function.static_smem + words.dynamic_smem
        ctas = words.grid[0] * words.grid[1] * words.grid[2]
        check_cooperative(kernel.name, ctas, threads, smem, function.registers)


def _check_threads(function: Function, block: tuple[int, ...], threads: int) -> None:
    kernel = function.kernel
    required = kernel.directives.get("reqntid")
    if required and block != (*required, 1, 1)[:3]:
        raise _refused(kernel, f"block {block}, but it is compiled for blocks of {required}")
    bounds = kernel.directives.get("maxntid")
    most = 1
    for size in bounds or ():
        most *= size
    if bounds and threads > most:
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
    kernel, static = function.kernel, function.static_smem
    if static + dynamic > SMEM_OPT_IN:
        raise _refused(
            kernel,
            f"{dynamic} bytes of dynamic and {static} of static shared memory a CTA, a B200 has"
            f" {SMEM_OPT_IN}",
            refusals.INVALID_VALUE,
        )
    limit = function.attributes.dynamic_smem
    if limit is None:
        limit = max(SMEM_DEFAULT - static, 0)
    if dynamic > limit:
        raise _refused(
            kernel,
            f"{dynamic} bytes of dynamic shared memory, its limit is {limit}: raise it with"
            " cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,"
            f" {dynamic})",
            refusals.INVALID_VALUE,
        )


def _refused(kernel: Kernel, reason: str, code: int = refusals.INVALID_CONFIGURATION) -> Refused:
    return Refused(code, f"launch of {readable(kernel.name)} refused: {reason}")
