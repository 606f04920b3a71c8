"""What rigs share: launches of a kernel with two parameters."""

from __future__ import annotations

import struct

from b200.chip.launch import Shape
from hopper.run import Image, places_of

LAUNCHES = 2  # the first one loads the code
SMEM = 200 << 10
COLD_BYTES = 1 << 28  # that go through L2 before a cold launch


def launch(text: str, ctas: int, threads: int, cluster: int, out, data, cold: bool = False) -> None:
    """Run the kernel `k` of a PTX module; its parameters are the addresses of two tensors. cold:
    nothing of them is in L2. Raises HopperError.
    """
    import torch

    image = Image(text, "k", places_of(text, "k"))
    shape = Shape((ctas, 1, 1), (threads, 1, 1), (cluster, 1, 1), SMEM)
    for _ in range(LAUNCHES):
        if cold:
            torch.zeros(COLD_BYTES, dtype=torch.uint8, device="cuda")
        image.launch(shape, struct.pack("<QQ", out.data_ptr(), data.data_ptr()))
