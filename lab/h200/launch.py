"""What calls back to back cost a Hopper GPU, from a CUDA graph and from a queue.

A kernel of 128 threads and 128 KB of shared memory, a CTA on seven of eight SMs, that spins for a
time; spun: microseconds it does, 0 for none. graph: calls in a CUDA graph. queue: the same launched
one by one while the GPU is busy with something else, so that it finds all of them in its queue, as
in the leaderboards' harness. alone: one call, between two events. parameters: bytes of them. us: a
call, the median of many rounds.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from b200.chip.launch import Shape
from hopper.rewrite import TARGET
from hopper.run import Image, places_of
from hopper.timing import graph_us, queue_us

CALLS = 50
SMEM = 128 << 10
SPUN = (0, 4, 8)
PARAMETERS = (64, 2048)
CLUSTERS = (1, 2, 4)
HOW = ("graph", "queue", "alone")
COLUMNS = ("cluster", "parameters, B", "spun, us", *HOW)


@dataclass(frozen=True)
class LaunchTime:
    how: str
    cluster: int
    parameters: int
    spun: int
    us: float


def kernel(nbytes: int) -> str:
    """PTX. Its parameter begins with how many ns it spins."""
    return f""".version 8.6
.target {TARGET}
.address_size 64
.extern .shared .align 1024 .b8 dyn[];
.visible .entry k(.param .align 64 .b8 data[{nbytes}]) .reqntid 128, 1, 1
{{
    .reg .pred %p<2>; .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [data]; mov.u64 %rd2, %globaltimer;
    SPIN: mov.u64 %rd3, %globaltimer; sub.u64 %rd3, %rd3, %rd2;
    setp.lt.u64 %p1, %rd3, %rd1; @%p1 bra SPIN;
    ret;
}}
"""


def measure(cluster: int, nbytes: int, spun: int) -> list[LaunchTime]:
    import torch

    text = kernel(nbytes)
    image = Image(text, "k", places_of(text, "k"))
    ctas = torch.cuda.get_device_properties(0).multi_processor_count // 8 * 7
    shape = Shape((ctas // cluster * cluster, 1, 1), (128, 1, 1), (cluster, 1, 1), SMEM)
    image.prepare(shape)
    params = struct.pack("<Q", 1000 * spun) + bytes(nbytes - 8)

    def call(_: int) -> None:
        image.enqueue(shape, params)

    us = graph_us(call), queue_us(call, CALLS), queue_us(call, 1)
    return [LaunchTime(how, cluster, nbytes, spun, t) for how, t in zip(HOW, us, strict=True)]


def measure_all() -> list[LaunchTime]:
    return [
        m
        for cluster in CLUSTERS
        for nbytes in PARAMETERS
        for spun in SPUN
        for m in measure(cluster, nbytes, spun)
    ]


def rows(results: list[LaunchTime]) -> Iterator[tuple]:
    for i in range(0, len(results), len(HOW)):
        r, times = results[i], [f"{m.us:.2f}" for m in results[i : i + len(HOW)]]
        yield r.cluster, r.parameters, r.spun, *times
