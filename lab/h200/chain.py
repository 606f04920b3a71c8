"""What each load of a chain takes on a Hopper GPU: its address is what the load before has found.

One thread, so nothing queues. before: what the GPU did last, as of rig written: it read 256 MB, or
a memset, or that and a pause. pages: each load goes to another page of 2 MB, or all to one. Cycles
of each load, the median of many launches; none is of a line that the L2 holds.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from b200.chip.launch import Shape
from hopper.rewrite import TARGET
from hopper.run import Image, places_of
from lab.h200.written import make_ready

LOADS = 6
LAUNCHES, WARM_UP = 40, 4
PAGE, LINE = 2 << 20, 1 << 12  # bytes; launches are a line apart
PAGES = 1 << 9
WRITTEN = 1 << 28
BEFORE = ("read", "written", "waited")
KINDS = {"of its own": PAGE, "all in one": PAGE // 8}  # bytes from load to load
COLUMNS = ("page", "before", *(f"load {n}" for n in range(1, LOADS + 1)))


@dataclass(frozen=True)
class ChainCost:
    """Cycles of each load."""

    page: str
    before: str
    cycles: list[float]


def kernel(target: str = TARGET) -> str:
    """PTX. Parameters: out (a u32 a load), the address of the first load."""
    one = """mov.u32 %r2, %clock; ld.volatile.global.u64 %rd2, [%rd2];
    setp.eq.u64 %p1, %rd2, 0; @%p1 bra DONE; mov.u32 %r3, %clock; sub.u32 %r3, %r3, %r2;
    st.volatile.shared.u32 [times+{at}], %r3;"""
    chain = "\n    ".join(one.format(at=4 * n) for n in range(LOADS))
    copy = " ".join(
        f"ld.volatile.shared.u32 %r3, [times+{4 * n}]; st.global.u32 [%rd1+{4 * n}], %r3;"
        for n in range(LOADS)
    )
    return f""".version 8.8
.target {target}
.address_size 64
.shared .align 16 .b8 times[{4 * LOADS}];
.visible .entry k(.param .u64 out, .param .u64 start) .reqntid 1, 1, 1
{{
    .reg .pred %p<2>; .reg .b32 %r<4>; .reg .b64 %rd<3>;
    ld.param.u64 %rd1, [out]; ld.param.u64 %rd2, [start];
    {chain}
    {copy}
    DONE: ret;
}}
"""


def chains(address: int, apart: int) -> list[list[int]]:
    """The addresses of each launch's loads, and one behind the last."""
    first = [PAGE * (n * 97 % (PAGES - LOADS - 1)) + LINE * n for n in range(LAUNCHES)]
    return [[address + at + apart * n for n in range(LOADS + 1)] for at in first]


def measure(page: str, before: str) -> ChainCost:
    import torch

    text = kernel()
    image = Image(text, "k", places_of(text, "k"))
    shape = Shape((1, 1, 1), (1, 1, 1), (1, 1, 1), 0)
    image.prepare(shape)
    pool = torch.zeros(PAGE * PAGES // 8, dtype=torch.int64, device="cuda")
    written = torch.zeros(WRITTEN, dtype=torch.uint8, device="cuda")
    found = chains(pool.data_ptr(), KINDS[page])
    for addresses in found:
        for here, after in pairwise(addresses):
            pool[(here - pool.data_ptr()) // 8] = after
    out = torch.zeros(LAUNCHES, LOADS, dtype=torch.int32, device="cuda")
    for n, addresses in enumerate(found):
        make_ready(before, written)
        image.enqueue(shape, struct.pack("<QQ", out[n].data_ptr(), addresses[0]))
    cycles = out[WARM_UP:].double().median(0).values
    return ChainCost(page, before, cycles.tolist())


def measure_all() -> list[ChainCost]:
    return [measure(page, before) for page in KINDS for before in BEFORE]


def rows(results: list[ChainCost]) -> Iterator[tuple]:
    for r in results:
        yield r.page, r.before, *(f"{clk:.0f}" for clk in r.cycles)
