"""What rigs share: the frame of a kernel, its loading and its launches, and what is in the L2."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import torch

from b200.chip.copies.tensormap import TensorMap
from b200.chip.launch import Shape
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
    """PTX of a kernel `k` around a body, of so many threads (0: of any number). It declares `dyn`,
    dynamic shared memory, and registers %p, %rs, %h (16 bits), %r, %f and %rd.
    """
    block = f" .reqntid {threads}, 1, 1" if threads else ""
    return f""".version 8.6
.target {target}
.address_size 64
.extern .shared .align 1024 .b8 dyn[];
.visible .entry k({", ".join(f".param {p}" for p in parameters)}){block}
{{
    .reg .pred %p<8>; .reg .b16 %rs<2>; .reg .b16 %h<64>; .reg .b32 %r<80>; .reg .f32 %f<64>;
    .reg .b64 %rd<32>;
    {body}
    ret;
}}
"""


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
