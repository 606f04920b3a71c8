"""Matrix and instruction descriptors of tcgen05 against the formulas of the PTX ISA."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from b200.chip.tensor import descriptors
from b200.chip.tensor.instruction_descriptor import decode, legal_shapes
from b200.errors import Fault, Unsupported
from tests.b200.chip.tensor_support import SPANS, k_major_address, matrix, mn_major_address, warps

OPERAND = 0x4000404000010000  # as compiled for fp4 and fp8 tiles: SW128, K-major
SCALES = 0x0000400800010000  # as compiled for tcgen05.cp of scale factors


def test_decode_compiled_descriptors():
    d = descriptors.decode_matrix(OPERAND | 0x8400 >> 4)
    assert (d.start, d.lbo, d.sbo, d.base_offset, d.mode) == (0x8400, 16, 1024, 0, 2)
    d = descriptors.decode_matrix(SCALES | 0x30400 >> 4)
    assert (d.start, d.lbo, d.sbo, d.mode) == (0x30400, 16, 128, 0)


def test_version_0_means_what_version_1_means():
    """Triton 3.5.1 writes 0 for Blackwell, too."""
    d = descriptors.decode_matrix(OPERAND ^ 1 << 46 | 0x8400 >> 4)
    assert d == replace(descriptors.decode_matrix(OPERAND | 0x8400 >> 4), version=0)


@pytest.mark.parametrize(
    "word, names",
    [
        (OPERAND | 2 << 46, ("version", "46-48", "is 3")),
        (OPERAND ^ 3 << 46, ("version", "is 2")),
        (OPERAND | 1 << 14, ("reserved bits 14-15",)),
        (OPERAND | 1 << 30, ("reserved bits 30-31",)),
        (OPERAND | 5 << 53, ("reserved bits 53-60", "0x5")),
        (OPERAND | 1 << 61, ("swizzle mode", "is 3")),
        (OPERAND | 3 << 61, ("swizzle mode", "is 3")),
        (OPERAND + (3 << 61), ("swizzle mode", "is 5")),
        (OPERAND + (5 << 61), ("swizzle mode", "is 7")),
    ],
)
def test_illegal_matrix_descriptors(word, names):
    with pytest.raises(Fault) as fault:
        descriptors.decode_matrix(word)
    assert all(name in str(fault.value) for name in names), str(fault.value)


def test_absolute_leading_offset_is_unsupported():
    with pytest.raises(Unsupported, match="bit 52"):
        descriptors.decode_matrix(OPERAND | 1 << 52)


def read(cta, word: int, tile) -> np.ndarray:
    d = descriptors.decode_matrix(word)
    descriptors.check(cta, d, tile, "operand A")
    return cta.smem.u128.take(descriptors.chunks_of(d, tile)).view(np.uint8)


sixteens = st.integers(0, 127).map(lambda i: 16 * i)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(sorted(SPANS)), sixteens, st.sampled_from([32, 128, 256, 512, 1024, 1040]),
    sixteens, st.sampled_from([8, 32, 40]), st.sampled_from([16, 32]), st.integers(0, 7),
)  # fmt: skip
def test_k_major_bytes(mode, start, sbo, lbo, rows, nbytes, base_offset):
    _, (warp,) = warps()
    rng = np.random.default_rng(start + sbo)
    warp.cta.smem.u8[:] = rng.integers(0, 256, warp.cta.smem.size)
    start += 0x2000
    bo = 0 if mode == 1 else base_offset
    word = matrix(start, lbo, sbo, mode, bo)
    d = descriptors.decode_matrix(word)
    got = read(warp.cta, word, descriptors.k_major(d, rows, nbytes))
    for row, kb in np.ndindex(rows, nbytes):
        at = k_major_address(start, lbo, sbo, mode, row, kb, bo)
        assert got[row, kb] == warp.cta.smem.u8[at], (row, kb)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(sorted(SPANS)), sixteens, st.sampled_from([128, 512, 1024, 2048]),
    st.sampled_from([128, 1024, 4096]), st.sampled_from([16, 64, 128, 256]), st.sampled_from([8, 16, 32]),
)  # fmt: skip
def test_mn_major_bytes(mode, start, sbo, lbo, nbytes, ks):
    _, (warp,) = warps()
    rng = np.random.default_rng(start + sbo)
    warp.cta.smem.u8[:] = rng.integers(0, 256, warp.cta.smem.size)
    start += 0x2000
    word = matrix(start, lbo, sbo, mode)
    d = descriptors.decode_matrix(word)
    got = read(warp.cta, word, descriptors.mn_major(d, nbytes, ks))
    for k, mb in np.ndindex(ks, nbytes):
        at = mn_major_address(start, lbo, sbo, mode, mb, k)
        assert got[k, mb] == warp.cta.smem.u8[at], (k, mb)


def test_a_k_step_is_an_addition_to_the_start():
    """The second 32 bytes of each 128-byte row of a swizzled tile: start + 32, nothing else."""
    _, (warp,) = warps()
    warp.cta.smem.u8[:] = np.arange(warp.cta.smem.size) % 251
    d = descriptors.decode_matrix(matrix(0x2000))
    whole = read(warp.cta, matrix(0x2000), descriptors.k_major(d, 128, 128))
    for step in range(4):
        start = matrix(0x2000) + 2 * step
        d = descriptors.decode_matrix(start)
        got = read(warp.cta, start, descriptors.k_major(d, 128, 32))
        np.testing.assert_array_equal(got, whole[:, 32 * step : 32 * step + 32])


def test_tile_outside_shared_memory():
    _, (warp,) = warps(smem=16 << 10)
    end = warp.cta.smem_end
    d = descriptors.decode_matrix(matrix(end - 1024))
    with pytest.raises(Fault, match=f"operand B.*outside.*{end:#x}"):
        descriptors.check(warp.cta, d, descriptors.k_major(d, 128, 32), "operand B")
    d = descriptors.decode_matrix(matrix(0x200))
    with pytest.raises(Fault, match="outside"):
        descriptors.check(warp.cta, d, descriptors.k_major(d, 8, 32), "operand B")


@pytest.mark.parametrize("lbo, sbo, fits", [(128, 2048, True), (2048, 4096, False)])
def test_offsets_that_are_exchanged_are_told(lbo, sbo, fits):
    """128 rows x 128 bytes without a swizzle: 16 groups of 8 rows. By the formula of the PTX ISA
    the last byte is at 15 sbo + 7 lbo + 128; exchanged 15 lbo + 7 sbo + 128 has to fit 16 KB.
    """
    _, (warp,) = warps(smem=16 << 10)
    d = descriptors.MatrixDescriptor(descriptors.PERIOD, lbo, sbo, 0, 0)
    assert 15 * sbo + 7 * lbo + 128 > 16 << 10
    assert (15 * lbo + 7 * sbo + 128 <= 16 << 10) == fits
    with pytest.raises(Fault, match=f"leading byte offset {lbo}, stride byte offset {sbo}") as told:
        descriptors.check(warp.cta, d, descriptors.k_major(d, 128, 128), "operand A")
    assert ("it fits with the two offsets exchanged" in str(told.value)) == fits


@pytest.mark.parametrize(
    "idesc, kind, group, vector, want",
    [
        (0x08200480, "mxf4nvf4", 1, 16, (128, 128, "e2m1", "ue4m3")),
        (0x10400480, "mxf4nvf4", 2, 16, (256, 256, "e2m1", "ue4m3")),
        (0x08A00480, "mxf4nvf4", 1, 32, (128, 128, "e2m1", "ue8m0")),
        (0x08A00000, "mxf8f6f4", 1, 32, (128, 128, "e4m3", "ue8m0")),
    ],
)
def test_decode_compiled_instruction_descriptors(idesc, kind, group, vector, want):
    d = decode(idesc, kind, group, False, vector)
    assert (d.m, d.n, d.a_type, d.sf_type) == want
    assert not (d.negate_a or d.negate_b or d.a_mn_major or d.b_mn_major)


def test_scale_factor_ids():
    d = decode(0x08A00000 | 2 << 29 | 3 << 4, "mxf8f6f4", 1, False, 32)
    assert (d.sfa_id, d.sfb_id) == (2, 3)
    d = decode(0x08A00480 | 2 << 29, "mxf4nvf4", 1, False, 32)
    assert (d.sfa_id, d.sfb_id) == (2, 0)


def plain(m=128, n=128, d=1, a=0, b=0, more=0) -> int:
    return m >> 4 << 24 | n >> 3 << 17 | b << 10 | a << 7 | d << 4 | more


def test_plain_fields():
    d = decode(plain(64, 24, 0, 1, 0, 1 << 13 | 1 << 16), "f16", 1)
    assert (d.m, d.n, d.a_type, d.b_type, d.d_type) == (64, 24, "bf16", "f16", "f16")
    assert (d.negate_a, d.negate_b, d.a_mn_major, d.b_mn_major) == (True, False, False, True)
    types = [decode(plain(a=a, b=5), "f8f6f4", 1).a_type for a in (0, 1, 3, 4, 5)]
    assert types == ["e4m3", "e5m2", "e2m3", "e3m2", "e2m1"]
    d = decode(plain(d=2, a=1, more=8), "i8", 1)
    assert (d.a_type, d.b_type, d.d_type, d.saturate) == ("s8", "u8", "s32", True)


@pytest.mark.parametrize(
    "idesc, kind, group, ws, text",
    [
        (plain(m=32), "f16", 1, False, "M is 32"),
        (plain(m=64), "f16", 2, False, "M is 64"),
        (plain(m=256), "f16", 1, False, "M is 256"),
        (plain(n=24), "f16", 2, False, "N is 24"),
        (plain(n=0), "f16", 1, False, "N is 0"),
        (plain(n=40, d=2), "i8", 1, False, "N is 40"),
        (plain(n=32), "f16", 1, True, "N is 32"),
        (plain(a=3), "f16", 1, False, "A type (bits 7-9) is 3"),
        (plain(b=2), "f8f6f4", 1, False, "B type (from bit 10) is 2"),
        (plain(d=2), "f16", 1, False, "D type (bits 4-5) is 2"),
        (plain(more=8), "f16", 1, False, "saturate"),
        (plain(more=1 << 6), "f16", 1, False, "reserved bit 6"),
        (plain(more=1 << 23), "f16", 1, False, "reserved bit 23"),
        (plain(more=1), "f16", 1, False, "sparsity selector"),
        (plain(d=2, more=1 << 13), "i8", 1, False, "negate"),
        (plain(n=8, b=1, more=1 << 16), "f8f6f4", 1, False, "multiple of 16"),
    ],
)
def test_illegal_instruction_descriptors(idesc, kind, group, ws, text):
    with pytest.raises(Fault) as fault:
        decode(idesc, kind, group, ws)
    assert text in str(fault.value) and kind in str(fault.value), str(fault.value)


@pytest.mark.parametrize(
    "idesc, kind, vector, text",
    [
        (0x04200480, "mxf4nvf4", 16, "reserved bit 26"),
        (0x08200480, "mxf4", 32, "scale type (bit 23)"),
        (0x08200480, "mxf4nvf4", 32, "scale type (bit 23)"),
        (0x08200000, "mxf8f6f4", 32, "scale type (bit 23)"),
        (0x28200480, "mxf4nvf4", 16, "SFA_ID"),
        (0x08A00490, "mxf4", 32, "SFB_ID (bits 4-5) is 1"),
        (0x08208480, "mxf4nvf4", 16, "transpose"),
        (0x08200400, "mxf4nvf4", 16, "A type"),
    ],
)
def test_illegal_block_scaled_descriptors(idesc, kind, vector, text):
    with pytest.raises(Fault) as fault:
        decode(idesc, kind, 1, False, vector)
    assert text in str(fault.value), str(fault.value)


@pytest.mark.parametrize("n", [64, 80, 96, 112, 128, 256])
def test_integer_pairs_that_a_b200_has_run(n):
    """N of the S8 rows with cta_group::2 in SemiAnalysis' UMMA tables."""
    assert decode(plain(m=256, n=n, d=2), "i8", 2).n == n


def test_unsupported_instruction_descriptors():
    with pytest.raises(Unsupported, match="sparse"):
        decode(plain(more=4), "f16", 1)
    with pytest.raises(Unsupported, match="K = 96"):
        decode(0x88200480, "mxf4nvf4", 1, False, 16)


def test_legal_shapes_of_the_manual():
    assert legal_shapes("f16", 1) == ((64, 128), tuple(range(8, 257, 8)))
    assert legal_shapes("mxf4nvf4", 2) == ((128, 256), tuple(range(16, 257, 16)))
    assert legal_shapes("i8", 1)[1][:6] == (8, 16, 24, 32, 48, 64)
    assert {32, 64, 96, 256} <= set(legal_shapes("i8", 2)[1])
    assert not {8, 16, 24, 40} & set(legal_shapes("i8", 2)[1])
    assert legal_shapes("tf32", 1, True) == ((32, 64, 128), (64, 128, 256))
