"""What a kernel pays on a Hopper GPU for written lines that it finds in the L2.

Every CTA loads `steps` times 16 KB as in rig mixed, of memory that the L2 does not hold, and
stores nothing. before: what the GPU did last. read: it read 256 MB. written: a memset of 240 MB,
just before. half: a memset of half as much as the L2 holds, after reads. waited: a memset and a
pause. us: from the start of the first CTA to the end of the last one, the mean of many launches.
"""

from __future__ import annotations

import torch

from lab.h200 import rig
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


def make_ready(before: str, pool: torch.Tensor) -> None:
    if before in ("read", "half"):
        rig.forget()
    if before == "half":
        pool[: torch.cuda.get_device_properties(0).L2_cache_size // 2].zero_()
    elif before != "read":
        pool.zero_()
    if before == "waited":
        torch.cuda._sleep(PAUSE)


def measure(kind: str, before: str, ctas: int, steps: int) -> rig.Row:
    """read: bytes of a call."""
    shape, room = shape_of(ctas), sizes(kind, ctas, steps, 0, 1)[0]
    image = rig.image_of(kernel(kind, steps, 0, 1, ctas, first=FIRST, last=LAST), shape)
    data, written, out = rig.room(max(POOL, 2 * room)), rig.room(POOL), rig.zeros(ctas, 2)
    turns, times = data.numel() // room, []
    for i in range(ROUNDS):
        make_ready(before, written)
        address = data.data_ptr() + i % turns * room
        image.enqueue(shape, parameters(kind, ctas, steps, address, out.data_ptr()))
        started, ended = out.cpu().unbind(1)
        times.append(int(ended.max() - started.min()) / 1e3)
    usual = sorted(times)[ROUNDS // 4 : -ROUNDS // 4]
    of = {"kind": kind, "before": before, "ctas": ctas, "read": ctas * steps * STAGE}
    return of | {"us": sum(usual) / len(usual)}


def results() -> rig.Results:
    return (
        measure(kind, before, ctas, n)
        for kind in ("along", "boxes")
        for ctas in (*FEW, rig.sms())
        for n in STEPS
        for before in BEFORE
    )
