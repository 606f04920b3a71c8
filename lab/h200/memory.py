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
from dataclasses import dataclass
from functools import partial

from b200.chip.launch import Shape
from harness.measure import published
from hopper.rewrite import TARGET
from hopper.run import Image, places_of
from hopper.timing import between_events, graph_us
from lab.calibrations import mcast
from lab.h200.probe import COLD_BYTES

SMEM = 227 << 10
FLIGHT = [(h, s) for s in (1, 2, 4) for h in (1, 2, 4, 8, 16, 32, 64, 128, 256) if h * s <= 256]
ALONE = [(1, 1), (2, 1), (8, 1), (32, 1), (8, 4), (32, 4)]
TILES = (1, 2, 4, 8, 12, 16, 24, 28)  # KB of a load in rounds
MODES = (
    ("no_sharing", 1, 1),
    ("explicit_mcast", 2, 1),
    ("explicit_mcast", 4, 1),
    ("implicit_near", 1, 2),
    ("implicit_near", 1, 4),
    ("implicit_near", 1, 8),
    ("implicit_near", 1, 16),
    ("implicit_near", 2, 2),
    ("implicit_near", 4, 4),
)
HOT = [(h, s) for h in (8, 16, 32, 64, 128) for s in (1, 2, 4) if h * s <= 256]
GROUPS = (1, 2, 4, 8, 16, 132)  # CTAs that load the same tile
SPIN, WAVES = 6000, 16
MHZ = 1980  # of an H200 at work
SPINNING = """mov.u64 %rd1, %clock64; add.u64 %rd1, %rd1, {spin};
AGAIN: mov.u64 %rd2, %clock64; setp.lt.u64 %p1, %rd2, %rd1; @%p1 bra AGAIN;"""
EMPTY = """.version 8.8
.target {target}
.address_size 64
.visible .entry k(.param .u64 out, .param .u64 data)
{{ .reg .pred %p<2>; .reg .b64 %rd<3>; {body} ret; }}
"""
COLUMNS = ("kind", "what", "value")


@dataclass(frozen=True)
class MemoryFigure:
    """kind, and what of it: (rows of 512 B, loads under way), (mode, cluster, CTAs that share,
    bytes of a load), or (cluster, with a barrier). value in the unit that the kind has.
    """

    kind: str
    what: tuple
    value: float


def _for_hopper(text: str) -> str:
    return text.replace(".target sm_100a", f".target {TARGET}")


class Runner:
    """A kernel of the calibrations with its matrix."""

    def __init__(self, text: str, width: int, rows: int, box: tuple[int, int]):
        import torch

        text = _for_hopper(text)
        self.image = Image(text, "k", places_of(text, "k"))
        self.matrix = torch.zeros(rows * width, dtype=torch.float32, device="cuda")
        self.out = torch.zeros(1024, dtype=torch.int64, device="cuda")
        from lab.calibrations.bench_kernels import tensormap

        encoded = tensormap(self.matrix, width, rows, box)
        at = self.image.places[1][0]
        self.params = struct.pack("<Q", self.out.data_ptr()).ljust(at, b"\0") + encoded

    def launch(self, shape: Shape) -> None:
        self.image.launch(shape, self.params)


