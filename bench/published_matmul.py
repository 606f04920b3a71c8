"""Published times of public matmul kernels against the model: python bench/published_matmul.py
SOURCES [--only v5 v7c] [--size 4096] [--clock 1.85]

SOURCES is the folder 02e_matmul_sm100 of gau-nernst/learn-cuda: BF16 matmuls of tcgen05 in CUDA, in
steps from the naive to the persistent one, with their TFLOPS on a B200 in its README. nvcc turns
them into PTX, unmodified, and each is launched as its own host code launches it. Protocol of the
README: the mean of back-to-back calls on distinct inputs that together take 10 ms. No constant of
the model was chosen by these times.
"""

from __future__ import annotations

import argparse
import math
import struct
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from calibration import overrides, pointer, timed_gpu

from emulator.isa.tensormap import TensorMap
from emulator.ptx import parse
from emulator.timing.protocol import reported

BF16, SWIZZLE_128B = 10, 3  # codes of a tensormap
SMEM = 227 * 1024
# What the sources include of torch: declarations that only their host code uses.
TORCH_STUB = """#pragma once
#include <algorithm>
#include <tuple>
#include <cuda_bf16.h>
#define TORCH_CHECK(...)
"""


@dataclass(frozen=True)
class Version:
    """How a kernel is launched: tile of a CTA, CTAs of a cluster and warps, shared-memory bytes,
    CTAs of a persistent grid (0: one a tile), number of the kernel in its file, and the
    tensormap's box: elements of a row, in three dimensions or (slices of K) in two.
    """

    file: str
    number: int
    tile: tuple[int, int, int]
    smem: int
    cluster: int = 1
    warps: int = 4
    blocks: int = 0
    row: int = 64
    three: bool = True


