"""Tensor memory: allocation, tcgen05.ld and st, cp, shift."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from b200.chip.operations import TmemCopy
from b200.errors import Fault, Unsupported
from b200.registry import Blocked
from tests.b200.chip.async_support import Woken, address
from tests.b200.chip.tensor_support import (
    k_major_address,
    lane_run,
    matrix,
    sibling,
    warp_run,
    warps,
)

ALLOC = "tcgen05.alloc.cta_group::{}.sync.aligned.shared::cta.b32 [a] n"
DEALLOC = "tcgen05.dealloc.cta_group::{}.sync.aligned.b32 a n"
RELINQUISH = "tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned"
T = np.arange(32)


def place(warp) -> int:
    return address(warp, 64)


def alloc(warp, columns: int, group: int = 1) -> int:
    warp_run(ALLOC.format(group), warp, place(warp), columns)
    return int(warp.cta.smem.u32[(place(warp) & 0xFFFFFF) // 4])


def test_alloc_first_fit_and_reuse():
    _, (warp,) = warps(columns=0)
    assert [alloc(warp, 256), alloc(warp, 128), alloc(warp, 64)] == [0, 256, 384]
    assert warp.cta.tmem_allocations == {0: 256, 256: 128, 384: 64}
    warp_run(DEALLOC.format(1), warp, 256, 128)
    assert alloc(warp, 64) == 256
    assert alloc(warp, 32) == 320


@pytest.mark.parametrize("columns, bases", [(128, [128, 256, 384]), (256, [256, 0]), (512, [0])])
def test_alloc_beside_another_cta_of_the_sm(columns, bases):
    """The neighbour has made the same first allocation, if both fit, and may have left since."""
    _, (warp,) = warps(columns=0)
    warp.cta.shares_sm = True
    assert [alloc(warp, columns) for _ in bases] == bases


def test_a_pair_beside_another_one():
    _, (even, odd) = warps(2, columns=0)
    even.cta.shares_sm = odd.cta.shares_sm = True
    assert (alloc(even, 128, 2), alloc(odd, 128, 2)) == (128, 128)


def test_fresh_columns_hold_nan():
    _, (warp,) = warps(columns=0)
    alloc(warp, 64)
    warp.cta.tmem[:] = 0
    warp_run(DEALLOC.format(1), warp, 0, 64)
    alloc(warp, 32)
    assert np.isnan(warp.cta.tmem[:, :32].view(np.float32)).all()
    assert (warp.cta.tmem[:, 32:] == 0).all()


@pytest.mark.parametrize("columns", [0, 16, 48, 100, 1024])
def test_alloc_size_must_be_a_power_of_two(columns):
    _, (warp,) = warps(columns=0)
    with pytest.raises(Fault, match=f"{columns} columns.*power of two from 32 to 512"):
        alloc(warp, columns)


def test_allocations_must_not_grow():
    _, (warp,) = warps(columns=0)
    alloc(warp, 64)
    with pytest.raises(Fault, match="128 columns after one of 64"):
        alloc(warp, 128)


def test_no_alloc_after_relinquish():
    _, (warp,) = warps(columns=0)
    alloc(warp, 64)
    warp_run(RELINQUISH, warp)
    with pytest.raises(Fault, match="relinquish"):
        alloc(warp, 32)


def test_alloc_waits_for_a_dealloc():
    _, (warp,) = warps(columns=0)
    alloc(warp, 512)
    with pytest.raises(Blocked) as blocked:
        alloc(warp, 256)
    waiting = Woken(blocked.value.waitable)
    text = blocked.value.waitable.describe()
    assert "256 columns by CTA rank 0" in text and "[0, 512)" in text
    warp_run(DEALLOC.format(1), warp, 0, 512)
    assert waiting.times == 1
    assert alloc(warp, 256) == 0


@pytest.mark.parametrize("taddr, columns", [(0, 32), (32, 64), (1 << 16, 64)])
def test_dealloc_of_something_else(taddr, columns):
    _, (warp,) = warps(columns=0)
    alloc(warp, 64)
    with pytest.raises(Fault, match=r"no allocation.*allocated: \[0, 64\)"):
        warp_run(DEALLOC.format(1), warp, taddr, columns)


def test_a_pairs_even_cta_allocates_for_both():
    """CUTLASS #3435: the even CTA does not wait for the odd one, which waits for it."""
    _, (even, odd) = warps(2, columns=0)
    with pytest.raises(Blocked) as blocked:
        alloc(odd, 128, 2)
    waiting = Woken(blocked.value.waitable)
    assert alloc(even, 128, 2) == 0
    assert waiting.times == 1
    assert even.cta.tmem_allocations == odd.cta.tmem_allocations == {0: 128}
    assert alloc(even, 64, 2) == 128
    assert (alloc(odd, 128, 2), alloc(odd, 64, 2)) == (0, 128)
    with pytest.raises(Blocked):
        alloc(odd, 32, 2)


