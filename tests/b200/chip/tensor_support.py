"""Tensor-core instructions made by hand, and tiles laid out in shared memory bytewise."""

from __future__ import annotations

import numpy as np

from b200.program.module import Addr, Imm, Instr, Reg, Vec
from b200.registry import FULL, find
from tests.b200.chip.async_support import FakeWarp, cluster

A, B = 0x2000, 0x12000  # where tests put the operands of an MMA
SPANS = {0: 16, 1: 128, 2: 128, 4: 64, 6: 32}


def operand(text: str):
    """`[x]` an address, `{n}` a vector of n registers, digits an immediate, else a register."""
    if text[0] == "[":
        return Addr(Reg(text[1:-1], "b32"), 0)
    if text[0] == "{":
        return Vec(tuple(Reg(f"v{i}", "b32") for i in range(int(text[1:-1]))))
    return Imm(int(text)) if text.isdigit() else Reg(text, "b64")


def instruction(text: str):
    """(entry, run) of e.g. "tcgen05.cp.cta_group::1.32x128b.warpx4 [d] s"."""
    opcode, *operands = text.split()
    entry = find(opcode)
    return entry, entry.factory(Instr(opcode, tuple(operand(o) for o in operands)))


def lane_run(text: str, warp, *args):
    """Execute an instruction that one thread issues."""
    entry, run = instruction(text)
    assert entry.style == "lane"
    return run(warp, 0, *args)


def warp_run(text: str, warp, *args, mask=FULL):
    entry, run = instruction(text)
    assert entry.style == "warp"
    return run(warp, mask, *args)


def warps(ctas: int = 1, columns: int = 512, smem: int = 200 << 10):
    """(machine, a warp of each CTA) with the first `columns` of tensor memory allocated."""
    machine, found = cluster(ctas, smem)
    for warp in found:
        if columns:
            warp.cta.tmem_allocations[0] = columns
    return machine, found


def sibling(warp, index: int):
    """Another warp of the same CTA."""
    return FakeWarp(warp.machine, warp.cta, index)


def matrix(start: int, lbo: int = 16, sbo: int = 1024, mode: int = 2, base_offset: int = 0) -> int:
    """A matrix descriptor."""
    word = start >> 4 | (lbo >> 4) << 16 | (sbo >> 4) << 32 | 1 << 46
    return word | base_offset << 49 | mode << 61


def swizzle(address: int, mode: int, base_offset: int = 0) -> int:
    """Facts sheet section 1.1, one address at a time."""
    if mode == 0:
        return address
    if mode == 1:
        return address ^ ((address >> 7) & 3) << 5
    mask = {2: 7, 4: 3, 6: 1}[mode]
    return address ^ (((address >> 7) - base_offset) & mask) << 4


def k_major_address(start, lbo, sbo, mode, row, kb, base_offset=0) -> int:
    if mode == 0:
        linear = start + row // 8 * sbo + row % 8 * 16 + kb // 16 * lbo + kb % 16
    else:
        linear = start + row // 8 * sbo + row % 8 * SPANS[mode] + kb
    return swizzle(linear, mode, base_offset)


def mn_major_address(start, lbo, sbo, mode, mb, k, base_offset=0) -> int:
    if mode == 0:
        linear = start + mb // 16 * sbo + mb % 16 + k % 8 * 16 + k // 8 * lbo
    else:
        span = SPANS[mode]
        linear = start + mb // span * lbo + mb % span + k % 8 * span + k // 8 * sbo
    return swizzle(linear, mode, base_offset)


def put_k_major(cta, raw: np.ndarray, start: int, sbo: int = 1024, mode: int = 2, lbo: int = 16):
    """Write rows of bytes, uint8 [rows, nbytes], and return the descriptor."""
    for (row, kb), value in np.ndenumerate(raw):
        cta.smem.u8[k_major_address(start, lbo, sbo, mode, row, kb)] = value
    return matrix(start, lbo, sbo, mode)


def put_mn_major(cta, raw: np.ndarray, start: int, lbo: int, sbo: int, mode: int):
    """Write columns of bytes, uint8 [K, nbytes along M or N]."""
    for (k, mb), value in np.ndenumerate(raw):
        cta.smem.u8[mn_major_address(start, lbo, sbo, mode, mb, k)] = value
    return matrix(start, lbo, sbo, mode)


def idesc(m, n, d=1, a=0, b=0, more=0) -> int:
    return m >> 4 << 24 | n >> 3 << 17 | b << 10 | a << 7 | d << 4 | more


def integers(rng, shape, most=3) -> np.ndarray:
    return rng.integers(-most, most + 1, shape).astype(float)


def f16(x: np.ndarray) -> np.ndarray:
    """Bytes of the rows."""
    return x.astype(np.float16).view(np.uint8)


def d_place(m, n, shape, group=1, ws=False, base=0):
    """(CTA, lane, column) of D[m, n] of an M x N result (facts sheet 3.3)."""
    rows, columns = shape
    if ws and rows == 64:
        return 0, m + 64 * (n >= columns // 2), n % (columns // 2)
    if ws and rows == 32:
        return 0, m + 32 * (n // (columns // 4)), n % (columns // 4)
    if group == 2 and rows == 128:
        return m // 64, m % 64 + 64 * (n >= columns // 2), n % (columns // 2)
    if group == 2:
        return m // 128, m % 128, n
    if rows == 64 and not ws:
        return 0, m % 16 + 32 * (m // 16) + base, n
    return 0, m, n


def check_d(found, want: np.ndarray, column=0, group=1, ws=False, base=0, dtype=np.float32):
    for m, n in np.ndindex(want.shape):
        cta, lane, at = d_place(m, n, want.shape, group, ws, base)
        got = found[cta].cta.tmem[lane, column + at]
        assert got.view(dtype) == want[m, n], (m, n, got.view(dtype), want[m, n])


def put_pair(found, a_rows: np.ndarray, b_rows: np.ndarray) -> tuple[int, int]:
    """Give each CTA its share of the rows of A and B, K-major with 128-byte swizzle."""
    group = len(found)
    for warp, a, b in zip(found, np.split(a_rows, group), np.split(b_rows, group)):
        words = put_k_major(warp.cta, a, A), put_k_major(warp.cta, b, B)
    return words
