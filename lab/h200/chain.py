"""What each load of a chain takes on a Hopper GPU: its address is what the load before has found.

One thread, so nothing queues. before: what the GPU did last, as of rig written: it read 256 MB, or
a memset, or that and a pause. page: each load goes to another page of 2 MB, or all to one. Cycles
of each load, the median of many launches; none is of a line that the L2 holds.
"""

from __future__ import annotations

import struct
from itertools import pairwise

import torch

from lab.h200 import rig
from lab.h200.written import make_ready

LOADS = 6
LAUNCHES, WARM_UP = 40, 4
PAGE, LINE = 2 << 20, 1 << 12  # bytes; launches are a line apart
PAGES = 1 << 9
WRITTEN = 1 << 28
BEFORE = ("read", "written", "waited")
KINDS = {"of its own": PAGE, "all in one": PAGE // 8}  # bytes from load to load


def kernel() -> str:
    """PTX. Parameters: out (a u32 a load), the address of the first load."""
    one = """mov.u32 %r2, %clock; ld.volatile.global.u64 %rd2, [%rd2];
    setp.eq.u64 %p1, %rd2, 0; @%p1 bra DONE; mov.u32 %r3, %clock; sub.u32 %r3, %r3, %r2;
    st.volatile.shared.u32 [times+{at}], %r3;"""
    chain = "\n    ".join(one.format(at=4 * n) for n in range(LOADS))
    copy = " ".join(
        f"ld.volatile.shared.u32 %r3, [times+{4 * n}]; st.global.u32 [%rd1+{4 * n}], %r3;"
        for n in range(LOADS)
    )
    body = f""".shared .align 16 .b8 times[{4 * LOADS}];
    ld.param.u64 %rd1, [out]; ld.param.u64 %rd2, [data];
    {chain}
    {copy}
    DONE:"""
    return rig.ptx(body, 1)


def chains(address: int, apart: int) -> list[list[int]]:
    """The addresses of each launch's loads, and one behind the last."""
    first = [PAGE * (n * 97 % (PAGES - LOADS - 1)) + LINE * n for n in range(LAUNCHES)]
    return [[address + at + apart * n for n in range(LOADS + 1)] for at in first]


def measure(apart: int, before: str) -> list[float]:
    """Cycles of each load. apart: bytes from load to load."""
    shape = rig.row(1, 1)
    image = rig.image_of(kernel(), shape)
    pool, written = rig.zeros(PAGE * PAGES // 8), rig.room(WRITTEN)
    found = chains(pool.data_ptr(), apart)
    for addresses in found:
        for here, after in pairwise(addresses):
            pool[(here - pool.data_ptr()) // 8] = after
    out = rig.zeros(LAUNCHES, LOADS, dtype=torch.int32)
    for n, addresses in enumerate(found):
        make_ready(before, written)
        image.enqueue(shape, struct.pack("<QQ", out[n].data_ptr(), addresses[0]))
    return out[WARM_UP:].double().median(0).values.tolist()


def results() -> rig.Results:
    for page, apart in KINDS.items():
        for before in BEFORE:
            yield {"page": page, "before": before, "cycles": measure(apart, before)}