def forget() -> None:
    """Nothing that was read before is in the L2, and what is there is clean."""
    import torch

    torch.ones(COLD_BYTES // 4, dtype=torch.int32, device="cuda").sum()


def flight(ctas: int, height: int, stages: int, cached: bool) -> float:
    """Cycles a load, with `stages` loads of `height` rows of 512 bytes under way in each CTA."""
    tile = published.WIDTH * 4 * height
    whole = (20 << 20) if cached else (96 << 20)
    loads = max(8, min(100, whole // (ctas * tile))) + 3 * stages
    warm = loads // 3
    text = published.bandwidth_kernel(height, stages, loads, warm, ctas)
    run = Runner(text, published.WIDTH, ctas * (loads + stages) * height, (published.WIDTH, height))
    shape = Shape((ctas, 1, 1), (32, 1, 1), (1, 1, 1), stages * tile + 1024)
    found = []
    for _ in range(5):
        if not cached:
            forget()
        run.launch(shape)
        found.append(run.out[:ctas].double().mean().item() / (loads - 1 - warm))
    return sorted(found[1:])[2]


def hot(ctas: int, height: int, stages: int, group: int) -> float:
    """Cycles a load of what is in the L2."""
    tile, loads, warm = published.WIDTH * 4 * height, 120, 40
    text = published.bandwidth_kernel(height, stages, loads, warm, ctas, 0, group)
    run = Runner(text, published.WIDTH, ctas * height, (published.WIDTH, height))
    shape = Shape((ctas, 1, 1), (32, 1, 1), (1, 1, 1), stages * tile + 1024)
    for _ in range(3):
        run.launch(shape)
    return run.out[:ctas].double().mean().item() / (loads - 1 - warm)


def relaunch(ctas: int, cluster: int, smem: int) -> float:
    """Cycles between CTAs that follow one another on an SM."""
    text = EMPTY.format(target=TARGET, body=SPINNING.format(spin=SPIN))
    image = Image(text, "k", places_of(text, "k"))
    us = []
    for waves in (1, 1 + WAVES):
        shape = Shape((ctas // cluster * cluster * waves, 1, 1), (192, 1, 1), (cluster, 1, 1), smem)
        image.prepare(shape)
        us.append(graph_us(lambda i, shape=shape: image.enqueue(shape, bytes(16))))
    return (us[1] - us[0]) / WAVES * MHZ - SPIN


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
        shape = Shape((ctas, 1, 1), (32 * mcast.WARPS, 1, 1), (cluster, 1, 1), SMEM)
        found = []
        run.launch(shape)
        for _ in range(7):
            forget()
            found.append(between_events(partial(run.image.enqueue, shape, run.params)))
        times.append(sorted(found)[3])
    nbytes = ctas * mcast.WARPS * tile * (rounds[1] - rounds[0])
    return nbytes / (times[1] - times[0]) / 1e6


def empty(ctas: int, cluster: int, barrier: bool) -> float:
    body = "barrier.cluster.arrive.relaxed; barrier.cluster.wait;" if barrier else ""
    text = EMPTY.format(target=TARGET, body=body)
    image = Image(text, "k", places_of(text, "k"))
    shape = Shape((ctas // cluster * cluster, 1, 1), (192, 1, 1), (cluster, 1, 1), SMEM)
    image.prepare(shape)
    params = struct.pack("<QQ", 0, 0)
    return graph_us(lambda i: image.enqueue(shape, params))


def measure_all() -> list[MemoryFigure]:
    import torch

    ctas = torch.cuda.get_device_properties(0).multi_processor_count
    found = []
    for height, stages in FLIGHT:
        found.append(
            MemoryFigure("dram", (height, stages), flight(ctas, height, stages, cached=False))
        )
        found.append(
            MemoryFigure("l2", (height, stages), flight(ctas, height, stages, cached=True))
        )
    for height, stages in ALONE:
        found.append(
            MemoryFigure("alone", (height, stages), flight(1, height, stages, cached=True))
        )
    for group in GROUPS:
        for height, stages in HOT:
            found.append(
                MemoryFigure("hot", (height, stages, group), hot(ctas, height, stages, group))
            )
    for cluster, resident in ((1, ctas), (2, ctas), (4, 120)):
        found.append(MemoryFigure("waves", (cluster, SMEM), relaunch(resident, cluster, SMEM)))
    found.append(MemoryFigure("waves", (1, 100 << 10), relaunch(2 * ctas, 1, 100 << 10)))
    for mode, cluster, group in MODES:
        for tile in TILES:
            value = shared(ctas, mode, cluster, group, tile << 10)
            found.append(MemoryFigure("shared", (mode, cluster, group, tile << 10), value))
    for cluster in (1, 2, 4, 8):
        for barrier in (False, True):
            found.append(MemoryFigure("empty", (cluster, barrier), empty(104, cluster, barrier)))
    return found


def rows(results: list[MemoryFigure]) -> list[tuple]:
    return [(r.kind, ", ".join(map(str, r.what)), f"{r.value:.2f}") for r in results]
