"""Times the load pipeline of a packed kernel on a Hopper GPU, and compares it with DRAM's rate.

    python -m hopper.pipeline packs/gemm-benchmark-0.npz ... [--out FILE]

TMA, bulk copies, barriers, schedule and epilogue are the kernel's own. The MMAs and the copies to
tensor memory are left out, so a stage is released as soon as it has landed. Inputs are cold: copies
of them that together exceed L2 take turns. A second kernel is timed in the same way: it only reads
as many bytes with ordinary loads, and shows what DRAM gives a launch of this size. The packed
kernel is also timed with its own arrives at other CTAs relaxed: the difference is the cost of their
release. The times are those of this GPU, with its number of SMs and its DRAM; they are no times of
a B200.
"""

from __future__ import annotations

import struct
import sys
from dataclasses import asdict, dataclass
from functools import partial
from math import prod
from pathlib import Path

from b200.chip.launch import Shape
from b200.command_line import Parser
from hopper.byte_tensormaps import four_bit_maps
from hopper.pack import Pack, load
from hopper.rewrite import without_releases, without_tensor_core
from hopper.run import HopperKernel, Image
from hopper.side_by_side import cold_inputs
from hopper.this_gpu import describe, write
from hopper.timing import between_events, graph_us
from hopper.toolchain import DEVICE, with_nvrtc

SPECIFIED_GB_S = 4800  # NVIDIA H200 data sheet
READ_SHAPE = (2, 512)  # CTAs a multiprocessor and their threads, of the kernel that only reads


@dataclass(frozen=True)
class Measured:
    """The times of one pack. input_bytes: read by one call. us: microseconds a call, from launch to
    launch in a CUDA graph. without_releases_us: the same if remote arrives do not release. read_us:
    the same for ordinary loads of as many bytes.
    """

    pack: str
    case: dict | None
    ctas: int
    cluster: int
    input_bytes: int
    us: float
    without_releases_us: float
    read_us: float
    gb_s: float
    of_read: float
    of_copy: float


def measure(pack: Pack, name: str, copy_gb_s: float) -> Measured:
    """Time the loads of a pack's first launch."""
    launch, read = pack.launches[0], pack.read_bytes
    kept, params = cold_inputs(pack)
    us, text = [], pack.programs[launch.program]
    four_bit = four_bit_maps(launch.params, text, launch.kernel)
    for rewrite in (without_tensor_core, without_releases):
        rewrite = partial(rewrite, four_bit=four_bit, cluster=prod(launch.cluster))
        kernel = HopperKernel(text, launch.kernel, rewrite)
        run = kernel.prepared(launch.shape)
        us.append(graph_us(lambda i, run=run: run(params[i % len(params)][0])))
    read_us, gb_s = read_time(read, len(kept)), read / us[0] / 1e3
    return Measured(
        name,
        pack.case,
        launch.shape.ctas,
        prod(launch.cluster),
        read,
        us[0],
        us[1],
        read_us,
        gb_s,
        read_us / us[0],
        gb_s / copy_gb_s,
    )


def read_time(size: int, copies: int) -> float:
    """Microseconds of a launch that reads `size` bytes with ordinary loads; `copies` buffers of
    that size take turns.
    """
    import torch

    places = [(0, 8, 8), (8, 8, 8), (16, 8, 8)]
    image = Image(with_nvrtc((DEVICE / "read.cu").read_text()), "read_only", places)
    per_sm, threads = READ_SHAPE
    ctas = per_sm * torch.cuda.get_device_properties(0).multi_processor_count
    shape = Shape((ctas, 1, 1), (threads, 1, 1), (1, 1, 1), 0)
    buffers = [torch.zeros(size, dtype=torch.uint8, device="cuda") for _ in range(copies)]
    out = torch.zeros(1, dtype=torch.int32, device="cuda")
    params = [struct.pack("<QQQ", b.data_ptr(), size // 16, out.data_ptr()) for b in buffers]
    return graph_us(lambda i: image.enqueue(shape, params[i % copies]))


def copy_rate() -> float:
    """GB/s of a copy of 4 GiB from device to device; bytes read and bytes written both count."""
    import torch

    a, b = (torch.empty(4 << 30, dtype=torch.uint8, device="cuda") for _ in range(2))
    times = [between_events(lambda: b.copy_(a)) for _ in range(5)]
    return 2 * a.numel() / sorted(times)[2] / 1e3


def main(argv: list[str]) -> int:
    parser = Parser("python -m hopper.pipeline")
    parser.add_argument("packs", nargs="+", type=Path, metavar="PACK.npz", help="packs to time")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the times as JSON")
    arguments = parser.parse_args(argv)
    copy = copy_rate()
    machine = describe()
    print(f"{machine['device']}: copy {copy:.0f} GB/s, specified {SPECIFIED_GB_S} GB/s")
    found = []
    for path in arguments.packs:
        m = measure(load(path), path.stem, copy)
        found.append(m)
        print(
            f"{m.pack}: {m.input_bytes / 1e6:.1f} MB in {m.us:.2f} us ({m.without_releases_us:.2f}"
            f" without releases), {m.gb_s:.0f} GB/s; ordinary loads {m.read_us:.2f} us:"
            f" {100 * m.of_read:.0f} % of their rate, {100 * m.of_copy:.0f} % of the copy,"
            f" measured on {machine['device']}",
            flush=True,
        )
    if arguments.out:
        rates = {"copy_gb_s": copy, "specified_gb_s": SPECIFIED_GB_S}
        write(arguments.out, machine, **rates, measured=[asdict(m) for m in found])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
