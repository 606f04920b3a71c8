"""What rigs share: the frame of a kernel, its loading and its launches, and what is in the L2."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import torch

from b200.chip.copies.tensormap import TensorMap
from b200.chip.launch import Shape
from harness.measure import published
from hopper.rewrite import TARGET
from hopper.run import Image, places_of

LAUNCHES = 2  # the first one loads the code
SMEM = 200 << 10
COLD_BYTES = 1 << 28  # that go through L2 before a cold launch
OUT_AND_DATA = (".u64 out", ".u64 data")
OUT_AND_MAP = (".u64 out", ".align 64 .b8 map[128]")
TRY = "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64"
BYTE, FLOAT32 = 0, 7  # element types of a tensormap
SWIZZLE_128 = 3

Row = dict[str, Any]  # of what a rig measures, as in its file
Results = Iterator[Row]


def ptx(
    body: str,
    threads: int = 0,
    parameters: tuple[str, ...] = OUT_AND_DATA,
    target: str = TARGET,
) -> str:
    """As `published.ptx`, for this GPU."""
    return published.ptx(body, parameters, threads, target)


def meet(cluster: int) -> str:
    """All threads of a CTA, or of a cluster."""
    if cluster == 1:
        return "bar.sync 0;"
    return "barrier.cluster.arrive.relaxed.aligned; barrier.cluster.wait.aligned;"


def ring(
    stages: int,
    size: int,
    nbytes: int,
    loads: int,
    setup: str,
    issue: str,
    *,
    releases: int = 1,
    cluster: int = 1,
    filled: str = "",
    again: str = "",
    released: str = "",
    seen: str = "",
) -> str:
    """PTX of two warps with a ring of stages at %r9, of `size` bytes each, and its barriers behind
    them: one fills a stage with `nbytes` as soon as it is empty, `loads` times, and goes to END;
    the other sees it and goes on. %r1: the thread. %r10 counts stages, %r11 is the one at hand.

    setup: of the warp that fills. issue: by a lane, to the stage at %r20 with the barrier at %r22.
    filled, again: by all lanes, behind each stage and at the ring's end. releases: CTAs of the
    cluster of which a stage is to be seen before it is filled again. released: by the lane that
    says so; seen: by all lanes.
    """
    full = stages * size
    empty = full + 8 * stages
    init = "\n".join(
        f"mbarrier.init.shared::cta.b64 [%r9+{full + 8 * s}], {1 if s < stages else releases};"
        for s in range(2 * stages)
    )
    release = "".join(
        f"mapa.shared::cluster.u32 %r33, %r32, {rank};"
        f" mbarrier.arrive.release.cta.shared::cluster.b64 _, [%r33+{empty}];"
        for rank in range(releases)
    )
    if releases == 1:
        release = f"mbarrier.arrive.shared::cta.b64 _, [%r32+{empty}];"
    return f"""setp.ne.u32 %p1, %r1, 0; @%p1 bra READY;
    {init}
    fence.mbarrier_init.release.cluster;
    READY: bar.sync 0;
    {meet(cluster)}
    mov.b32 %r10, 0; mov.b32 %r11, 0;
    setp.ge.u32 %p2, %r1, 32; @%p2 bra CONSUME;
    {setup}
    mov.b32 %r12, 1;
    LOAD: mad.lo.u32 %r22, %r11, 8, %r9; mad.lo.u32 %r20, %r11, {size}, %r9;
    FREE: {TRY} %p3, [%r22+{empty}], %r12; @!%p3 bra FREE;
    add.u32 %r22, %r22, {full};
    elect.sync %r26|%p0, -1; @!%p0 bra ISSUED;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r22], {nbytes};
    {issue}
    ISSUED: add.u32 %r11, %r11, 1; add.u32 %r10, %r10, 1; {filled}
    setp.ne.u32 %p4, %r11, {stages}; @%p4 bra NEXT;
    mov.b32 %r11, 0; xor.b32 %r12, %r12, 1; {again}
    NEXT: setp.lt.u32 %p5, %r10, {loads}; @%p5 bra LOAD;
    bra END;
    CONSUME: mov.b32 %r12, 0;
    SEE: mad.lo.u32 %r32, %r11, 8, %r9;
    THERE: {TRY} %p3, [%r32+{full}], %r12; @!%p3 bra THERE;
    elect.sync %r26|%p0, -1; @!%p0 bra RELEASED;
    {release}
    {released}
    RELEASED: {seen} add.u32 %r11, %r11, 1; add.u32 %r10, %r10, 1;
    setp.ne.u32 %p4, %r11, {stages}; @%p4 bra SAME; mov.b32 %r11, 0; xor.b32 %r12, %r12, 1;
    SAME: setp.lt.u32 %p5, %r10, {loads}; @%p5 bra SEE;"""


def sms() -> int:
    """How many this GPU has."""
    return torch.cuda.get_device_properties(0).multi_processor_count


def zeros(*size: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.zeros(*size, dtype=dtype, device="cuda")


def room(nbytes: int) -> torch.Tensor:
    """So many bytes of the GPU's memory, zeros."""
    return zeros(nbytes, dtype=torch.uint8)


def row(ctas: int, threads: int, cluster: int = 1, smem: int = 0, dependent: bool = False) -> Shape:
    """The shape of a launch with one dimension."""
    return Shape((ctas, 1, 1), (threads, 1, 1), (cluster, 1, 1), smem, dependent)


def image_of(text: str, shape: Shape | None = None) -> Image:
    """The kernel, loaded; with a shape, ready to be enqueued. Raises HopperError."""
    image = Image(text, "k", places_of(text, "k"))
    if shape is not None:
        image.prepare(shape)
    return image


def addresses(*tensors: torch.Tensor) -> bytes:
    """Parameters that are addresses."""
    return struct.pack(f"<{len(tensors)}Q", *(t.data_ptr() for t in tensors))


def matrix(address: int, columns: int, rows: int, box: tuple[int, int]) -> bytes:
    """The tensormap of a matrix of bytes whose boxes are swizzled by 128 bytes."""
    shape = (columns, rows), (columns,), box, (1, 1), SWIZZLE_128
    return TensorMap(address, BYTE, *shape).encode()


def launch(
    text: str, shape: Shape, out: torch.Tensor, data: torch.Tensor, cold: bool = False
) -> None:
    """Run a kernel of OUT_AND_DATA twice. cold: nothing is in L2. Raises HopperError."""
    image = image_of(text)
    for _ in range(LAUNCHES):
        if cold:
            room(COLD_BYTES)
        image.launch(shape, addresses(out, data))


def forget() -> None:
    """Nothing that was read before is in the L2, and what is there is clean."""
    torch.ones(COLD_BYTES // 4, dtype=torch.int32, device="cuda").sum()