def test_pair_waits_until_both_have_room():
    _, (even, odd) = warps(2, columns=0)
    odd.cta.tmem_allocations[0] = 512
    for warp in (even, odd):
        with pytest.raises(Blocked) as blocked:
            alloc(warp, 64, 2)
    waiting = Woken(blocked.value.waitable)
    warp_run(DEALLOC.format(2), odd, 0, 512)
    assert waiting.times == 1
    assert alloc(even, 64, 2) == alloc(odd, 64, 2) == 0


def test_pair_sizes_must_agree():
    _, (even, odd) = warps(2, columns=0)
    alloc(even, 128, 2)
    with pytest.raises(Fault, match="64 columns in CTA rank 1 and of 128"):
        alloc(odd, 64, 2)


def test_pair_needs_a_peer():
    _, (warp,) = warps(1, columns=0)
    with pytest.raises(Fault, match="peer"):
        alloc(warp, 64, 2)


def test_sync_aligned_needs_the_whole_warp():
    _, (warp,) = warps()
    with pytest.raises(Fault, match="all 32"):
        warp_run(ALLOC.format(1), warp, place(warp), 32, mask=0xFFFF)
    with pytest.raises(Fault, match="0x00000001"):
        warp_run("tcgen05.ld.sync.aligned.32x32b.x1.b32 {1} [a]", warp, 0, mask=1)


def number(cta):
    """Fill tensor memory with lane << 16 | column."""
    cta.tmem[:] = np.arange(128, dtype=np.uint32)[:, None] << 16 | np.arange(512, dtype=np.uint32)


def test_lanes_of_an_address_are_counted_modulo_128():
    """A public matmul (gau-nernst/learn-cuda, v7), right on a B200, adds 128 in the odd CTA."""
    _, (first,) = warps()
    warp = sibling(first, 2)
    number(warp.cta)
    (got,) = warp_run("tcgen05.ld.sync.aligned.32x32b.x1.b32 {1} [a]", warp, (128 + 64) << 16 | 9)
    assert (got == (64 + T << 16 | 9)).all()


