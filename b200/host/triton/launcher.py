"""One launch of a Triton kernel: its arguments as parameters, its metadata as launch attributes.

What `CudaLauncher` does in Triton's backends/nvidia/driver.py and driver.c, 3.6 to 3.9.
"""

from __future__ import annotations

import ctypes
import importlib
import inspect
import struct
from collections.abc import Callable, Iterator
from typing import Any

from b200.chip.gpu import pack
from b200.host.cuda.launching import LaunchWords
from b200.host.cuda.modules import Modules
from b200.host.triton.remarks import Remarks

Pair = tuple[str, Any]  # a type of Triton's signature, "" for what a descriptor became; its value
_CONSTEXPR, _DESCRIPTOR = "constexpr", "tensordesc"
_FLOATS = {"fp32": "<f", "f32": "<f", "fp64": "<d", "fp16": "<e"}


class Launcher:
    """Launches one compiled kernel. src: its ASTSource or IRSource; metadata: of its compile."""

    def __init__(self, modules: Modules, src: Any, metadata: Any):
        self.modules = modules
        self.signature = tuple(src.signature.values())
        self.metadata = metadata
        self.gluon = getattr(getattr(src, "language", None), "name", "") == "GLUON"
        self._descriptor: Callable[..., list[Any]] | None = None

    def __call__(
        self,
        grid_x: int,
        grid_y: int,
        grid_z: int,
        queue: int,
        function: int,
        _kernel_metadata: Any,
        launch_metadata: Any,
        enter: Callable[[Any], Any] | None,
        leave: Callable[[Any], Any] | None,
        *args: Any,
    ) -> None:
        if enter is not None:
            enter(launch_metadata)
        ctas = grid_x * grid_y * grid_z
        if ctas > 0:
            scratch = self._scratch(ctas * self._cluster, queue)
            self._launch((grid_x, grid_y, grid_z), queue, function, args, scratch)
        if leave is not None:
            leave(launch_metadata)

    @property
    def _cluster(self) -> int:
        return getattr(self.metadata, "num_ctas", 1)

    def _launch(
        self, grid: tuple[int, int, int], queue: int, function: int, args: tuple, scratch: list
    ) -> None:
        x, y, z = grid
        meta = self.metadata
        words = LaunchWords.of((x * self._cluster, y, z), (32 * meta.num_warps, 1, 1), meta.shared)
        words.queue = queue
        if self._cluster != 1:
            words.cluster[:] = (self._cluster, 1, 1)
        words.cooperative = int(getattr(meta, "launch_cooperative_grid", False))
        words.dependent = int(getattr(meta, "launch_pdl", False))
        found = self.modules.function(function)
        kernel, program = found.kernel, found.module.program
        if program.looks is None:
            program.looks = Remarks(kernel, self.gluon)
            program.replicates = True
        pairs = [*self._parameters(args), *(("*i8", address) for address in scratch)]
        packed = pack(kernel, [_value(*pair) for pair in pairs])
        words.packed, kept = _as_extra(packed)
        self.modules.launch(function, words)
        del kept  # the parameters' memory, read by then

    def _scratch(self, ctas: int, queue: int) -> list[Any]:
        """Memory for the whole launch: of the kernel, which `triton.set_allocator` makes, and of a
        profiler: zeros where nobody has set an allocator for one, as by Triton 3.8's driver. The
        last two parameters.
        """
        allocation = importlib.import_module("triton.runtime._allocation")
        is_set = getattr(allocation, "has_profile_allocator", lambda: True)

        def reserve(kind: str, allocator: Any) -> Any:
            size = getattr(self.metadata, f"{kind}_scratch_size", 0)
            align = getattr(self.metadata, f"{kind}_scratch_align", 1)
            if size and kind == "profile" and not is_set():
                import torch

                return torch.zeros(ctas * size, dtype=torch.int8, device="cuda")
            return allocator.get()(ctas * size, align, queue) if size else None

        return [
            reserve("global", allocation._allocator),
            reserve("profile", allocation._profile_allocator),
        ]

    def _parameters(self, args: tuple) -> Iterator[Pair]:
        """The kernel's parameters, without constants, in order."""
        metas = iter(getattr(self.metadata, "tensordesc_meta", None) or ())

        def walk(types: tuple, values: Any) -> Iterator[Pair]:
            for kind, value in zip(types, values, strict=True):
                if isinstance(kind, tuple):
                    yield from walk(kind, value)
                elif kind.startswith(_DESCRIPTOR):
                    yield from (("", part) for part in self._expand(value, next(metas, None)))
                elif kind != _CONSTEXPR:
                    yield kind, value

        return walk(self.signature, args)

    def _expand(self, descriptor: Any, meta: Any) -> list[Any]:
        """What a host tensor descriptor becomes: its tensormap (or, where the kernel takes none,
        its pointer), shape and strides. Triton's own function, over `Utils`.
        """
        if self._descriptor is None:
            made = importlib.import_module("triton.backends.nvidia.driver").make_tensordesc_arg
            rest = (None,) * (len(inspect.signature(made).parameters) - 2)
            self._descriptor = lambda *two: made(*two, *rest)
        return self._descriptor(descriptor, meta)


def _value(kind: str, value: Any) -> Any:
    """A value as `pack` takes it."""
    if kind.startswith("*"):
        return _address(value)
    if kind == "bf16":
        return struct.pack("<f", float(value))[2:]
    if kind in _FLOATS:
        return struct.pack(_FLOATS[kind], float(value))
    if value is None:
        return 0
    return value if hasattr(value, "data_ptr") or isinstance(value, bytes) else int(value)


def _address(value: Any) -> int:
    """A pointer argument: None, an address, or what has data_ptr(). ValueError for a tensor in host
    memory that is not pinned, in Triton's words.
    """
    if value is None or isinstance(value, int):
        return value or 0
    import torch

    if isinstance(value, torch.Tensor) and not value.is_cuda and not value.is_pinned():
        raise ValueError("Pointer argument cannot be accessed from Triton (cpu tensor?)")
    return value.data_ptr()


def _as_extra(packed: bytes) -> tuple[int, Any]:
    """Address of the array CU_LAUNCH_PARAM_BUFFER_POINTER, ..., CU_LAUNCH_PARAM_END for packed
    parameters, and what has to live until they are read.
    """
    data = ctypes.create_string_buffer(packed, max(len(packed), 1))
    size = ctypes.c_uint64(len(packed))
    extra = (ctypes.c_uint64 * 6)(1, ctypes.addressof(data), 2, ctypes.addressof(size), 0, 0)
    return ctypes.addressof(extra), (data, size, extra)
