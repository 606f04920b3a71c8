"""A kernel in CuTe DSL, for .ci/run to try the package with: it imports nothing of the checkout."""

import cutlass.cute as cute
import torch
from cutlass.cute.runtime import from_dlpack


@cute.kernel
def doubled(x: cute.Tensor, y: cute.Tensor):
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    i = block * 128 + thread
    y[i] = x[i] + x[i]


@cute.jit
def launch(x: cute.Tensor, y: cute.Tensor):
    doubled(x, y).launch(grid=(cute.size(x) // 128, 1, 1), block=(128, 1, 1))


x, y = torch.arange(512, dtype=torch.float32), torch.zeros(512)
launch(from_dlpack(x), from_dlpack(y))
assert torch.equal(y, 2 * x), y
print("doubled:", y[:4].tolist())
