"""What runs a probe: a GPU of this machine, or the clock with constants of one's choice."""

from __future__ import annotations

import functools
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from b200.chip.copies.tensormap import TensorMap
from b200.chip.gpu import Gpu
from b200.chip.launch import Shape
from b200.clock import Options, timed_machine
from b200.clock.call_time import reported
from b200.clock.devices import B200, DEVICES
from b200.program.parse import parse
from hopper.h200 import H200

FLOAT32 = 7  # element type of a tensormap
FLUSH_BYTES = 1 << 28  # written before a cold launch: more than any L2 holds
# A fit runs each probe ten times and more, with other constants: they do not change its code.
parsed = functools.lru_cache(maxsize=64)(parse)
EMPTY_CALLS = 50  # in the mean of calls back to back
EMPTY = """.version 8.8
.target {target}
.address_size 64
.visible .entry k(.param .u64 out, .param .u64 data) .reqntid 32, 1, 1 {{ ret; }}
"""


@dataclass(frozen=True)
class ProbeKernel:
    """A launch of a kernel `k(out, data)`, or `k(out, data, map)` where `box` is given.

    words: u64 that it writes to `out`. data_bytes: of `data`, which is zero. box: (columns, rows)
    of a tensormap over `data` as rows of `columns` floats. cold: no cache holds `data`.
    """

    text: str
    words: int
    data_bytes: int = 1 << 20
    ctas: int = 1
    threads: int = 32
    cluster: int = 1
    smem: int = 64 << 10
    box: tuple[int, int] | None = None
    cold: bool = False

    @property
    def shape(self) -> Shape:
        return Shape((self.ctas, 1, 1), (self.threads, 1, 1), (self.cluster, 1, 1), self.smem)

    def parameters(self, out: torch.Tensor, data: torch.Tensor) -> bytes:
        """The kernel's parameters, packed."""
        pointers = struct.pack("<QQ", out.data_ptr(), data.data_ptr())
        if self.box is None:
            return pointers
        columns, rows = self.box
        height = self.data_bytes // (4 * columns)
        sizes, strides = (columns, height), (4 * columns,)
        tensormap = TensorMap(data.data_ptr(), FLOAT32, sizes, strides, (columns, rows), (1, 1))
        return pointers.ljust(64, b"\0") + tensormap.encode()


def _numbers(words: Any) -> list[int]:
    """A tensor of one dimension as a list; torch leaves the type of it open."""
    return words.tolist()


def _sms(cuda: Any) -> int:
    """The SMs of a GPU. cuda: torch.cuda, which leaves the type of its properties open."""
    return cuda.get_device_properties(0).multi_processor_count


class Device(Protocol):
    """Something that runs probes. target: of their PTX. sms: how many SMs it has. chip: the one of
    b200.clock.devices.DEVICES that its values are held against.
    """

    label: str
    target: str
    sms: int
    chip: str

    def run(self, kernel: ProbeKernel) -> list[int]:
        """What the kernel wrote to `out`."""
        ...

    def empty_call_us(self, calls: int) -> float:
        """Microseconds a call of an empty kernel: `calls` in a row between two events."""
        ...


class Clock:
    """The clock of a chip, with some constants of its table replaced."""

    def __init__(self, constants: Mapping[str, float] | None = None, chip: str = B200.name):
        self.constants = dict(constants or {})
        self.chip = chip
        self.sms = sum(DEVICES[chip].gpcs)
        self.target = "sm_100a" if chip == B200.name else "sm_90a"
        self.label = "emulator (modelled)"

    def value(self, constant: str) -> float:
        """The value of a constant on this chip."""
        return getattr(DEVICES[self.chip].constants("nominal", self.constants), constant)

    def _gpu(self, cold: bool) -> Gpu:
        gpu = Gpu()
        options = Options(device=self.chip, arithmetic=False, cold=cold, constants=self.constants)
        gpu.machine = timed_machine(gpu.memory, options)
        return gpu

    def run(self, kernel: ProbeKernel) -> list[int]:
        out = torch.zeros(kernel.words, dtype=torch.int64)
        data = torch.zeros(kernel.data_bytes, dtype=torch.uint8)
        params = kernel.parameters(out, data)
        self._gpu(kernel.cold).launch(parsed(kernel.text), "k", *kernel.shape.sizes, params)
        return _numbers(out)

    def empty_call_us(self, calls: int) -> float:
        gpu = self._gpu(False)
        text = EMPTY.format(target=self.target)
        launch = gpu.launch(parsed(text), "k", (1, 1, 1), (32, 1, 1), args=bytes(16))
        return reported([launch], calls).time_us


class Cuda:
    """The GPU of this machine. Raises HopperError where a call of the driver fails."""

    def __init__(self) -> None:
        major, minor = torch.cuda.get_device_capability()
        self.label = torch.cuda.get_device_name()
        self.target = f"sm_{major}{minor}a"
        self.chip = H200.name if major == 9 else B200.name
        self.sms = _sms(torch.cuda)

    def _image(self, text: str, places: list[tuple[int, int, int]]):
        from hopper.run import Image

        return Image(text, "k", places)

    def run(self, kernel: ProbeKernel) -> list[int]:
        from hopper.run import places_of

        out = torch.zeros(kernel.words, dtype=torch.int64, device="cuda")
        data = torch.zeros(kernel.data_bytes, dtype=torch.uint8, device="cuda")
        image = self._image(kernel.text, places_of(kernel.text, "k"))
        params = kernel.parameters(out, data)
        for _ in range(2):  # the first launch loads the code
            if kernel.cold:
                torch.ones(FLUSH_BYTES, dtype=torch.uint8, device="cuda")
            image.launch(kernel.shape, params)
        return _numbers(out)

    def empty_call_us(self, calls: int) -> float:
        from hopper.timing import queue_us

        image = self._image(EMPTY.format(target=self.target), [(0, 8, 8), (8, 8, 8)])
        shape = Shape((1, 1, 1), (32, 1, 1), (1, 1, 1), 0)
        image.launch(shape, bytes(16))
        return queue_us(lambda _: image.enqueue(shape, bytes(16)), calls)
