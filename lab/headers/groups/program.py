"""A kernel that calls functions of a header, and what its output must be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

THREADS = 128  # of a block
T = np.arange(THREADS, dtype=np.uint32)
INPUTS = 512  # words: small numbers, so that sums of floats are exact
OUTPUTS = 2048
HEAD = """#include <cooperative_groups.h>
#include <cooperative_groups/memcpy_async.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>
#include <cuda/atomic>
#include <cuda/barrier>
#include <cuda/pipeline>
#include <cuda_pipeline.h>
namespace cg = cooperative_groups;
"""
CUB = """#include <cuda/functional>
#include <cuda/std/functional>
#include <cub/block/block_shuffle.cuh>
#include <cub/cub.cuh>
"""


@dataclass(frozen=True)
class Program:
    """page: the header. calls: what the body calls, as the page names it. body: of a kernel with
    `const unsigned* in, unsigned* out`, `t` the thread's number in its block. expected: the first
    words of `out`, from the words of `in`; of a list all arrays, one after the other. grid: blocks;
    cluster: of how many.
    """

    page: str
    name: str
    calls: str
    body: str
    expected: Callable[[np.ndarray], Any]
    grid: int = 1
    cluster: int = 1
    cooperative: bool = False

    @property
    def functions(self) -> tuple[str, ...]:
        return tuple(self.calls.split())

    def kernel(self) -> str:
        shape = f"__cluster_dims__({self.cluster}) " if self.cluster > 1 else ""
        return (
            f'extern "C" __global__ void {shape}{self.name}(const unsigned* in, unsigned* out)\n'
            f"{{ const unsigned t = threadIdx.x; (void)t;\n{self.body}\n}}\n"
        )


def given() -> np.ndarray:
    """Numbers below 97, in no order."""
    i = np.arange(INPUTS, dtype=np.uint64)
    return (i * 1103515245 + 12345 >> np.uint64(7)).astype(np.uint32) % 97


def rows(x: np.ndarray, width: int = 32) -> np.ndarray:
    """The numbers of a block's threads by groups of so many."""
    return x[:THREADS].reshape(-1, width)
