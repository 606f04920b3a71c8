"""The memory system of a Hopper GPU: the kernels of the clock's calibrations (lab/calibrations),
which published B200 measurements describe, measured here.

dram, l2: every CTA keeps 1, 2 or 4 loads under way, each from new addresses (dram) or from what an
earlier launch has read (l2); cycles a load. alone: the same in the L2 by one CTA. hot: every CTA,
or every group of neighbouring ones, loads one tile again and again from the L2; cycles a load.
shared: rounds of four loads a CTA, as SemiAnalysis' tma2dmcast: explicit multicast in clusters, or
neighbouring CTAs that read the same addresses; TB/s that fill shared memory. waves: cycles from a
CTA's exit to the next one's start on its SM, where each spins for SPIN cycles. empty: microseconds
from launch to launch, in a graph, of kernels that do nothing. The loop of a load alone takes 292
cycles here.
"""

from __future__ import annotations

import struct
from functools import partial

import torch

from b200.chip.launch import Shape
from harness.measure import published
from harness.measure.kernels import RENDEZVOUS
from hopper.rewrite import TARGET
from hopper.timing import between_events, graph_us
from lab.calibrations import mcast
from lab.calibrations.bench_kernels import tensormap
from lab.h200 import rig

SMEM = 227 << 10
FLIGHT = [(h, s) for s in (1, 2, 4) for h in (1, 2, 4, 8, 16, 32, 64, 128, 256) if h * s <= 256]
ALONE = [(1, 1), (2, 1), (8, 1), (32, 1), (8, 4), (32, 4)]
TILES = (1, 2, 4, 8, 12, 16, 24, 28)  # KB of a load in rounds
MODES = (
    *(("no_sharing", 1, 1), ("explicit_mcast", 2, 1), ("explicit_mcast", 4, 1)),
    *(("implicit_near", *of) for of in ((1, 2), (1, 4), (1, 8), (1, 16), (2, 2), (4, 4))),
)
HOT = [(h, s) for h in (8, 16, 32, 64, 128) for s in (1, 2, 4) if h * s <= 256]
GROUPS = (1, 2, 4, 8, 16, 132)  # CTAs that load the same tile
SPIN, WAVES = 6000, 16
MHZ = 1980  # of an H200 at work
SPINNING = f"""mov.u64 %rd1, %clock64; add.u64 %rd1, %rd1, {SPIN};
AGAIN: mov.u64 %rd2, %clock64; setp.lt.u64 %p1, %rd2, %rd1; @%p1 bra AGAIN;"""


class Runner:
    """A kernel of the calibrations with its matrix."""

    def __init__(self, text: str, width: int, rows: int, box: tuple[int, int]):
        self.image = rig.image_of(text.replace(".target sm_100a", f".target {TARGET}"))
        self.matrix = rig.zeros(rows * width, dtype=torch.float32)
        self.out = rig.zeros(1024)
        params = struct.pack("<Q", self.out.data_ptr()).ljust(self.image.places[1][0], b"\0")
        self.params = params + tensormap(self.matrix, width, rows, box)

    def launch(self, shape: Shape) -> None:
        self.image.launch(shape, self.params)

    def cycles(self, ctas: int, loads: int) -> float:
        """Cycles a load that the CTAs of the last launch wrote."""
        return self.out[:ctas].double().mean().item() / loads


def flight(ctas: int, height: int, stages: int, cached: bool) -> float:
    """Cycles a load, with `stages` loads of `height` rows of 512 bytes under way in each CTA."""
    tile = published.WIDTH * 4 * height
    whole = (20 << 20) if cached else (96 << 20)
    loads = max(8, min(100, whole // (ctas * tile))) + 3 * stages
    warm = loads // 3
    text = published.bandwidth_kernel(height, stages, loads, warm, ctas)
    run = Runner(text, published.WIDTH, ctas * (loads + stages) * height, (published.WIDTH, height))
    found = []
    for _ in range(5):
        if not cached:
            rig.forget()
        run.launch(rig.row(ctas, 32, 1, stages * tile + 1024))
        found.append(run.cycles(ctas, loads - 1 - warm))
    return sorted(found[1:])[2]


def hot(ctas: int, height: int, stages: int, group: int) -> float:
    """Cycles a load of what is in the L2."""
    tile, loads, warm = published.WIDTH * 4 * height, 120, 40
    text = published.bandwidth_kernel(height, stages, loads, warm, ctas, 0, group)
    run = Runner(text, published.WIDTH, ctas * height, (published.WIDTH, height))
    for _ in range(3):
        run.launch(rig.row(ctas, 32, 1, stages * tile + 1024))
    return run.cycles(ctas, loads - 1 - warm)


def shared(ctas: int, mode: str, cluster: int, group: int, tile: int) -> float:
    """TB/s into shared memory, from the difference of two launches."""
    width, height = 128, tile // 512
    ctas = ctas // cluster * cluster
    ctas = ctas // group * group
    times, rounds = [], (4, 36)
    for n in rounds:
        text = mcast.kernel(mode, cluster, group, width, height, n, ctas)
        rows = (ctas + 8) * mcast.WARPS * height * (n + 1)
        run = Runner(text, width, rows, (width, height))
        shape = rig.row(ctas, 32 * mcast.WARPS, cluster, SMEM)
        found = []
        run.launch(shape)
        for _ in range(7):
            rig.forget()
            found.append(between_events(partial(run.image.enqueue, shape, run.params)))
        times.append(sorted(found)[3])
    nbytes = ctas * mcast.WARPS * tile * (rounds[1] - rounds[0])
    return nbytes / (times[1] - times[0]) / 1e6


def call_us(body: str, ctas: int, cluster: int, smem: int) -> float:
    """Microseconds of a call, in a graph, of CTAs that do so."""
    shape = rig.row(ctas // cluster * cluster, 192, cluster, smem)
    image = rig.image_of(rig.ptx(body), shape)
    return graph_us(lambda _: image.enqueue(shape, bytes(16)))


def relaunch(ctas: int, cluster: int, smem: int) -> float:
    """Cycles between CTAs that follow one another on an SM."""
    ctas = ctas // cluster * cluster
    one, more = (call_us(SPINNING, ctas * waves, cluster, smem) for waves in (1, 1 + WAVES))
    return (more - one) / WAVES * MHZ - SPIN


def results() -> rig.Results:
    ctas = rig.sms()

    def of(kind: str, value: float, *what: object) -> rig.Row:
        return {"kind": kind, "what": what, "value": value}

    for height, stages in FLIGHT:
        for kind, cached in (("dram", False), ("l2", True)):
            yield of(kind, flight(ctas, height, stages, cached), height, stages)
    for height, stages in ALONE:
        yield of("alone", flight(1, height, stages, cached=True), height, stages)
    for group in GROUPS:
        for height, stages in HOT:
            yield of("hot", hot(ctas, height, stages, group), height, stages, group)
    waves = (1, ctas, SMEM), (2, ctas, SMEM), (4, 120, SMEM), (1, 2 * ctas, 100 << 10)
    for cluster, resident, smem in waves:
        yield of("waves", relaunch(resident, cluster, smem), cluster, smem)
    for mode in MODES:
        for tile in TILES:
            yield of("shared", shared(ctas, *mode, tile << 10), *mode, tile << 10)
    for cluster in (1, 2, 4, 8):
        for barrier in (False, True):
            us = call_us(RENDEZVOUS * barrier, 104, cluster, SMEM)
            yield of("empty", us, cluster, barrier)
