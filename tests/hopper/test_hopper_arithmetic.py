"""The Hopper runner's tensor core (device/fp4.cu), built for the host, bit by bit.

The emulator's is held against exact fractions in its own tests; the two share no code.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess

import numpy as np
import pytest

from b200.chip.tensor import tensor_core
from hopper.toolchain import DEVICE

SHIM = r"""
#include <cfenv>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
typedef unsigned int u32;
typedef unsigned long long u64;
#define INLINE static inline
template <class T> T max(T a, T b) { return a > b ? a : b; }
template <class T> T min(T a, T b) { return a < b ? a : b; }
static u32 permute(u32 x, u32 y, u32 s) {
    u32 r = 0;
    u64 all = (u64)y << 32 | x;
    for (int i = 0; i < 4; i++) {
        u32 n = s >> 4 * i & 15, b = all >> 8 * (n & 7) & 0xFF;
        r |= (n & 8 ? (b & 0x80 ? 0xFFu : 0u) : b) << 8 * i;
    }
    return r;
}
static u32 __vsub4(u32 a, u32 b) {
    u32 r = 0;
    for (int i = 0; i < 4; i++) r |= (((a >> 8 * i) - (b >> 8 * i)) & 0xFF) << 8 * i;
    return r;
}
static int __dp4a(int a, int b, int c) {
    for (int i = 0; i < 4; i++) c += (int)(int8_t)(a >> 8 * i) * (int8_t)(b >> 8 * i);
    return c;
}
static double __longlong_as_double(long long x) { double d; memcpy(&d, &x, 8); return d; }
static u32 __float_as_uint(float f) { u32 u; memcpy(&u, &f, 4); return u; }
static float __double2float_rz(double x) {
    float f = (float)x;
    if (fabs((double)f) > fabs(x)) f = nextafterf(f, 0.0f);
    return f;
}
"""
ENTRY = r"""
extern "C" void multiply_all(int m, int n, const u32* a, const u32* b, const u32* sa, const u32* sb, u32* c,
                             u32 ue8m0, u32 block32, u32 id_a, u32 id_b, u32 negate) {
    for (int j = 0; j < n; j++) {
        ColumnB column;
        unpack_column(&column, b + 8 * j, codes_of(sb[j], id_b, block32), ue8m0, negate);
        for (int i = 0; i < m; i++) {
            RowA row;
            unpack_row(&row, a + 8 * i, codes_of(sa[i], id_a, block32), ue8m0);
            c[i * n + j] = multiply(row, column, c[i * n + j]);
        }
    }
}
"""
M, N = 32, 24


@pytest.fixture(scope="module")
def device(tmp_path_factory):
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    folder = tmp_path_factory.mktemp("fp4")
    (folder / "fp4.cpp").write_text(SHIM + (DEVICE / "fp4.cu").read_text() + ENTRY)
    command = [compiler, "-O1", "-shared", "-fPIC", "-Wno-unknown-pragmas", "-o"]
    subprocess.run([*command, folder / "fp4.so", folder / "fp4.cpp"], check=True)
    return ctypes.CDLL(str(folder / "fp4.so")).multiply_all


def run(device, a, b, sfa, sfb, cells, ue8m0=0, block32=0, ids=(0, 0), negate=0):
    """Cells [M, N]; a, b: packed bytes [rows, 32]; sfa, sfb: the cells of the scales [rows]."""
    out = np.ascontiguousarray(cells)
    arrays = [
        np.ascontiguousarray(x).ctypes.data_as(ctypes.c_void_p) for x in (a, b, sfa, sfb, out)
    ]
    device(len(a), len(b), *arrays, ue8m0, block32, *ids, negate)
    return out


def drawn(rng, low, high):
    """Codes of A and B, and scale codes from [low, high) as cells."""
    a, b = (rng.integers(0, 256, (rows, 32), np.uint8) for rows in (M, N))
    sfa, sfb = (rng.integers(low, high, (rows, 4)).astype(np.uint8) for rows in (M, N))
    return a, b, sfa, sfb


def accumulators(rng, spread):
    """fp32 of all magnitudes up to 2^spread, zeros among them."""
    c = rng.normal(size=(M, N)) * 2.0 ** rng.integers(-40, spread, (M, N))
    c[rng.random((M, N)) < 0.1] = 0
    return c.astype(np.float32).view(np.uint32)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("low, high", [(0, 127), (0, 3), (56, 72), (0, 256)])
def test_ue4m3(device, low, high, seed):
    """(0, 256) has the sign bit, which is ignored, and NaN."""
    rng = np.random.default_rng(seed)
    a, b, sfa, sfb = drawn(rng, low, high)
    cells = accumulators(rng, 30)
    want = tensor_core.block_scaled_fp4(a, sfa, b, sfb, cells.copy(), "ue4m3").copy()
    got = run(device, a, b, sfa.view(np.uint32), sfb.view(np.uint32), cells)
    assert np.array_equal(got, want)


@pytest.mark.parametrize("low, high", [(0, 256), (120, 135), (0, 40), (220, 255)])
@pytest.mark.parametrize("ids", [(0, 0), (2, 0), (0, 2), (2, 2)])
def test_ue8m0_blocks_of_32(device, low, high, ids):
    """From a cell, the bytes id and id + 1 are the scales of two blocks of 32."""
    rng = np.random.default_rng(low)
    a, b, sfa, sfb = drawn(rng, low, high)
    cells = accumulators(rng, 100)
    two_a, two_b = (sf[:, i : i + 2].repeat(2, 1) for sf, i in zip((sfa, sfb), ids))
    want = tensor_core.block_scaled_fp4(a, two_a, b, two_b, cells.copy(), "ue8m0").copy()
    got = run(device, a, b, sfa.view(np.uint32), sfb.view(np.uint32), cells, 1, 1, ids)
    assert np.array_equal(got, want)


def test_negated(device):
    rng = np.random.default_rng(7)
    a, b, sfa, sfb = drawn(rng, 0, 127)
    cells = accumulators(rng, 20)
    want = tensor_core.block_scaled_fp4(a, sfa, b, sfb, cells.copy(), "ue4m3", negate=True).copy()
    got = run(device, a, b, sfa.view(np.uint32), sfb.view(np.uint32), cells, negate=1)
    assert np.array_equal(got, want)


def test_special_accumulators(device):
    """NaN, infinities, the largest numbers, subnormals and negative zero."""
    rng = np.random.default_rng(3)
    a, b, sfa, sfb = drawn(rng, 0, 127)
    special = [
        0x7F800000,
        0xFF800000,
        0x7FC00001,
        0x7F7FFFFF,
        0xFF7FFFFF,
        1,
        0x80000001,
        0x80000000,
    ]
    cells = rng.choice(np.array(special, np.uint32), (M, N))
    want = tensor_core.block_scaled_fp4(a, sfa, b, sfb, cells.copy(), "ue4m3").copy()
    got = run(device, a, b, sfa.view(np.uint32), sfb.view(np.uint32), cells)
    assert np.array_equal(got, want)


def test_a_chain_of_steps_stays_equal(device):
    """32 K-steps, each on the result of the one before."""
    rng = np.random.default_rng(11)
    cells = np.zeros((M, N), np.uint32)
    ours = cells.copy()
    for _ in range(32):
        a, b, sfa, sfb = drawn(rng, 0, 127)
        cells = tensor_core.block_scaled_fp4(a, sfa, b, sfb, cells, "ue4m3").copy()
        ours = run(device, a, b, sfa.view(np.uint32), sfb.view(np.uint32), ours)
    assert np.array_equal(ours, cells)
    assert np.unique(cells).size > M * N // 2
