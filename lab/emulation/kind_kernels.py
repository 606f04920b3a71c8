"""Triton kernels of several kinds, for kinds.py: run one, and say what it took, as a line of JSON.

python -m b200 run lab/emulation/kind_kernels.py NAME
TRITON_INTERPRET=1 python lab/emulation/kind_kernels.py NAME
"""

# pyright: reportArgumentType=false
from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable

import torch
import triton
import triton.language as tl

DEVICE = "cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda"


@triton.jit
def add(x, y, out, n, block: tl.constexpr):  # noqa: ANN201
    i = tl.program_id(0) * block + tl.arange(0, block)
    tl.store(out + i, tl.load(x + i, i < n) + tl.load(y + i, i < n), i < n)


@triton.jit
def softmax(x, out, n, block: tl.constexpr):  # noqa: ANN201
    i = tl.arange(0, block)
    row = tl.load(x + tl.program_id(0) * n + i, i < n, other=-float("inf"))
    e = tl.exp(row - tl.max(row, 0))
    tl.store(out + tl.program_id(0) * n + i, e / tl.sum(e, 0), i < n)


@triton.jit
def sort(x, block: tl.constexpr):  # noqa: ANN201
    at = x + tl.program_id(0) * block + tl.arange(0, block)
    tl.store(at, tl.sort(tl.load(at)))


@triton.jit
def scan(x, block: tl.constexpr):  # noqa: ANN201
    at = x + tl.program_id(0) * block + tl.arange(0, block)
    tl.store(at, tl.cumsum(tl.load(at), 0))


@triton.jit
def escape(out, width, height, most, block: tl.constexpr):  # noqa: ANN201
    i = tl.program_id(0) * block + tl.arange(0, block)
    cr = (i % width) * 3.0 / width - 2.0
    ci = (i // width) * 2.0 / height - 1.0
    a, b, n = cr * 0, ci * 0, i * 0
    for _ in range(most):
        inside = a * a + b * b < 4.0
        n += tl.where(inside, 1, 0)
        a, b = tl.where(inside, a * a - b * b + cr, a), tl.where(inside, 2 * a * b + ci, b)
    tl.store(out + i, n)


@triton.jit
def matmul(a, b, out, n, block: tl.constexpr, step: tl.constexpr):  # noqa: ANN201
    rows = tl.program_id(0) * block + tl.arange(0, block)
    columns = tl.program_id(1) * block + tl.arange(0, block)
    total = tl.zeros((block, block), tl.float32)
    for begin in range(0, n, step):
        k = begin + tl.arange(0, step)
        left = tl.load(a + rows[:, None] * n + k[None, :])
        total = tl.dot(left, tl.load(b + k[:, None] * n + columns[None, :]), total)
    tl.store(out + rows[:, None] * n + columns[None, :], total)


# --- runs: each returns whether the result is right -----------------------------------------------


def run_add() -> bool:
    x, y = torch.randn(2, 1 << 18, device=DEVICE)
    out = torch.empty_like(x)
    add[(256,)](x, y, out, x.numel(), 1024)
    return torch.equal(out, x + y)


def run_softmax() -> bool:
    x = torch.randn(256, 1000, device=DEVICE)
    out = torch.empty_like(x)
    softmax[(256,)](x, out, 1000, 1024)
    return torch.allclose(out, x.softmax(1), atol=1e-6)


def run_sort() -> bool:
    x = torch.randn(32, 256, device=DEVICE)
    want = x.sort(1).values
    sort[(32,)](x, 256)
    return torch.equal(x, want)


def run_scan() -> bool:
    x = torch.randint(0, 99, (64, 1024), device=DEVICE, dtype=torch.int32)
    want = x.cumsum(1)
    scan[(64,)](x, 1024)
    return torch.equal(x.long(), want)


def run_escape() -> bool:
    out = torch.zeros(64 * 128, device=DEVICE, dtype=torch.int32)
    escape[(64,)](out, 128, 64, 50, 128)
    return int(out.max()) == 50


def run_matmul() -> bool:
    a, b = torch.randn(2, 256, 256, device=DEVICE).half()
    out = torch.empty(256, 256, device=DEVICE)
    matmul[(4, 4)](a, b, out, 256, 64, 64)
    return torch.allclose(out, a.float() @ b.float(), atol=1e-2)


RUNS: dict[str, Callable[[], bool]] = {  # by the names of KINDS, kinds.py
    "add": run_add,
    "softmax": run_softmax,
    "scan": run_scan,
    "sort": run_sort,
    "escape": run_escape,
    "matmul": run_matmul,
}


def launches() -> list[tuple[float, int]]:
    """The list in which each launch of this process will have its CPU seconds and its warp
    instructions.
    """
    from b200.chip.gpu import Gpu

    found: list[tuple[float, int]] = []
    execute = Gpu.execute

    def timed(*args, **named):
        begin = time.process_time()
        launch = execute(*args, **named)
        found.append((time.process_time() - begin, sum(launch.counters.values())))
        return launch

    Gpu.execute = timed
    return found


def main(name: str) -> None:
    torch.manual_seed(0)
    run, done = RUNS[name], launches() if DEVICE == "cuda" else []
    begin = time.process_time()
    if not run():
        raise SystemExit(f"{name} is wrong")
    seconds, instructions = done[0] if done else (time.process_time() - begin, 0)
    print(json.dumps({"seconds": seconds, "instructions": instructions}))


if __name__ == "__main__":
    main(sys.argv[1])
