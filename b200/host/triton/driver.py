"""Triton's driver interface: what it asks of a device, and what it loads and launches there.

The functions are those of `CudaUtils` and `CudaDriver` in Triton's backends/nvidia/driver.py, 3.6
to 3.9, which are C there.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Sequence
from typing import Any

from b200 import hardware
from b200.host.cuda.fatbin import FRAME_SIZE, REGCOUNT, resources
from b200.host.cuda.launching import LaunchWords
from b200.host.cuda.modules import MAX_DYNAMIC_SMEM, NON_PORTABLE_CLUSTER, Modules
from b200.host.refusals import unsupported
from b200.host.tensor_map import encode_tiled
from b200.host.triton.backend import ptx_of
from b200.host.triton.benchmark import choose
from b200.host.triton.launcher import Launcher


class Utils:
    """`CudaUtils`: modules, tensormaps and properties. Handles are those of `Modules`. source: of
    the latest launcher, an ASTSource or IRSource: Triton loads the binary of the same kernel next.
    """

    def __init__(self, modules: Modules):
        self.modules = modules
        self.source: Any = None
        self.is_stream_capturing = lambda queue: modules.runtime.recording is not None

    def load_binary(
        self, name: str, image: bytes, shared: int, _device: int
    ) -> tuple[int, int, int, int, int]:
        """(module, kernel, registers, spilled registers, most threads of a CTA)."""
        ptx = ptx_of(image if isinstance(image, bytes) else bytes(image))
        if ptx is None:
            raise unsupported(
                f"kernel {name} was compiled before b200.install(): its PTX is not at hand; call"
                " b200.install() before the first launch or triton.compile"
            )
        of = resources(bytes(image)).get(name, {})
        registers, stack = of.get(REGCOUNT, 0), of.get(FRAME_SIZE, 0)
        module = self.modules.load(in_its_file(ptx, self.source), {name: registers})
        handle = self.modules.kernel(module, name)
        function = self.modules.function(handle)
        room = hardware.SMEM_OPT_IN - function.static_smem
        self.modules.set_attribute(handle, MAX_DYNAMIC_SMEM, room)
        self.modules.set_attribute(handle, NON_PORTABLE_CLUSTER, 1)
        return module, handle, registers, stack // 4, function.most_threads

    def unload_module(self, module: int) -> None:
        self.modules.unload(module)

    def get_current_device(self) -> int:
        return 0

    def set_current_device(self, _device: int) -> None:
        """There is one device."""

    def get_default_stream(self, _device: int) -> int:
        return 0

    def get_device_capability(self, _device: int) -> tuple[int, int]:
        return hardware.COMPUTE_CAPABILITY

    def get_device_properties(self, _device: int) -> dict[str, int]:
        return {
            "max_shared_mem": hardware.SMEM_OPT_IN,
            "max_num_regs": hardware.SM_REGISTERS,
            "multiprocessor_count": hardware.SM_COUNT,
            "warpSize": 32,
            "sm_clock_rate": hardware.CLOCK_KHZ,
            "mem_clock_rate": hardware.MEMORY_CLOCK_KHZ,
            "mem_bus_width": hardware.MEMORY_BUS_BITS,
        }

    def set_printf_fifo_size(self, _nbytes: int) -> None:
        """What a kernel prints is never lost here."""

    def cuOccupancyMaxActiveClusters(self, function: int, shared: int, ctas: int) -> int:
        """Clusters of `ctas` CTAs of 128 threads that are resident at once."""
        words = LaunchWords.of((ctas, 1, 1), (128, 1, 1), shared)
        words.cluster[:] = (ctas, 1, 1)
        return self.modules.resident_clusters(function, words)

    # --- tensormaps
    def fill_tma_descriptor(
        self,
        address: int,
        swizzle: int,
        element_bytes: int,
        element_type: int,
        block: Sequence[int],
        shape: Sequence[int],
        strides: Sequence[int],
        padding: int,
    ) -> bytes:
        """The tensormap of a host tensor descriptor. block, shape, strides: elements, the last
        dimension contiguous; element_type: CUtensorMapDataType; padding: 1 for NaN out of bounds.
        """
        dims, box = [*map(int, shape[::-1])], [*map(int, block[::-1])]
        row_bytes = [int(x) * element_bytes for x in strides[-2::-1]]
        steps, interleave = [1] * len(dims), 0
        form = (dims, row_bytes, box, steps, interleave, swizzle, padding)
        return encode_tiled(element_type, address, *form)

    fill_tma_descriptor_tiled = fill_tma_descriptor  # its name since Triton 3.7

    def fill_tma_descriptor_im2col(self, *_args: Any) -> bytes:
        raise unsupported("tensormaps of im2col mode are not modelled")


def in_its_file(ptx: str, source: Any) -> str:
    """PTX whose lines are of the file that the kernel is in. Triton's cache goes by the text of a
    kernel and its first line: what it has may come from a file with another name.
    """
    code = getattr(getattr(getattr(source, "fn", None), "fn", None), "__code__", None)
    first = re.search(r"^\s*\.loc\s+(\d+)\s", ptx, re.M)
    if first is None or code is None:
        return ptx
    path = os.path.abspath(code.co_filename)
    named = re.compile(rf'^(\s*\.file\s+{first[1]}\s+)"[^"\n]*"', re.M)
    return named.sub(lambda found: f'{found[1]}"{path}"', ptx, count=1)


def software_driver(original: Any, modules: Modules) -> Any:
    """A subclass of Triton's CudaDriver, for the rest of its interface."""

    class SoftwareDriver(original):
        def __init__(self) -> None:
            import torch

            self.utils = Utils(modules)
            self.launcher_cls = self._launcher
            self.get_device_capability = self.utils.get_device_capability
            self.get_current_device = self.utils.get_current_device
            self.set_current_device = self.utils.set_current_device
            self.get_current_stream = lambda _=None: torch.cuda.current_stream().cuda_stream

        def _launcher(self, src: Any, metadata: Any) -> Launcher:
            self.utils.source = src
            return Launcher(modules, src, metadata)

        @staticmethod
        def is_active() -> bool:
            return True

        def get_benchmarker(self) -> Any:
            return functools.partial(choose, modules.runtime)

        def get_empty_cache_for_benchmark(self) -> Any:
            import torch

            return torch.empty(1, dtype=torch.int, device="cuda")

    SoftwareDriver.__name__ = SoftwareDriver.__qualname__ = original.__name__
    return SoftwareDriver
