"""TMA tensor copies against an oracle that moves one element at a time."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from b200.chip.copies.tensormap import TensorMap
from b200.chip.operations import TmaLoad, TmaPrefetch, TmaReduce, TmaStore
from b200.errors import Fault, Unsupported
from b200.hardware import SMEM_BASE
from b200.registry import FULL, Blocked
from tests.b200.chip.async_support import Woken, run
from tests.b200.chip.tma_support import (
    BITS,
    LOAD,
    STORE,
    Bench,
    boxes,
    elements,
    oracle_load,
    oracle_store,
    swizzled,
)


@settings(max_examples=120, deadline=None)
@given(boxes())
def test_load(case):
    t, coords, dst = case
    bench = Bench()
    t = replace(t, address=bench.base)
    expected = oracle_load(t, bench.tensor, coords, dst, bench.warp.cta.smem.u8)
    bench.load(t, coords, dst)
    np.testing.assert_array_equal(
        bench.warp.cta.smem.u8, expected_with_padding(t, coords, dst, expected)
    )
    counted = np.prod([-(-b // s) for b, s in zip(t.box[1:], t.steps[1:])], initial=1)
    assert bench.tx() == counted * t.box[0] * BITS[t.format] // 8


def expected_with_padding(t, coords, dst, expected):
    """The padding of sub-byte types is written as zeros (a reading we chose)."""
    if t.format in (12, 13):
        pieces = 16 * BITS[t.format] // math.gcd(BITS[t.format], 8)  # of a group
        for _, at, _ in list(elements(t, coords, dst))[::pieces]:
            for byte in range(2 * BITS[t.format], 16):
                expected[at // 8 ^ byte] = 0  # the swizzle is an xor of the group's address
    return expected


@settings(max_examples=100, deadline=None)
@given(boxes(store=True))
def test_store(case):
    t, coords, src = case
    bench = Bench()
    t = replace(t, address=bench.base)
    expected = oracle_store(t, bench.tensor, coords, src, bench.warp.cta.smem.u8)
    bench.store(t, coords, src)
    np.testing.assert_array_equal(bench.tensor, expected)


@pytest.mark.parametrize("coords", [(0, 0), (64, 3), (-32, 250)])
def test_a_whole_fp4_operand_tile(coords):
    """128 rows of 256 e2m1 elements with the 128B swizzle: the tile of a block-scaled GEMM."""
    bench = Bench()
    t = TensorMap(bench.base, 11, (512, 256), (256,), (256, 128), (1, 1), swizzle=3)
    expected = oracle_load(t, bench.tensor, coords, 0x800, bench.warp.cta.smem.u8)
    bench.load(t, coords, 0x800)
    np.testing.assert_array_equal(bench.warp.cta.smem.u8, expected)
    assert bench.tx() == 128 * 128
    issued = bench.machine.issued[-1]
    assert isinstance(issued, TmaLoad) and (issued.access.tx_bytes, issued.access.rows) == (
        16384,
        128,
    )


def test_tf32_rounding():
    bench = Bench(256)
    values = [
        0x3F800000,
        0x3F801000,
        0x3F803000,
        0x3F801001,
        0x3F800FFF,
        0x7F7FFFFF,
        0xFF800000,
        0x7F800001,
    ]
    # Nearest even at 13 dropped bits: ties, above and below a tie, overflow.
    expected = [
        0x3F800000,
        0x3F800000,
        0x3F804000,
        0x3F802000,
        0x3F800000,
        0x7F800000,
        0xFF800000,
        0x7FFFE000,
    ]
    bench.tensor[:32] = np.array(values, np.uint32).view(np.uint8)
    bench.load(TensorMap(bench.base, 7, (8,), (), (8,), (1,), tf32=True), (0,), 0x800)
    assert bench.warp.cta.smem.u32[0x200:0x208].tolist() == expected


def test_gather4_and_scatter4():
    bench = Bench()
    t = TensorMap(bench.base, 1, (100, 40), (208,), (64, 1), (1, 1), swizzle=3)
    rows = (7, -1, 39, 7)
    text = "cp.async.bulk.tensor.2d.shared::cta.global.tile::gather4.mbarrier::complete_tx::bytes"
    expected = bench.warp.cta.smem.u8.copy()
    for i, row in enumerate(rows):
        expected = oracle_load(t, bench.tensor, (56, row), 0x880 + 128 * i, expected)
    bench.load(t, (56, *rows), 0x880, text)
    np.testing.assert_array_equal(bench.warp.cta.smem.u8, expected)
    assert bench.tx() == 4 * 128

    rows = (3, 0, 40, 17)
    after = bench.tensor.copy()
    for i, row in enumerate(rows):
        after = oracle_store(t, after, (8, row), 0x900 + 128 * i, bench.warp.cta.smem.u8)
    bench.store(
        t, (8, *rows), 0x900, "cp.async.bulk.tensor.2d.global.shared::cta.tile::scatter4.bulk_group"
    )
    np.testing.assert_array_equal(bench.tensor, after)
    with pytest.raises(Fault, match="box_dim 1"):
        bench.load(replace(t, box=(64, 2)), (56, *rows), 0x880, text)
    with pytest.raises(Fault, match="2 coordinates, must be 5"):
        bench.load(t, (56, 1), 0x880, text)


CLUSTER_LOAD = "cp.async.bulk.tensor.1d.shared::cluster.global.mbarrier::complete_tx::bytes"


def signalled(bench):
    return [bench.tx(rank) for rank in range(len(bench.warps))]


def landed(bench, at=0x800, nbytes=64):
    return [
        np.array_equal(w.cta.smem.u8[at : at + nbytes], bench.tensor[:nbytes]) for w in bench.warps
    ]


ROW = TensorMap(0, 0, (64,), (), (64,), (1,))


def test_destination_in_another_cta():
    bench = Bench(ctas=4)
    t = replace(ROW, address=bench.base)
    bench.load(t, (0,), 2 << 24 | 0x800, CLUSTER_LOAD, mbar=2 << 24 | SMEM_BASE)
    assert signalled(bench) == [0, 0, 64, 0]
    assert landed(bench) == [False, False, True, False]
    with pytest.raises(Fault, match="must be in the same CTA"):
        bench.load(t, (0,), 2 << 24 | 0x800, CLUSTER_LOAD, mbar=1 << 24 | SMEM_BASE)


def test_cta_pair_signals_the_even_cta():
    bench = Bench(ctas=4)
    t = replace(ROW, address=bench.base)
    text = CLUSTER_LOAD + ".L2::cache_hint.cta_group::2"
    mbar = (3 << 24 | SMEM_BASE) & 0xFEFFFFFF
    bench.load(t, (0,), 3 << 24 | 0x800, text, 0, warp=bench.warps[3], mbar=mbar)
    assert signalled(bench) == [0, 0, 64, 0]
    assert landed(bench) == [False, False, False, True]
    with pytest.raises(Fault, match="must be in the same CTA pair"):
        bench.load(t, (0,), 3 << 24 | 0x800, text, 0, warp=bench.warps[3], mbar=SMEM_BASE)
    own = LOAD.format(1) + ".cta_group::2"
    bench.load(t, (0,), 1 << 24 | 0x800, own, warp=bench.warps[1], mbar=SMEM_BASE)
    assert signalled(bench) == [64, 0, 64, 0]


def test_multicast():
    bench = Bench(ctas=4)
    t = replace(ROW, address=bench.base)
    text = CLUSTER_LOAD + ".multicast::cluster"
    bench.load(t, (0,), 0x800, text, 0b1011)
    assert signalled(bench) == [64, 64, 0, 64]
    assert landed(bench) == [True, True, False, True]
    pair = Bench(ctas=4)
    t = replace(ROW, address=pair.base)
    pair.load(t, (0,), 0x800, text + ".cta_group::2", 0b1011)
    assert signalled(pair) == [128, 0, 64, 0]
    assert landed(pair) == [True, True, False, True]
    pair.load(t, (0,), 0x800, text + ".cta_group::2", 0b0100, mbar=1 << 24 | SMEM_BASE)
    assert signalled(pair) == [128, 0, 64, 64]
    for mask in (0, 0b10000):
        with pytest.raises(Fault, match="in a cluster of 4"):
            pair.load(t, (0,), 0x800, text, mask)


REDUCTIONS = [
    ("add", 2, np.uint32, lambda a, b: (a + b) % 2**32),
    ("add", 4, np.uint64, lambda a, b: (a + b) % 2**64),
    ("min", 3, np.int32, min),
    ("max", 5, np.int64, max),
    ("inc", 2, np.uint32, lambda a, b: 0 if a >= b else a + 1),
    ("dec", 2, np.uint32, lambda a, b: b if a == 0 or a > b else a - 1),
    ("and", 2, np.uint32, lambda a, b: a & b),
    ("or", 4, np.uint64, lambda a, b: a | b),
    ("xor", 3, np.int32, lambda a, b: a ^ b),
    ("add", 6, np.float16, lambda a, b: float(np.float16(a + b))),
    ("add", 9, np.float64, lambda a, b: a + b),
    ("max", 6, np.float16, max),
]


@pytest.mark.parametrize("op, format, dtype, combine", REDUCTIONS)
def test_reduce(op, format, dtype, combine):
    bench = Bench(ctas=1)
    size = np.dtype(dtype).itemsize
    width = 32 // size
    t = TensorMap(bench.base, format, (width + 1, 6), (64,), (width, 4), (1, 1), swizzle=1)
    left = 16 // size  # a box starts on 16 bytes of its row
    old = bench.tensor.view(dtype).reshape(-1, 64 // size)[:6]
    new = bench.warp.cta.smem.u8[0x800:0x880].view(dtype)
    if np.issubdtype(dtype, np.floating):
        old[:] = np.random.default_rng(1).integers(-900, 900, old.shape) / 8
        new[:] = np.random.default_rng(2).integers(-900, 900, new.shape) / 8
    old[3, left], new[:4] = 0, old[3, :4]
    before = old.tolist()
    smem = new.tolist()
    text = f"cp.reduce.async.bulk.tensor.2d.global.shared::cta.{op}.tile.bulk_group.L2::cache_hint"
    bench.store(t, (left, 3), 0x800, text)
    expected = [row[:] for row in before]
    for y, x in itertools.product(range(4), range(width)):
        at = swizzled(0x800 + 32 * y + x * size, (1, 0)) - 0x800
        if y + 3 < 6 and x + left < width + 1:
            value = combine(before[y + 3][x + left], smem[at // size])
            expected[y + 3][x + left] = value
    assert old.tolist() == expected


def test_every_lane_reduces_but_a_store_is_done_once():
    bench = Bench()
    t = TensorMap(bench.base, 2, (4,), (), (4,), (1,))
    bench.tensor[:16] = 0
    bench.warp.cta.smem.u32[0x200:0x204] = (1, 2, 3, 4)
    text = "cp.reduce.async.bulk.tensor.1d.global.shared::cta.add.bulk_group"
    bench.store(t, (0,), 0x800, text, mask=0b111)
    assert bench.tensor[:16].view(np.uint32).tolist() == [3, 6, 9, 12]
    bench.store(t, (0,), 0x800, mask=FULL)
    assert bench.tensor[:16].view(np.uint32).tolist() == [1, 2, 3, 4]
    assert [type(o) for o in bench.machine.issued] == [TmaReduce] * 3 + [TmaStore]


def test_lanes_may_store_different_boxes():
    bench = Bench()
    t = TensorMap(bench.base, 2, (4, 32), (16,), (4, 1), (1, 1))
    lanes = np.arange(32, dtype=np.uint32)
    expected = bench.tensor.copy()
    for i in (1, 30):
        expected = oracle_store(t, expected, (0, i), 0x800 + 128 * i, bench.warp.cta.smem.u8)
    f = run(STORE.format(2))
    mask = 1 << 1 | 1 << 30
    f(bench.warp, mask, bench.machine.param(t.encode()), (0, lanes), 0x800 + 128 * lanes)
    np.testing.assert_array_equal(bench.tensor, expected)


def test_f32_ftz_add_flushes_and_f32_does_not():
    for format, expected in ((7, [3e-45, 1.0]), (8, [0.0, 1.0])):
        bench = Bench()
        t = TensorMap(bench.base, format, (4,), (), (4,), (1,))
        bench.tensor[:16] = np.array([1.4e-45, 1, 0, 0], np.float32).view(np.uint8)
        bench.warp.cta.smem.u32[0x200:0x204] = np.array([1.4e-45, 0, 0, 0], np.float32).view(
            np.uint32
        )
        bench.store(
            t, (0,), 0x800, "cp.reduce.async.bulk.tensor.1d.global.shared::cta.add.bulk_group"
        )
        found = bench.tensor[:8].view(np.float32)
        np.testing.assert_array_equal(found, np.array(expected, np.float32))


def test_reductions_that_do_not_exist():
    bench = Bench()
    text = "cp.reduce.async.bulk.tensor.1d.global.shared::cta.{}.bulk_group"
    for op, t in (
        ("xor", TensorMap(bench.base, 6, (8,), (), (8,), (1,))),
        ("inc", TensorMap(bench.base, 4, (8,), (), (8,), (1,))),
        ("add", TensorMap(bench.base, 0, (16,), (), (16,), (1,))),
        ("add", TensorMap(bench.base, 11, (32,), (), (32,), (1,))),
    ):
        with pytest.raises(Fault, match="cannot be reduced|does not exist"):
            bench.store(t, (0,), 0x800, text.format(op))
    with pytest.raises(Fault, match="b4x16_p64 cannot be stored"):
        bench.store(TensorMap(bench.base, 12, (128,), (), (128,), (1,)), (0,), 0x800)


def test_data_moves_when_the_machine_lets_it():
    bench = Bench()
    bench.machine.delayed = True
    t = replace(ROW, address=bench.base)
    bench.load(t, (0,), 0x800)
    assert not landed(bench)[0] and bench.tx() == 0
    bench.machine.flush()
    assert landed(bench)[0] and bench.tx() == 64
    bench.store(t, (0,), 0x800, mask=0b11)
    run("cp.async.bulk.commit_group")(bench.warp, 0b11)
    wait = run("cp.async.bulk.wait_group.read")
    wait(bench.warp, FULL, 1)
    with pytest.raises(Blocked) as blocked:
        wait(bench.warp, 0b10, 0)
    wait(bench.warp, 0b100, 0)  # a lane that stored nothing
    fragment = Woken(blocked.value.waitable)
    assert "cp.async.bulk.tensor.1d.global" in blocked.value.waitable.describe()
    bench.machine.flush()
    assert fragment.times == 1
    wait(bench.warp, FULL, 0)


@pytest.mark.parametrize(
    "change, coords, dst, text",
    [
        ({}, (0,), 0x840, "aligned to 128"),
        ({}, (0,), 0x400 + (64 << 10), "outside the CTA's shared memory"),
        (
            dict(dims=(64, 2), strides=(64,), box=(64, 1), steps=(1, 1)),
            (0,),
            0x800,
            "1d instruction .* rank 2",
        ),
        (dict(dims=(1 << 20,)), (1 << 19,), 0x800, "65536 bytes from there"),
        (dict(format=11), (3,), 0x800, "must be a multiple of 32 for b4x16"),
        (dict(format=12, dims=(128,), box=(128,)), (64,), 0x800, "multiple of 128 for b4x16_p64"),
    ],
)
def test_load_faults(change, coords, dst, text):
    bench = Bench()
    t = replace(ROW, address=bench.base, **change)
    with pytest.raises(Fault, match=text):
        bench.load(t, coords, dst, LOAD.format(1))


def test_a_tensor_may_be_declared_larger_than_it_is():
    """As a program does that writes a count of bytes into a tensormap of 8-byte elements."""
    bench = Bench()
    bench.load(replace(ROW, address=bench.base, dims=(1 << 20,)), (16,), 0x800)
    read = bench.warp.cta.smem.u8[0x800 : 0x800 + 64]
    assert read.any() and np.array_equal(read, bench.tensor[16 : 16 + 64])


def test_a_store_through_an_address_in_front_of_the_memory():
    """The box counts (QuACK's stores of rows of different lengths); a load stays a fault."""
    bench = Bench()
    plain = replace(
        ROW, address=bench.base, dims=(32, 8), strides=(128,), box=(32, 2), steps=(1, 1)
    )
    back = 1 << 20
    shifted = replace(plain, address=bench.base - 128 * back, dims=(32, back + 8))
    expected = oracle_store(plain, bench.tensor, (0, 2), 0x800, bench.warp.cta.smem.u8)
    bench.store(shifted, (0, back + 2), 0x800)
    np.testing.assert_array_equal(bench.tensor, expected)
    bench.store(shifted, (0, back + 8), 0x800)  # out of bounds: nothing is stored
    np.testing.assert_array_equal(bench.tensor, expected)
    with pytest.raises(Fault, match="its global address is wrong"):
        bench.store(shifted, (0, 5), 0x800)
    with pytest.raises(Fault, match="its global address is wrong"):
        bench.load(shifted, (0, back + 2), 0x800)


def test_a_store_starts_inside_the_tensor():
    bench = Bench()
    t = replace(ROW, address=bench.base)
    with pytest.raises(Fault, match="must not be negative"):
        bench.store(t, (-32,), 0x800, STORE.format(1))


def test_operands_that_are_refused():
    bench = Bench()
    t = replace(ROW, address=bench.base)
    with pytest.raises(Fault, match="no mbarrier is initialised"):
        bench.load(t, (0,), 0x800, mbar=SMEM_BASE + 64)
    f = run(LOAD.format(1))
    with pytest.raises(Fault, match="not a multiple of 64"):
        f(bench.warp, 0, 0x800, bench.machine.param(t.encode()) + 16, (0,), SMEM_BASE)
    with pytest.raises(Unsupported, match="im2col"):
        run("cp.async.bulk.tensor.3d.shared::cta.global.im2col.mbarrier::complete_tx::bytes")
    with pytest.raises(Unsupported, match="modifier .sideways"):
        run(LOAD.format(1) + ".sideways")
    layered = TensorMap(bench.base, 1, (8, 1, 1), (16, 16), (8, 1, 1), (1, 1, 1), interleave=1)
    with pytest.raises(Unsupported, match="interleaved"):
        bench.load(layered, (0, 0, 0), 0x800)


def test_prefetch_checks_its_operands():
    bench = Bench()
    f = run("cp.async.bulk.prefetch.tensor.1d.L2.global.tile.L2::cache_hint")
    f(bench.warp, 0, bench.machine.param(replace(ROW, address=bench.base).encode()), (0,), 0)
    (issued,) = bench.machine.issued
    assert isinstance(issued, TmaPrefetch) and (issued.access.tx_bytes, issued.access.rows) == (
        64,
        1,
    )
    with pytest.raises(Fault, match="global address is wrong"):
        f(bench.warp, 0, bench.machine.param(replace(ROW, address=4096).encode()), (0,), 0)
