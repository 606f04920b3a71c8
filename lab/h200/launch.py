"""What calls back to back cost a Hopper GPU, from a CUDA graph and from a queue.

A kernel of 128 threads and 128 KB of shared memory, a CTA on seven of eight SMs, that spins for a
time; spun: microseconds it does, 0 for none. graph: calls in a CUDA graph. queue: the same launched
one by one while the GPU is busy with something else, so that it finds all of them in its queue, as
in the leaderboards' harness. alone: one call, between two events. parameters: bytes of them. us: a
call, the median of many rounds.
"""

from __future__ import annotations

import struct

from hopper.timing import graph_us, queue_us
from lab.h200 import rig

CALLS = 50
SMEM = 128 << 10
SPUN = (0, 4, 8)
PARAMETERS = (64, 2048)
CLUSTERS = (1, 2, 4)
HOW = ("graph", "queue", "alone")


def kernel(nbytes: int) -> str:
    """PTX. Its parameter begins with how many ns it spins."""
    body = """ld.param.u64 %rd1, [data]; mov.u64 %rd2, %globaltimer;
    SPIN: mov.u64 %rd3, %globaltimer; sub.u64 %rd3, %rd3, %rd2;
    setp.lt.u64 %p1, %rd3, %rd1; @%p1 bra SPIN;"""
    return rig.ptx(body, 128, (f".align 64 .b8 data[{nbytes}]",))


def measure(cluster: int, nbytes: int, spun: int) -> tuple[float, float, float]:
    """us of a call, by HOW."""
    ctas = rig.sms() // 8 * 7
    shape = rig.row(ctas // cluster * cluster, 128, cluster, SMEM)
    image = rig.image_of(kernel(nbytes), shape)
    params = struct.pack("<Q", 1000 * spun) + bytes(nbytes - 8)

    def call(_: int) -> None:
        image.enqueue(shape, params)

    return graph_us(call), queue_us(call, CALLS), queue_us(call, 1)


def results() -> rig.Results:
    for cluster in CLUSTERS:
        for nbytes in PARAMETERS:
            for spun in SPUN:
                of = {"cluster": cluster, "parameters": nbytes, "spun": spun}
                for how, us in zip(HOW, measure(cluster, nbytes, spun), strict=True):
                    yield {"how": how} | of | {"us": us}
