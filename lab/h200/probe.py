"""What fence_cost.py and load_cost.py share: launches, and the command around them."""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from b200 import records
from b200.chip.launch import Shape
from b200.command_line import Parser
from hopper.errors import HopperError
from hopper.run import Image, places_of, require_gpu
from hopper.this_gpu import describe, made_by

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


def command(
    doc: str | None, measure: Callable[[], list[Any]], table: Callable[[list[Any]], str]
) -> int:
    """Measure, print the results (dataclasses) as a table, write them with --out. Exit status."""
    parser = Parser("python -m lab h200", (doc or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the results here")
    args = parser.parse_args()
    try:
        name = require_gpu()
        results = measure()
    except HopperError as error:
        print(error, file=sys.stderr)
        return 2
    if not results:
        print("nothing was measured", file=sys.stderr)
        return 1
    print(f"measured on {name}, cycles\n{table(results)}")
    if args.out:
        machine = describe()
        found = {"made_by": made_by(machine), "machine": machine}
        records.write(args.out, found | {"results": [asdict(r) for r in results]})
    return 0
