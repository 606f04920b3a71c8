"""TMA tensor copies against an oracle that moves one element at a time."""

import itertools
import math
import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from b200.chip.copies import tma_box
from b200.chip.copies.tensormap import TensorMap
from b200.chip.operations import TmaLoad, TmaPrefetch, TmaReduce, TmaStore
from b200.chip.state import Region
from b200.contract import FULL, Blocked
from b200.errors import Fault, Unsupported
from b200.hardware import SMEM_BASE
from tests.b200.chip.async_support import Woken, address, aligned, cluster, run

# (swizzle mode, atomicity) -> pairs of (address bit that changes, address bit it is xor-ed with)
SWIZZLES = {
    (0, 0): [],
    (1, 0): [(4, 7)],
    (2, 0): [(4, 7), (5, 8)],
    (3, 0): [(4, 7), (5, 8), (6, 9)],
    (3, 1): [(5, 7), (6, 8)],
    (3, 2): [(5, 7), (6, 8), (3, 7)],
    (3, 3): [(6, 7)],
}
SPAN = {0: 0, 1: 32, 2: 64, 3: 128}
BITS = {0: 8, 1: 16, 2: 32, 4: 64, 6: 16, 7: 32, 9: 64, 10: 16, 11: 4, 12: 4, 13: 6}
LOAD = "cp.async.bulk.tensor.{}d.shared::cta.global.tile.mbarrier::complete_tx::bytes"
STORE = "cp.async.bulk.tensor.{}d.global.shared::cta.tile.bulk_group"
MBAR = 0  # offset of the mbarrier behind the reserved bytes


def swizzled(a, key):
    out = a
    for changed, by in SWIZZLES[key]:
        out ^= (a >> by & 1) << changed
    return out