# (shape, registers of .x1, repetitions): lane and column of register i in thread t, as in the
# thread maps of PTX ISA 9.7.16.2
MAPS = {
    "32x32b": (1, lambda i, t: (t, i)),
    "16x64b": (1, lambda i, t: (8 * (t % 2) + t // 4, 2 * i + t // 2 % 2)),
    "16x128b": (2, lambda i, t: (t // 4 + 8 * (i % 2), 4 * (i // 2) + t % 4)),
    "16x256b": (4, lambda i, t: (t // 4 + 8 * (i // 2 % 2), 8 * (i // 4) + 2 * (t % 4) + i % 2)),
}
FORMS = [
    (s, n) for s, (r, _) in MAPS.items() for n in (1, 2, 4, 8, 16, 32, 64, 128) if n * r <= 128
]


@pytest.mark.parametrize("shape, repeat", FORMS)
@pytest.mark.parametrize("index, half", [(0, 0), (5, 0), (7, 16)])
def test_ld_thread_map(shape, repeat, index, half):
    _, (first,) = warps()
    warp = sibling(first, index)
    number(warp.cta)
    per, where = MAPS[shape]
    lane0 = 32 * (index % 4) + (half if shape != "32x32b" else 0)
    count = per * repeat
    text = f"tcgen05.ld.sync.aligned.{shape}.x{repeat}.b32 {{{count}}} [a]"
    got = warp_run(text, warp, lane0 << 16 | 40)
    assert len(got) == count and all(r.dtype == np.uint32 and r.shape == (32,) for r in got)
    for i in {0, 1, 2, 3, count - 1} & set(range(count)):
        for t in range(32):
            lane, column = where(i, t)
            assert int(got[i][t]) == (lane0 + lane) << 16 | 40 + column


@pytest.mark.parametrize("shape, repeat", FORMS)
def test_st_is_the_inverse_of_ld(shape, repeat):
    _, (warp,) = warps()
    number(warp.cta)
    count = MAPS[shape][0] * repeat
    rng = np.random.default_rng(repeat)
    values = tuple(rng.integers(0, 2**32, 32, dtype=np.uint32) for _ in range(count))
    warp_run(f"tcgen05.st.sync.aligned.{shape}.x{repeat}.b32 [a] {{{count}}}", warp, 8, values)
    got = warp_run(f"tcgen05.ld.sync.aligned.{shape}.x{repeat}.b32 {{{count}}} [a]", warp, 8)
    for a, b in zip(got, values):
        np.testing.assert_array_equal(a, b)
    untouched = warp.cta.tmem[32:]
    assert (untouched == np.arange(32, 128)[:, None] << 16 | np.arange(512)).all()


def test_two_halves_shape():
    _, (warp,) = warps()
    number(warp.cta)
    got = warp_run("tcgen05.ld.sync.aligned.16x32bx2.x4.b32 {4} [a] 4", warp, 16 << 16 | 3, 20)
    for i in range(4):
        want = [(16 + t % 16) << 16 | 3 + i + (20 if t >= 16 else 0) for t in range(32)]
        assert got[i].tolist() == want
    warp_run("tcgen05.st.sync.aligned.16x32bx2.x4.b32 [a] 4 {4}", warp, 200, 4, got)
    again = warp_run("tcgen05.ld.sync.aligned.16x32bx2.x4.b32 {4} [a] 4", warp, 200, 4)
    assert [r.tolist() for r in again] == [r.tolist() for r in got]


def test_pack_and_unpack_16b():
    _, (warp,) = warps()
    rng = np.random.default_rng(0)
    warp.cta.tmem[:] = rng.integers(0, 2**32, (128, 512), dtype=np.uint32)
    before = warp.cta.tmem.copy()
    got = warp_run("tcgen05.ld.sync.aligned.32x32b.x4.pack::16b.b32 {4} [a]", warp, 10)
    for i in range(4):
        low, high = before[:32, 10 + 2 * i] & 0xFFFF, before[:32, 11 + 2 * i] & 0xFFFF
        assert (got[i] == (high << 16 | low)).all()
    warp_run("tcgen05.st.sync.aligned.32x32b.x4.unpack::16b.b32 [a] {4}", warp, 10, got)
    assert (warp.cta.tmem[:32, 10:18] == before[:32, 10:18] & 0xFFFF).all()
    assert (warp.cta.tmem[:, 18:] == before[:, 18:]).all()


def test_a_scalar_register_and_a_uniform_value():
    _, (warp,) = warps()
    warp_run("tcgen05.st.sync.aligned.32x32b.x1.b32 [a] r", warp, 5, 77)
    got = warp_run("tcgen05.ld.sync.aligned.32x32b.x1.b32 r [a]", warp, 5)
    assert got.tolist() == [77] * 32


def test_the_rows_of_another_warp_are_taken_within_the_own_quarter():
    """The lane field of an address is that of lane 0 in NVIDIA's 1cta_mma_a_from_tmem.py."""
    machine, (first,) = warps()
    warp = sibling(first, 6)
    values = tuple(np.arange(32, dtype=np.uint32) + 100 * i for i in range(8))
    warp_run("tcgen05.st.sync.aligned.32x32b.x8.b32 [a] {8}", warp, 0x00400010, values)
    assert not hasattr(machine, "undefined_uses")
    got = warp_run("tcgen05.ld.sync.aligned.32x32b.x8.b32 {8} [a]", warp, 0x00200010)
    assert np.array_equal(got, values)
    (said,) = machine.undefined_uses
    for part in ("lane 32, column 16", "lanes 32 to 63", "warp 6", "only lanes 64 to 95"):
        assert part in said, said
    warp_run("tcgen05.st.sync.aligned.16x64b.x1.b32 [a] {1}", first, 48 << 16, (values[0],))
    assert "only lanes 0 to 31" in machine.undefined_uses[-1]
    assert np.array_equal(np.sort(first.cta.tmem[16:32, :2].reshape(-1)), np.arange(32))


def test_misaligned_lane():
    _, (warp,) = warps()
    with pytest.raises(Fault, match="lane 8 is not a multiple of 16"):
        warp_run("tcgen05.ld.sync.aligned.16x64b.x1.b32 {1} [a]", warp, 8 << 16)
    with pytest.raises(Fault, match="lane 16 is not a multiple of 32"):
        warp_run("tcgen05.ld.sync.aligned.32x32b.x1.b32 {1} [a]", warp, 16 << 16)


def test_outside_the_allocation():
    _, (warp,) = warps(columns=64)
    warp_run("tcgen05.ld.sync.aligned.32x32b.x32.b32 {32} [a]", warp, 32)
    with pytest.raises(Fault, match=r"columns \[33, 65\).*\[0, 64\)"):
        warp_run("tcgen05.ld.sync.aligned.32x32b.x32.b32 {32} [a]", warp, 33)
    with pytest.raises(Fault, match=r"\[48, 80\)"):
        warp_run("tcgen05.ld.sync.aligned.32x32b.x16.pack::16b.b32 {16} [a]", warp, 48)
    with pytest.raises(Fault, match=r"\[63, 67\)"):
        lane_run("tcgen05.cp.cta_group::1.32x128b.warpx4 [a] s", warp, 63, matrix(0x400, mode=0))


def test_address_must_be_the_same_in_all_lanes():
    _, (warp,) = warps()
    number(warp.cta)
    same = np.full(32, 7, np.uint32)
    got = warp_run("tcgen05.ld.sync.aligned.32x32b.x1.b32 {1} [a]", warp, same)
    assert int(got[0][3]) == 3 << 16 | 7
    same[9] = 8
    with pytest.raises(Fault, match="differs between lanes.*0x7 and 0x8"):
        warp_run("tcgen05.ld.sync.aligned.32x32b.x1.b32 {1} [a]", warp, same)


def test_an_address_a_lane_of_its_own_row():
    """What the lanes get is the same with lane 0's address in all; another order is refused."""
    _, (warp,) = warps()
    number(warp.cta)
    told = []
    warp.machine.undefined = lambda what, missing, ins=None: told.append(what)
    own = 7 + (np.arange(32, dtype=np.uint32) << 16)
    got = warp_run("tcgen05.ld.sync.aligned.32x32b.x1.b32 {1} [a]", warp, own)
    assert [int(x) for x in got[0]] == [lane << 16 | 7 for lane in range(32)]
    assert len(told) == 1 and "has an address for each lane, 0x00000007, 0x00010007" in told[0]
    with pytest.raises(Fault, match="differs between lanes"):
        warp_run("tcgen05.ld.sync.aligned.32x32b.x1.b32 {1} [a]", warp, own[::-1].copy())


def test_wrong_number_of_registers_and_missing_forms():
    _, (warp,) = warps()
    with pytest.raises(Fault, match="with 3 registers.*needs 4"):
        warp_run("tcgen05.ld.sync.aligned.32x32b.x4.b32 {3} [a]", warp, 0)
    with pytest.raises(Unsupported, match="sm_100a does not have"):
        warp_run("tcgen05.ld.red.sync.aligned.32x32b.x4.min.f32 {4} r [a]", warp, 0)
    with pytest.raises(Unsupported):
        lane_run("tcgen05.cp.cta_group::1.64x128b [a] s", warp, 0, 0)


def test_ordering_instructions_do_nothing():
    _, (warp,) = warps()
    for name in ("wait::ld.sync.aligned", "wait::st.sync.aligned", "fence::before_thread_sync",
                 "fence::after_thread_sync"):  # fmt: skip
        assert warp_run(f"tcgen05.{name}", warp) is None


# source row -> lanes, for each form (facts sheet 4.2, PTX ISA 9.7.16.9)
COPIES = {
    "128x256b": (128, 32, lambda r: [r]),
    "128x128b": (128, 16, lambda r: [r]),
    "64x128b.warpx2::02_13": (64, 16, lambda r: [r, r + 64]),
    "64x128b.warpx2::01_23": (64, 16, lambda r: [r, r + 32] if r < 32 else [r + 32, r + 64]),
    "32x128b.warpx4": (32, 16, lambda r: [r, r + 32, r + 64, r + 96]),
    "4x256b": (4, 32, lambda r: [32 * r + 3]),
}


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(sorted(COPIES)),
    st.sampled_from([(0, 128), (0, 256), (2, 1024), (4, 512), (6, 256)]),
    st.integers(0, 40), st.integers(0, 300), st.integers(1, 2),
)  # fmt: skip
def test_cp(form, layout, start, column, group):
    mode, sbo = layout
    rows, nbytes, where = COPIES[form]
    start, lbo = 0x1000 + 16 * start, 0x4000
    machine, found = warps(group)
    rng = np.random.default_rng(column)
    for warp in found:
        warp.cta.smem.u8[:] = rng.integers(0, 256, warp.cta.smem.size)
        warp.cta.tmem[:] = 0
    lane0 = 3 << 16 if form == "4x256b" else 0
    lane_run(f"tcgen05.cp.cta_group::{group}.{form} [a] s", found[-1], lane0 | column,
             matrix(start, lbo, sbo, mode))  # fmt: skip
    issued = machine.issued[-1]
    assert isinstance(issued, TmemCopy) and len(issued.members) == group
    assert (issued.shape.rows, issued.shape.nbytes, issued.column) == (rows, nbytes, column)
    for warp in found:
        want = np.zeros((128, 2048), np.uint8)
        for r in range(rows):
            source = [
                warp.cta.smem.u8[k_major_address(start, lbo, sbo, mode, r, kb)]
                for kb in range(nbytes)
            ]
            for lane in where(r):
                want[lane, 4 * column : 4 * column + nbytes] = source
        np.testing.assert_array_equal(warp.cta.tmem.view(np.uint8), want)


def test_cp_of_a_scale_factor_atom():
    """128 x 4 scale factors, row m at byte (m % 32) * 16 + m // 32 * 4: lane m % 32 of every
    partition, column m // 32."""
    _, (warp,) = warps()
    codes = np.random.default_rng(0).integers(0, 256, (128, 4), dtype=np.uint8)
    for (m, j), code in np.ndenumerate(codes):
        warp.cta.smem.u8[0x800 + m % 32 * 16 + m // 32 * 4 + j] = code
    lane_run("tcgen05.cp.cta_group::1.32x128b.warpx4 [a] s", warp, 100, 0x0000400800010000 | 0x80)
    cells = warp.cta.tmem.view(np.uint8).reshape(128, 512, 4)
    for m in range(128):
        for q in range(4):
            assert (cells[m % 32 + 32 * q, 100 + m // 32] == codes[m]).all()


@pytest.mark.parametrize(
    "form, width, shift", [("b8x16.b4x16_p64", 4, 2), ("b8x16.b6x16_p32", 6, 1)]
)
def test_cp_with_decompression(form, width, shift):
    _, (warp,) = warps()
    rng = np.random.default_rng(width)
    codes = rng.integers(0, 1 << width, (128, 16))
    for r, row in enumerate(codes):
        packed = sum(int(c) << width * i for i, c in enumerate(row))
        raw = packed.to_bytes(2 * width, "little") + b"\xee" * (16 - 2 * width)
        at = 0x1000 + r // 8 * 128 + r % 8 * 16
        warp.cta.smem.u8[at : at + 16] = np.frombuffer(raw, np.uint8)
    word = matrix(0x1000, 16, 128, 0)
    lane_run(f"tcgen05.cp.cta_group::1.128x128b.{form} [a] s", warp, 8, word)
    np.testing.assert_array_equal(warp.cta.tmem[:, 8:12].copy().view(np.uint8), codes << shift)


def test_cp_needs_lane_zero():
    _, (warp,) = warps()
    with pytest.raises(Fault, match="lane 32, must be 0"):
        lane_run("tcgen05.cp.cta_group::1.128x128b [a] s", warp, 32 << 16, matrix(0x1000))


def test_shift_down():
    _, found = warps(2)
    for warp in found:
        number(warp.cta)
    lane_run("tcgen05.shift.cta_group::2.down [a]", found[0], 20)
    for warp in found:
        for lane in range(128):
            source = lane if lane % 32 == 31 else lane + 1
            assert (warp.cta.tmem[lane, 20:28] == (source << 16 | np.arange(20, 28))).all()
        assert warp.cta.tmem[0, 19] == 19 and warp.cta.tmem[0, 28] == 28
    with pytest.raises(Fault, match="lane 4 is not a multiple of 32"):
        lane_run("tcgen05.shift.cta_group::1.down [a]", found[0], 4 << 16)
