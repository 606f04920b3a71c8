"""Microseconds of one tcgen05.mma and tcgen05.cp in the emulator:
`python -m tests.b200.chip.bench_tensor_core`.

Times whole instructions, from operand decoding to the write of D, on random data in a CTA that is
not connected to anything. `exact` is the way taken where the hardware's sum loses bits.
"""

from __future__ import annotations

import os
import time
from types import SimpleNamespace

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

from b200.chip.state import CTA, Cluster
from b200.chip.tensor import mma, tmem_copy
from b200.program.module import Addr, Instr, Reg

A, B, SF = 0x2000, 0x8000, 0x1000
SFA, SFB = 256, 260


def best(f, prepare=lambda: None, seconds: float = 0.3) -> float:
    """Least time of a call in microseconds, over runs of 20 calls after `prepare`."""
    f()
    least, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        prepare()
        start = time.perf_counter()
        for _ in range(20):
            f()
        least = min(least, (time.perf_counter() - start) / 20)
    return least * 1e6


def machine():
    """A CTA with all its tensor memory allocated, and a warp in it."""
    cluster = Cluster(None, (0, 0, 0), (1, 1, 1))
    cta = CTA(cluster, 0, (0, 0, 0), 0x10000)
    cluster.ctas.append(cta)
    cta.tmem_allocations[0] = 512
    issue = SimpleNamespace(issue=lambda operation, warp, apply: apply())
    return SimpleNamespace(cta=cta, index=0, machine=issue)


def instruction(opcode: str, *addresses: int, count: int) -> Instr:
    """An instruction whose operands at the given positions are addresses, else registers."""
    operands = (
        Addr(Reg(f"%r{i}", "b32"), 0) if i in addresses else Reg(f"%r{i}", "b64")
        for i in range(count)
    )
    return Instr(opcode, tuple(operands))


def k_major(address: int) -> int:
    """Descriptor of a K-major tile with 128-byte swizzle."""
    return 0x4000404000010000 | address >> 4


def fp4_mma(warp, n: int, exact: bool):
    """kind::mxf4nvf4, M = 128, K = 64; `exact` by scales that spread too far."""
    rng = np.random.default_rng(0)
    warp.cta.smem.u8[:] = rng.integers(0, 256, warp.cta.smem.size, dtype=np.uint8)
    scales = rng.integers(0x30, 0x40, (32, 64), dtype=np.uint8)
    if exact:
        scales[:, ::4], scales[:, 1::4] = 1, 0x7E
    warp.cta.tmem[:, SFA : SFA + 16] = np.tile(scales.view(np.uint32), (4, 1))
    ins = instruction(
        "tcgen05.mma.cta_group::1.kind::mxf4nvf4.block_scale.block16", 0, 4, 5, count=7
    )
    run = mma.tcgen05_mma(ins)
    args = (0, k_major(A), k_major(B), 0x08000480 | n >> 3 << 17, SFA, SFB)
    return lambda: run(warp, 0, *args, True)


def plain_mma(warp, kind: str, n: int, small: bool):
    """kind::f16 or f8f6f4, M = 128; `small` integers lose nothing, normal numbers do."""
    rng = np.random.default_rng(0)
    size = 0xE000 // (2 if kind == "f16" else 1)
    data = rng.integers(-3, 4, size) if small else rng.normal(size=size)
    if kind == "f16":
        warp.cta.smem.u8[A : A + 2 * data.size] = data.astype(np.float16).view(np.uint8)
    else:
        codes = rng.integers(0x38, 0x40, size) if small else rng.integers(0, 0x70, size)
        warp.cta.smem.u8[A : A + size] = codes.astype(np.uint8)
    ins = instruction(f"tcgen05.mma.cta_group::1.kind::{kind}", 0, count=5)
    run = mma.tcgen05_mma(ins)
    args = (0, k_major(A), k_major(B), 8 << 24 | 1 << 4 | n >> 3 << 17)
    return lambda: run(warp, 0, *args, False)


def copy(warp):
    ins = instruction("tcgen05.cp.cta_group::1.32x128b.warpx4", 0, count=2)
    run = tmem_copy.tcgen05_cp(ins)
    return lambda: run(warp, 0, SFA, 0x0000400800010000 | SF >> 4)


def main():
    warp = machine()

    def clear():
        warp.cta.tmem[:, :256] = 0

    print("emulated tcgen05.mma, M = 128, CPU microseconds of one instruction (one core)")
    print(f"{'kind':<12}{'N':>5}{'fast':>9}{'exact':>9}")
    for n in (8, 64, 128, 256):
        times = [best(fp4_mma(warp, n, exact), clear) for exact in (False, True)]
        print(f"{'mxf4nvf4':<12}{n:>5}{times[0]:>9.1f}{times[1]:>9.1f}")
    for kind in ("f16", "f8f6f4"):
        for n in (64, 128, 256):
            times = [best(plain_mma(warp, kind, n, small)) for small in (True, False)]
            print(f"{kind:<12}{n:>5}{times[0]:>9.1f}{times[1]:>9.1f}")
    print(f"tcgen05.cp.32x128b.warpx4 {best(copy(warp)):.1f}")


if __name__ == "__main__":
    main()