def get_bits(memory, at, n):
    """n bits, all of one byte, at bit `at` of little-endian memory."""
    return int(memory[at // 8]) >> at % 8 & (1 << n) - 1


def put_bits(memory, at, n, value):
    mask = (1 << n) - 1
    memory[at // 8] = int(memory[at // 8]) & ~(mask << at % 8) | (value & mask) << at % 8


def elements(t: TensorMap, coords, dst):
    """Bit addresses of each piece of each element: (in the tensor, None out of bounds; in shared
    memory; in the element). No piece crosses a byte.
    """
    bits = BITS[t.format]
    piece = math.gcd(bits, 8)
    counts = [t.box[0]] + [-(-b // s) for b, s in zip(t.box[1:], t.steps[1:])]
    padded = t.format in (12, 13)
    pitch = SPAN[t.swizzle] or (t.box[0] if padded else t.box[0] * bits // 8)
    for index in itertools.product(*(range(n) for n in reversed(counts))):
        index = index[::-1]
        where = [c + i * s for c, i, s in zip(coords, index, (1,) + t.steps[1:])]
        inside = all(0 <= w < d for w, d in zip(where, t.dims))
        source = 8 * sum(w * s for w, s in zip(where[1:], t.strides)) + where[0] * bits
        row = 0
        for i, n in zip(reversed(index[1:]), reversed(counts[1:])):
            row = row * n + i
        in_row = index[0] // 16 * 128 + index[0] % 16 * bits if padded else index[0] * bits
        linear = 8 * (dst + row * pitch) + in_row
        for i in range(0, bits, piece):
            byte, bit = divmod(linear + i, 8)
            at = 8 * swizzled(byte, (t.swizzle, t.atomicity)) + bit
            yield source + i if inside else None, at, i


def oracle_load(t, tensor, coords, dst, smem):
    out = smem.copy()
    piece = math.gcd(BITS[t.format], 8)
    fill = int("7ff7" * 4, 16) if t.fill_nan else 0
    for source, at, i in elements(t, coords, dst):
        value = fill >> i if source is None else get_bits(tensor, source, piece)
        put_bits(out, at, piece, value)
    return out


def oracle_store(t, tensor, coords, src, smem):
    out = tensor.copy()
    piece = math.gcd(BITS[t.format], 8)
    for target, at, _ in elements(t, coords, src):
        if target is not None:
            put_bits(out, target, piece, get_bits(smem, at, piece))
    return out


class Bench:
    """One CTA or more, a tensor of random bytes, mbarriers at MBAR."""

    def __init__(self, nbytes=1 << 16, ctas=1, seed=0):
        self.machine, self.warps = cluster(ctas)
        self.warp = self.warps[0]
        self.tensor = aligned(nbytes)
        rng = np.random.default_rng(seed)
        self.tensor[:] = rng.integers(0, 256, nbytes, np.uint8)
        self.base = self.machine.tensor(self.tensor)
        for warp in self.warps:
            warp.cta.smem.u8[:] = rng.integers(0, 256, warp.cta.smem.size, np.uint8)
            run("mbarrier.init.shared.b64")(warp, 0, address(warp, MBAR), 1)

    def load(self, t, coords, dst, text=None, *rest, warp=None, mbar=None):
        warp = warp or self.warp
        f = run(text or LOAD.format(t.rank))
        mbar = address(warp, MBAR) if mbar is None else mbar
        unsigned = tuple(c & 0xFFFFFFFF for c in coords)
        f(warp, 0, dst, self.machine.param(t.encode()), unsigned, mbar, *rest)

    def store(self, t, coords, src, text=None, mask=1):
        f = run(text or STORE.format(t.rank))
        unsigned = tuple(c & 0xFFFFFFFF for c in coords)
        f(self.warp, mask, self.machine.param(t.encode()), unsigned, src)

    def tx(self, rank=0, offset=MBAR):
        """Bytes completed on the mbarrier of a CTA."""
        return -self.warps[rank].cta.mbarriers[SMEM_BASE + offset].tx


@st.composite
def boxes(draw, store=False):
    """(tensormap at address 0, coordinates, shared offset); small, in bounds or not."""
    rank = draw(st.integers(1, 5))
    format = draw(st.sampled_from([0, 1, 2, 4, 6, 7, 9, 10, 11, *((13,) if store else (12, 13))]))
    bits = BITS[format]
    swizzle, atomicity = draw(st.sampled_from(sorted(SWIZZLES)))
    if format in (12, 13):
        swizzle, atomicity = (3, atomicity) if swizzle == 3 else (0, 0)
        box0, align = 128, 32
        dims = [128 * draw(st.integers(1, 2))]
        coords = [128 * draw(st.integers(0 if store else -1, 2))]
    else:
        unit = 128 // bits
        box0 = unit * draw(st.integers(1, max(1, min(SPAN[swizzle] or 64, 64) // 16)))
        align = 16
        even = 2 if format == 11 else 1
        dims = [even * draw(st.integers(1, 40))]
        coords = [unit * draw(st.integers(0 if store else -box0 // unit - 2, dims[0] // unit + 1))]
    stride = -(-dims[0] * bits // 8 // align) * align + align
    box, steps, strides = [box0], [draw(st.integers(1, 8))], []
    left = max(1, 256 // box0)
    for _ in range(rank - 1):
        dims.append(draw(st.integers(1, 4)))
        steps.append(draw(st.sampled_from([1, 1, 1, 2, 3])))
        box.append(draw(st.integers(1, max(1, min(left, 5)))))
        left //= box[-1]
        strides.append(stride)
        stride = stride * dims[-1] + align * draw(st.integers(0, 1))
        coords.append(draw(st.integers(0 if store else -box[-1] - 1, dims[-1] + 1)))
    t = TensorMap(
        0, format, tuple(dims), tuple(strides), tuple(box), tuple(steps), swizzle, atomicity,
        fill_nan=format in (6, 7, 9, 10) and draw(st.booleans()),
    )  # fmt: skip
    return t, tuple(coords), SMEM_BASE + 128 * draw(st.integers(1, 20))


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


@pytest.mark.parametrize("seed", range(40))
def test_the_reach_of_a_box_is_its_last_byte(seed):
    rng = random.Random(seed)
    dims = (16 * rng.randint(1, 4), rng.randint(1, 5), rng.randint(1, 4))
    strides = (80 + 16 * rng.randint(0, 2), 1024)
    steps = (1, rng.randint(1, 3), rng.randint(1, 2))
    t = TensorMap(0, 0, dims, strides, (32, rng.randint(1, 4), rng.randint(1, 3)), steps)
    coords = (16 * rng.randint(-3, 5), rng.randint(-3, 6), rng.randint(-2, 5))
    touched = np.zeros(8192, np.uint8)
    tma_box.store(t, Region(0, touched, ""), coords, np.ones((t.box_rows, 32), np.uint8))
    last = np.flatnonzero(touched)
    assert tma_box.reach(t, coords) == (last[-1] + 1 if last.size else 0)


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
