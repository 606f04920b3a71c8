"""What a kernel pays on a Hopper GPU for written lines that it finds in the L2.

Every CTA loads `steps` times 16 KB as in rig mixed, of memory that the L2 does not hold, and
stores nothing. before: what the GPU did last. read: it read 256 MB. written: a memset of 240 MB,
just before. half: a memset of half as much as the L2 holds, after reads. waited: a memset and a
pause. us: from the start of the first CTA to the end of the last one, the mean of many launches.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hopper.run import Image, places_of
from lab.h200.memory import forget
from lab.h200.mixed import POOL, STAGE, kernel, parameters, shape_of, sizes

FIRST = "mov.u64 %rd11, %globaltimer;"
LAST = """@%p1 bra DONE;
    mov.u64 %rd8, %globaltimer; mul.wide.u32 %rd9, %r2, 16; add.u64 %rd9, %rd7, %rd9;
    st.global.v2.u64 [%rd9], {%rd11, %rd8};
    DONE:"""
BEFORE = ("read", "written", "half", "waited")
PAUSE = 1_000_000  # clk
ROUNDS = 24
STEPS = (1, 4, 8, 15, 31, 61)
FEW = (32, 64)  # CTAs
COLUMNS = ("kind", "CTAs", "read, MB", *BEFORE)


@dataclass(frozen=True)
class ReadTime:
    """read: bytes of a call."""

    kind: str
    before: str
    ctas: int
    read: int
    us: float


def make_ready(before: str, pool) -> None:
    import torch

    if before == "read":
        forget()
    elif before == "half":
        forget()
        half = torch.cuda.get_device_properties(0).L2_cache_size // 2
        pool[:half].zero_()
    else:
        pool.zero_()
        if before == "waited":
            torch.cuda._sleep(PAUSE)


def measure(kind: str, before: str, ctas: int, steps: int) -> ReadTime:
    import torch

    text = kernel(kind, steps, 0, 1, ctas, first=FIRST, last=LAST)
    image = Image(text, "k", places_of(text, "k"))
    shape = shape_of(ctas)
    image.prepare(shape)
    room = sizes(kind, ctas, steps, 0, 1)[0]
    data, written = (
        torch.zeros(n, dtype=torch.uint8, device="cuda") for n in (max(POOL, 2 * room), POOL)
    )
    out = torch.zeros(ctas, 2, dtype=torch.int64, device="cuda")
    turns, times = data.numel() // room, []
    for i in range(ROUNDS):
        make_ready(before, written)
        address = data.data_ptr() + i % turns * room
        image.enqueue(shape, parameters(kind, ctas, steps, address, out.data_ptr()))
        started, ended = out.cpu().unbind(1)
        times.append(int(ended.max() - started.min()) / 1e3)
    usual = sorted(times)[ROUNDS // 4 : -ROUNDS // 4]
    return ReadTime(kind, before, ctas, ctas * steps * STAGE, sum(usual) / len(usual))


def measure_all() -> list[ReadTime]:
    import torch

    every = torch.cuda.get_device_properties(0).multi_processor_count
    return [
        measure(kind, before, ctas, n)
        for kind in ("along", "boxes")
        for ctas in (*FEW, every)
        for n in STEPS
        for before in BEFORE
    ]


def rows(results: list[ReadTime]) -> Iterator[tuple]:
    found: dict[tuple[str, int, int], dict[str, float]] = {}
    for r in results:
        found.setdefault((r.kind, r.ctas, r.read), {})[r.before] = r.us
    for (kind, ctas, read), us in found.items():
        yield kind, ctas, f"{read / 1e6:.1f}", *(f"{us[b]:.2f}" for b in BEFORE)
