"""How much of the chip a call is run on, so that a time costs a minute of CPU time.

A launch whose CTAs come to each SM some times over is like its part on a part of the chip
(b200/clock/devices.py, `part`). What runs before the timed call runs such launches on the smallest
part, and what this takes says on which part a timed call can be paid.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import fields
from itertools import islice
from typing import TypeVar

import b200
from b200.chip.gpu import Gpu
from b200.chip.launch import Launch, Shape
from b200.clock.devices import B200, DEVICES, Device, part
from b200.clock.options import Options
from b200.hardware import SM_COUNT
from b200.program.module import Kernel, Program

ENOUGH = 4  # CTAs for each SM, from which on some of them stand for all
SECONDS = 15.0  # of CPU time for a timed call
RUN = 8  # clusters that follow one another, as they may share what they read
RUNS = 8  # at least so many places of the grid
T = TypeVar("T")


class Part(Device):
    """A part of the chip that carries out clusters of all of the grid, not its first ones: where
    the work does not come out even, as in a loop over all CTAs, the first ones have more of it.
    """

    def clusters(self, every: Iterable[T], count: int) -> Iterable[T]:
        """Runs of at most RUN clusters, evenly spread over the `count` of a grid."""
        run = min(RUN, max(1, round(count * self.share / RUNS)))
        runs = max(1, round(count * self.share / run))
        firsts = {count * i // runs for i in range(runs)}
        kept = {first + i for first in firsts for i in range(run)}
        return (cluster for index, cluster in enumerate(islice(every, count)) if index in kept)


def _part(sms: tuple[int, int]) -> Device:
    """So many SMs of two GPCs, one on each die."""
    found = part(B200, f"B200, {sum(sms)} SMs", sms)
    return Part(*(getattr(found, field.name) for field in fields(found)))


SMALLEST = _part((2, 2))
PARTS = (B200, _part((18, 18)), _part((4, 4)), SMALLEST)  # each smaller than the one before
DEVICES.update((device.name, device) for device in PARTS)


def _large(grid: tuple[int, ...]) -> bool:
    return math.prod(grid) >= ENOUGH * SM_COUNT


class Pilot:
    """What a benchmark runs before the timed call: its own calls and the first one. While it is
    entered `gpu` runs large launches on the smallest part, and each once, whatever its parameters:
    what it computes there is not complete. Others run once for each set of parameters. cpu_s: what
    each launch took of the CPU.
    """

    def __init__(self, gpu: Gpu):
        self.gpu, self.cpu_s = gpu, list[float]()
        self.known: dict[tuple[str, Shape, bytes], tuple[Launch, float]] = {}

    def __enter__(self) -> Pilot:
        self._execute = self.gpu.execute
        self.gpu.execute = self._on_a_part(self._execute)
        return self

    def __exit__(self, *_error: object) -> None:
        self.end()

    def end(self) -> None:
        """Launches run as before from here on."""
        self.gpu.execute = self._execute

    def _on_a_part(self, execute: Callable[..., Launch]) -> Callable[..., Launch]:
        gpu = self.gpu
        small = b200.machine(gpu.memory, False, Options(SMALLEST.name, dirty_l2=True))

        def on_a_part(program: Program, kernel: Kernel, shape: Shape, params: bytes) -> Launch:
            large, whole, start = _large(shape.grid), gpu.machine, time.process_time()
            key = (kernel.name, shape, b"" if large else params)
            launch, cpu_s = self.known.get(key, (None, 0.0))
            if launch is None:
                gpu.machine = small if large else whole
                try:
                    launch = execute(program, kernel, shape, params)
                finally:
                    gpu.machine = whole
                cpu_s = time.process_time() - start
                self.known[key] = launch, cpu_s
            self.cpu_s.append(cpu_s)
            return launch

        return on_a_part


def device(call: list[Launch], cpu_s: list[float]) -> Device:
    """The part of the chip on which to time a call. cpu_s: of each launch of it, in the pilot."""
    if not all(_large(launch.grid) for launch in call):
        return B200
    a_share = sum(cpu_s) / SMALLEST.share
    return next((each for each in PARTS if a_share * each.share <= SECONDS), SMALLEST)