def stages(count: int, n: int, k: int, cluster: int = 1) -> int:
    """Bytes of `count` stages of A (128 rows a CTA) and B (n rows a cluster)."""
    return count * (128 + n // cluster) * k * 2


# What each file's launch function passes.
VERSIONS = {
    "v1a": Version("v1", 0, (128, 256, 256), stages(1, 256, 256), row=8, three=False),
    "v1b": Version("v1", 1, (128, 256, 256), stages(1, 256, 256), row=8),
    "v2a": Version("v2", 0, (128, 256, 256), stages(1, 256, 256), three=False),
    "v2b": Version("v2", 1, (128, 256, 256), stages(1, 256, 256)),
    "v3": Version("v3", 0, (128, 256, 128), stages(2, 256, 128)),
    "v4": Version("v4", 0, (128, 128, 64), stages(7, 128, 64)),
    "v5": Version("v5", 0, (128, 256, 64), stages(7, 256, 64, 2), cluster=2),
    "v6": Version("v6", 0, (128, 256, 64), stages(7, 256, 64, 2), 2, 6, 148),
    "v7a": Version("v7", 0, (128, 256, 64), stages(7, 256, 64, 2) + 148, 2, 6, 148),
    "v7b": Version("v7", 0, (128, 256, 64), stages(7, 256, 64, 2) + 148, 2, 6, 128),
    "v7c": Version("v7", 1, (128, 256, 64), stages(7, 256, 64, 2) + 148, 2, 6, 128),
}
# TFLOPS on a B200 (Modal), README of the sources, by version and M = N = K.
PUBLISHED = {
    ("v1a", 4096): 255.73,
    ("v1b", 4096): 254.37,
    ("v2a", 4096): 699.39,
    ("v2b", 4096): 721.02,
    ("v3", 4096): 914.42,
    ("v4", 4096): 1053.61,
    ("v5", 4096): 1169.65,
    ("v6", 4096): 1273.32,
    ("v7a", 4096): 1293.38,
    ("v7b", 4096): 1316.16,
    ("v7c", 4096): 1326.11,
    ("v7a", 2048): 930.34,
    ("v7b", 2048): 930.19,
    ("v7c", 2048): 955.32,
}


def to_ptx(sources: Path, file: str) -> str:
    """PTX of matmul_FILE.cu, compiled as the sources' build compiles it."""
    with tempfile.TemporaryDirectory() as folder:
        stub = Path(folder) / "torch" / "library.h"
        stub.parent.mkdir()
        stub.write_text(TORCH_STUB)
        out = Path(folder) / "out.ptx"
        command = ["nvcc", "-ptx", "-O3", "-lineinfo", "-std=c++20", "--expt-relaxed-constexpr"]
        command += ["-gencode=arch=compute_100a,code=compute_100a", f"-I{folder}"]
        command += [str(sources / f"matmul_{file}.cu"), "-o", str(out)]
        subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
        return out.read_text()


def tensormap(version: Version, matrix: torch.Tensor, rows: int) -> bytes:
    """The [height, width] matrix in boxes of `rows` rows."""
    height, width = matrix.shape
    row, swizzle = version.row, SWIZZLE_128B if version.row == 64 else 0
    if not version.three:
        dims, strides, box = (width, height), (2 * width,), (row, rows)
    else:
        dims, strides = (row, height, width // row), (2 * width, 2 * row)
        box = (row, rows, version.tile[2] // row)
    steps = (1,) * len(dims)
    return TensorMap(matrix.data_ptr(), BF16, dims, strides, box, steps, swizzle).encode()


def launch(gpu, text: str, version: Version, size: int):
    """Run the kernel on square matrices; returns the launch."""
    program = gpu._parsed.get(text)
    if program is None:
        program = gpu._parsed[text] = parse(text)
    name, kernel = list(program.kernels.items())[version.number]
    a, b, c = (torch.zeros(size, size, dtype=torch.bfloat16) for _ in range(3))
    values = [
        tensormap(version, a, 128),
        tensormap(version, b, version.tile[1] // version.cluster),
        pointer(c),
        *[struct.pack("<i", size)] * 3,
        bytes(8),
        bytes(4),
    ]
    data = bytearray(kernel.param_bytes)
    for parameter, value in zip(kernel.params, values):
        data[parameter.offset : parameter.offset + len(value)] = value
    tiles = size // version.tile[0] * (size // version.tile[1])
    grid = min(version.blocks or tiles, tiles) if version.file != "v6" else version.blocks
    cluster, threads = (version.cluster, 1, 1), (32 * version.warps, 1, 1)
    return gpu.launch(program, name, (grid, 1, 1), threads, cluster, version.smem, bytes(data))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sources", type=Path)
    parser.add_argument("--only", nargs="*", default=list(VERSIONS))
    parser.add_argument("--size", type=int, default=4096)
    parser.add_argument("--clock", type=float, default=1.85, help="GHz; 1.85: sustained MMAs")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    options = parser.parse_args()
    flops, texts = 2 * options.size**3, {}
    calls = math.ceil(10e-3 / (flops / 2000e12))
    for name in options.only:
        version = VERSIONS[name]
        if version.file not in texts:
            texts[version.file] = to_ptx(options.sources, version.file)
        gpu = timed_gpu(clock_ghz=options.clock, constants=overrides(options.set))
        start = time.time()
        done = launch(gpu, texts[version.file], version, options.size)
        result = reported([done], calls)
        published = PUBLISHED.get((name, options.size))
        text = f"{name:4} {options.size}: modelled {result.time_us:7.1f} us"
        text += f" {flops / result.time_us / 1e6:7.1f} TFLOPS, bound by {result.bound_by}"
        if published:
            us = flops / published / 1e6
            text += f"; measured {us:7.1f} us {published:7.1f} TFLOPS: "
            text += f"{result.time_us / us - 1:+.1%} of the time"
        print(f"{text} ({time.time() - start:.0f} s)", flush=True)


if __name__ == "__main__":
    main()
