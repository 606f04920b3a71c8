"""Bulk copies, cp.async, st.async and red.async, fences, cluster launch control."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from b200.chip.memory.reductions import GLOBAL, SHARED, combiner
from b200.chip.state import Cluster
from b200.errors import Fault, Unsupported
from b200.hardware import SMEM_BASE
from b200.program.module import Reg
from b200.registry import FULL, Blocked
from tests.b200.chip.async_support import address, aligned, cluster, run

MBAR = SMEM_BASE  # offset of the mbarrier in every CTA
LOAD = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"


@pytest.fixture(params=[4])
def bench(request):
    machine, warps = cluster(request.param)
    rng = np.random.default_rng(0)
    data = aligned(4096)
    data[:] = rng.integers(0, 256, data.size, np.uint8)
    machine.base, machine.data = machine.tensor(data), data
    for warp in warps:
        warp.cta.smem.u8[:] = rng.integers(0, 256, warp.cta.smem.size, np.uint8)
        run("mbarrier.init.shared.b64")(warp, 0, address(warp, 0), 1)
    return machine, warps


def signalled(warps):
    return [-w.cta.mbarriers[MBAR].tx for w in warps]


def smem(warp, at, n):
    return warp.cta.smem.u8[at : at + n]


def test_load(bench):
    machine, warps = bench
    before = warps[0].cta.smem.u8.copy()
    run("cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes.L2::cache_hint")(
        warps[0], 0, 0x810, machine.base + 32, 160, MBAR, 0
    )
    before[0x810 : 0x810 + 160] = machine.data[32:192]
    np.testing.assert_array_equal(warps[0].cta.smem.u8, before)
    assert signalled(warps) == [160, 0, 0, 0]
    run(LOAD)(warps[0], 0, 3 << 24 | 0x800, machine.base, 48, 3 << 24 | MBAR)
    assert signalled(warps) == [160, 0, 0, 48]
    np.testing.assert_array_equal(smem(warps[3], 0x800, 48), machine.data[:48])


def test_multicast_load(bench):
    machine, warps = bench
    f = run(LOAD + ".multicast::cluster.L2::cache_hint")
    f(warps[1], 0, 1 << 24 | 0x900, machine.base, 512, 1 << 24 | MBAR, 0b1101, 0)
    assert signalled(warps) == [512, 0, 512, 512]
    same = [np.array_equal(smem(w, 0x900, 512), machine.data[:512]) for w in warps]
    assert same == [True, False, True, True]


def test_copy_to_another_cta(bench):
    machine, warps = bench
    f = run("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes")
    f(warps[1], 0, 2 << 24 | 0xA00, 1 << 24 | 0x800, 96, 2 << 24 | MBAR)
    np.testing.assert_array_equal(smem(warps[2], 0xA00, 96), smem(warps[1], 0x800, 96))
    assert signalled(warps) == [0, 0, 96, 0]
    with pytest.raises(Fault, match="must be in the same CTA"):
        f(warps[1], 0, 2 << 24 | 0xA00, 1 << 24 | 0x800, 96, 1 << 24 | MBAR)


def test_store_and_byte_mask(bench):
    machine, warps = bench
    expected = machine.data.copy()
    run("cp.async.bulk.global.shared::cta.bulk_group")(warps[0], 0, machine.base + 64, 0x800, 128)
    expected[64:192] = smem(warps[0], 0x800, 128)
    np.testing.assert_array_equal(machine.data, expected)
    mask = 0b1000_0000_0010_0101
    f = run("cp.async.bulk.global.shared::cta.bulk_group.L2::cache_hint.cp_mask")
    f(warps[0], 0, machine.base + 1024, 0x900, 48, 0, mask)
    for i in range(48):
        if mask >> i % 16 & 1:
            expected[1024 + i] = smem(warps[0], 0x900 + i, 1)[0]
    np.testing.assert_array_equal(machine.data, expected)


@pytest.mark.parametrize(
    "dst, src, size, text",
    [
        (0x808, 0, 64, "not aligned to 16"),
        (0x800, 8, 64, "not aligned to 16"),
        (0x800, 0, 72, "must be a multiple of 16"),
        (0x800, 4096 + (2 << 20), 32, "in no tensor's allocation"),
        (0x10400, 0, 32, "outside the CTA's shared memory"),
    ],
)
def test_bulk_faults(bench, dst, src, size, text):
    machine, warps = bench
    with pytest.raises(Fault, match=text):
        run(LOAD)(warps[0], 0, dst, machine.base + src, size, MBAR)


@pytest.mark.parametrize("src, valid", [(4064, 32), (4096, 0), (8192, 0)])
def test_a_load_behind_a_tensor_reads_all_ones(bench, src, valid):
    machine, warps = bench
    run(LOAD)(warps[0], 0, 0x800, machine.base + src, 64, MBAR)
    machine.flush()
    got = smem(warps[0], 0x800, 64)
    assert bytes(got[:valid]) == bytes(machine.data[src : src + valid])
    assert (got[valid:] == 0xFF).all()


def test_a_store_behind_a_tensor_faults(bench):
    machine, warps = bench
    store = run("cp.async.bulk.global.shared::cta.bulk_group")
    with pytest.raises(Fault, match="in no tensor's allocation"):
        store(warps[0], 0, machine.base + 4096, 0x800, 64)


def test_unknown_modifiers_are_refused():
    for text in (LOAD + ".ignore_oob", "cp.async.ca.shared.global.fast", "fence.proxy.quantum"):
        with pytest.raises(Unsupported):
            run(text)


def test_reduce_to_global_and_to_another_cta(bench):
    machine, warps = bench
    old = machine.data[:64].view(np.uint32).tolist()
    new = smem(warps[0], 0x800, 64).view(np.uint32).tolist()
    f = run("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32")
    f(warps[0], 0, machine.base, 0x800, 64)
    assert machine.data[:64].view(np.uint32).tolist() == [(a + b) % 2**32 for a, b in zip(old, new)]
    old = smem(warps[3], 0x800, 64).view(np.int32).tolist()
    signed = smem(warps[0], 0x800, 64).view(np.int32).tolist()
    f = run("cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.max.s32")
    f(warps[0], 0, 3 << 24 | 0x800, 0x800, 64, 3 << 24 | MBAR)
    assert smem(warps[3], 0x800, 64).view(np.int32).tolist() == [max(p) for p in zip(old, signed)]
    assert signalled(warps) == [0, 0, 0, 64]


def test_legal_reductions():
    for text in (
        "global.shared::cta.bulk_group.add.f16",
        "global.shared::cta.bulk_group.add.noftz.u32",
        "shared::cluster.shared::cta.mbarrier::complete_tx::bytes.add.f32",
        "global.shared::cta.bulk_group.inc.u64",
    ):
        with pytest.raises(Unsupported, match="no such form"):
            run(f"cp.reduce.async.bulk.{text}")
    assert all(set(SHARED[op]) <= set(GLOBAL[op]) for op in SHARED)


def value_of(bits: int, exponent_bits: int, mantissa_bits: int):
    """Exact value of a finite small-float bit pattern; None for inf and NaN."""
    bias = 2 ** (exponent_bits - 1) - 1
    exponent = bits >> mantissa_bits & (1 << exponent_bits) - 1
    mantissa = bits & (1 << mantissa_bits) - 1
    if exponent == (1 << exponent_bits) - 1:
        return None
    if exponent:
        mantissa += 1 << mantissa_bits
    sign = -1 if bits >> exponent_bits + mantissa_bits else 1
    return sign * mantissa * Fraction(2) ** (max(exponent, 1) - bias - mantissa_bits)


FORMATS = {"f16": (5, 10), "bf16": (8, 7)}


def nearest(x: Fraction, kind: str):
    """Bit pattern of |x| rounded to nearest even, by bisection over the ordered patterns."""
    exponent_bits, mantissa_bits = FORMATS[kind]
    x = abs(x)
    infinity = (1 << exponent_bits) - 1 << mantissa_bits
    low, high = 0, infinity - 1
    if x >= value_of(high, *FORMATS[kind]):
        top = value_of(high, *FORMATS[kind])
        half = (top - value_of(high - 1, *FORMATS[kind])) / 2
        return infinity if x - top >= half else high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if value_of(middle, *FORMATS[kind]) <= x else (low, middle)
    below, above = value_of(low, *FORMATS[kind]), value_of(high, *FORMATS[kind])
    if x - below != above - x:
        return low if x - below < above - x else high
    return low if low % 2 == 0 else high


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(["f16", "bf16"]), st.integers(0, 2**16 - 1), st.integers(0, 2**16 - 1))
def test_half_addition_is_correctly_rounded(kind, a, b):
    add = combiner("add", kind, GLOBAL)
    found = int(
        add(np.array([a], np.uint16).view(np.uint8), np.array([b], np.uint16).view(np.uint8)).view(
            np.uint16
        )[0]
    )
    x, y = value_of(a, *FORMATS[kind]), value_of(b, *FORMATS[kind])
    if x is None or y is None:
        assert found & 0x7FFF >= (31 << 10 if kind == "f16" else 255 << 7)
        return
    total = x + y
    assert found & 0x7FFF == nearest(total, kind)
    if total:
        assert found >> 15 == (total < 0)
    else:
        assert found >> 15 == (a >> 15 & b >> 15)  # only -0 + -0 is -0


@pytest.mark.parametrize("kind, nan, one", [("f16", 0x7E01, 0x3C00), ("bf16", 0x7FC1, 0x3F80)])
def test_half_extremes(kind, nan, one):
    def apply(op, a, b):
        to = lambda x: np.array([x], np.uint16).view(np.uint8)  # noqa: E731
        return int(combiner(op, kind, GLOBAL)(to(a), to(b)).view(np.uint16)[0])

    minus_one, minus_zero = one | 0x8000, 0x8000
    for op in ("min", "max"):
        assert apply(op, nan, one) == apply(op, one, nan) == one
        assert apply(op, nan, nan) == 0x7FFF
    assert apply("min", one, minus_one) == apply("min", minus_one, one) == minus_one
    assert apply("max", one, minus_one) == apply("max", minus_one, one) == one
    assert apply("min", 0, minus_zero) == apply("min", minus_zero, 0) == minus_zero
    assert apply("max", 0, minus_zero) == apply("max", minus_zero, 0) == 0


def test_f32_bulk_addition_flushes_subnormals():
    add = combiner("add", "f32", GLOBAL)
    tiny, small = 1e-45, np.float32(2.0**-126)
    a = np.array([tiny, small, 1.5, -tiny, np.inf], np.float32)
    b = np.array([0, -small * np.float32(1.5), tiny, -tiny, -np.inf], np.float32)
    found = add(a.view(np.uint8), b.view(np.uint8)).view(np.uint32)
    expected = np.array([0, -0.0, 1.5, -0.0], np.float32).view(np.uint32).tolist()
    assert found.tolist() == expected + [0x7FFFFFFF]


@pytest.mark.parametrize("size, filled", [(4, 4), (8, 3), (16, 0), (16, 16)])
def test_cp_async(bench, size, filled):
    machine, warps = bench
    expected = warps[0].cta.smem.u8.copy()
    f = run("cp.async.ca.shared.global")
    f(warps[0], 1 << 3, 0x810, machine.base + 32, size, filled)
    expected[0x810 : 0x810 + size] = 0
    expected[0x810 : 0x810 + filled] = machine.data[32 : 32 + filled]
    np.testing.assert_array_equal(warps[0].cta.smem.u8, expected)


def test_cp_async_forms(bench):
    machine, warps = bench
    f = run("cp.async.cg.shared::cta.global.L2::cache_hint.L2::128B")
    f(warps[0], 1, 0x800, machine.base, 16, 0)  # the last operand is the policy
    np.testing.assert_array_equal(smem(warps[0], 0x800, 16), machine.data[:16])
    f(warps[0], 1, 0x800, 0, 16, 0, 0)  # nothing is read from an address that is nobody's
    assert not smem(warps[0], 0x800, 16).any()
    ignoring = run("cp.async.ca.shared.global", None, None, None, Reg("%p1", "pred"))
    ignoring(warps[0], 1, 0x820, machine.base, 8, 0)
    np.testing.assert_array_equal(smem(warps[0], 0x820, 8), machine.data[:8])
    ignoring(warps[0], 1, 0x820, machine.base, 8, FULL)
    assert not smem(warps[0], 0x820, 8).any()
    for args, text in (
        ((0x800, machine.base, 8, 0), "must be one of"),
        ((0x808, machine.base, 16, 0), "not aligned to 16"),
        ((0x800, machine.base + 8, 16, 0), "not a multiple of its size"),
        ((0x800, machine.base, 16, 17, 0), "more than its cp-size"),
    ):
        with pytest.raises(Fault, match=text):
            f(warps[0], 1, *args)


def test_groups_wait_for_the_older_ones(bench):
    machine, warps = bench
    warp, machine.delayed = warps[0], True
    copy = run("cp.async.ca.shared.global")
    commit, wait = run("cp.async.commit_group"), run("cp.async.wait_group")
    for i in range(3):
        copy(warp, 1, 0x800 + 16 * i, machine.base + 16 * i, 16)
        commit(warp, FULL)
    copy(warp, 1, 0x900, machine.base, 16)  # not committed
    wait(warp, FULL, 3)
    with pytest.raises(Blocked):
        wait(warp, FULL, 2)
    machine.flush(1)
    wait(warp, FULL, 2)
    with pytest.raises(Blocked):
        wait(warp, FULL, 1)
    machine.flush(2)
    wait(warp, FULL, 0)
    with pytest.raises(Blocked):
        run("cp.async.wait_all")(warp, FULL)
    machine.flush()
    run("cp.async.wait_all")(warp, FULL)


@pytest.mark.parametrize("suffix, pending", [("", 3), (".noinc", 2)])
def test_cp_async_mbarrier_arrive(bench, suffix, pending):
    machine, warps = bench
    warp = warps[0]
    run("mbarrier.init.shared.b64")(warp, 0, address(warp, 8), 2)
    barrier = warp.cta.mbarriers[MBAR + 8]
    machine.delayed = True
    copy, arrive = (
        run("cp.async.ca.shared.global"),
        run(f"cp.async.mbarrier.arrive{suffix}.shared.b64"),
    )
    copy(warp, 1, 0x800, machine.base, 16)
    copy(warp, 1, 0x810, machine.base, 16)
    arrive(warp, 0, address(warp, 8))
    copy(warp, 1, 0x820, machine.base, 16)  # later: not waited for
    assert barrier.pending == pending
    machine.flush(1)
    assert barrier.pending == pending
    machine.flush(1)
    assert barrier.pending == pending - 1
    machine.delayed = False
    arrive(warp, 1, address(warp, 8))  # a thread with nothing under way arrives at once
    assert (barrier.phase, barrier.pending) == ((1, 2) if suffix else (0, 2))


@pytest.mark.parametrize(
    "suffix, value, expected",
    [
        ("b32", 0xDEADBEEF, [0xDEADBEEF]),
        ("v2.s32", (0xFFFFFFFF, 5), [0xFFFFFFFF, 5]),
        ("v4.f32", (1, 2, 3, 4), [1, 2, 3, 4]),
        ("v2.u64", (1 << 40, 7), [0, 1 << 8, 7, 0]),
    ],
)
def test_st_async(bench, suffix, value, expected):
    machine, warps = bench
    f = run(f"st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.{suffix}")
    f(warps[0], 1, 2 << 24 | 0x800, value, 2 << 24 | MBAR)
    assert smem(warps[2], 0x800, 4 * len(expected)).view(np.uint32).tolist() == expected
    assert signalled(warps) == [0, 0, 4 * len(expected), 0]
    with pytest.raises(Fault, match="must be in the same CTA"):
        f(warps[0], 1, 2 << 24 | 0x800, value, MBAR)
    with pytest.raises(Fault, match="align"):
        f(warps[0], 1, 2 << 24 | 0x802, value, 2 << 24 | MBAR)


def test_st_async_of_a_warp_is_one_operation_for_each_mbarrier(bench):
    machine, warps = bench
    f = run("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32")
    lane = np.arange(32, dtype=np.uint32)
    rank = 1 + lane % 2 << 24
    pairs = lane.astype(np.uint32) * 10, lane.astype(np.uint32) * 10 + 1
    f(warps[0], 0xFFFF00FF, rank + 0x800 + lane * 8, pairs, rank + MBAR)
    operations = machine.issued
    assert [(o.nbytes, o.each, o.place.cta.rank, o.place.offset) for o in operations] == [
        (96, 8, 1, 0x800),
        (96, 8, 2, 0x808),
    ]
    assert signalled(warps) == [0, 96, 96, 0]
    for cta, first in ((1, 0), (2, 1)):
        got = smem(warps[cta], 0x800, 256).view(np.uint32).reshape(32, 2)
        for i in range(first, 32, 2):
            assert (got[i].tolist() == [10 * i, 10 * i + 1]) is not (8 <= i < 16)


def test_lanes_of_red_async_add_to_one_word(bench):
    _, warps = bench
    f = run("red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32")
    warps[1].cta.smem.u32[0x200] = 5
    f(warps[0], 0xFF, 1 << 24 | 0x800, np.arange(32, dtype=np.uint32), 1 << 24 | MBAR)
    assert int(warps[1].cta.smem.u32[0x200]) == 5 + sum(range(8))
    assert signalled(warps) == [0, 32, 0, 0]


def test_red_async(bench):
    machine, warps = bench
    f = run("red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u64")
    warps[1].cta.smem.u64[0x100] = 2**64 - 1
    f(warps[0], 1, 1 << 24 | 0x800, 3, 1 << 24 | MBAR)
    assert int(warps[1].cta.smem.u64[0x100]) == 2
    assert signalled(warps) == [0, 8, 0, 0]
    with pytest.raises(Unsupported, match="no such form"):
        run("red.async.relaxed.cluster.mbarrier::complete_tx::bytes.min.u64")
    with pytest.raises(Unsupported, match="to global memory, not modelled"):
        run("red.async.mmio.release.sys.global.add.u32")


@pytest.mark.parametrize(
    "text",
    [
        *(
            "fence.acq_rel.gpu",
            "fence.sc.cta",
            "fence.proxy.async.shared::cta",
            "fence.proxy.alias",
        ),
        *("fence.mbarrier_init.release.cluster", "membar.gl", "griddepcontrol.wait"),
        "fence.proxy.async::generic.acquire.sync_restrict::shared::cluster.cluster",
    ],
)
def test_fences_are_known(bench, text):
    run(text)(bench[1][0], FULL)


@pytest.mark.parametrize(
    "n, legal", [(24, True), (256, True), (16, False), (100, False), (264, False)]
)
def test_setmaxnreg(bench, n, legal):
    f = run("setmaxnreg.inc.sync.aligned.u32")
    if legal:
        f(bench[1][0], FULL, n)
    else:
        with pytest.raises(Fault, match="multiple of 8 in 24..256"):
            f(bench[1][0], FULL, n)


def test_cluster_launch_control_answers_failed(bench):
    machine, warps = bench
    f = run("clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128")
    f(warps[1], 0, address(warps[1], 0x400), address(warps[1], 0))
    assert signalled(warps) == [0, 16, 0, 0]
    everywhere = run(
        "clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes"
        ".multicast::cluster::all.b128"
    )
    everywhere(warps[0], 0, address(warps[0], 0x400), address(warps[0], 0))
    assert signalled(warps) == [16, 32, 16, 16]
    response = int.from_bytes(smem(warps[3], 0x800, 16).tobytes(), "little")
    query = "clusterlaunchcontrol.query_cancel."
    assert not run(query + "is_canceled.pred.b128")(warps[0], 0, response)
    ones = 0xFFFFFFFF  # undefined, and remarked on
    assert run(query + "get_first_ctaid::y.b32.b128")(warps[0], 0, response) == ones
    assert run(query + "get_first_ctaid.v4.b32.b128")(warps[0], 0, response) == (*[ones] * 3, 0)
    with pytest.raises(Fault, match="not aligned to 16"):
        f(warps[0], 0, address(warps[0], 8), address(warps[0], 0))


def test_cluster_launch_control_names_the_first_cta_of_a_cancelled_cluster(bench):
    machine, warps = bench
    machine.cancelled = Cluster(None, (3, 2, 1), (2, 4, 1))
    f = run("clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128")
    f(warps[1], 0, address(warps[1], 0x400), address(warps[1], 0))
    response = int.from_bytes(smem(warps[1], 0x800, 16).tobytes(), "little")
    query = "clusterlaunchcontrol.query_cancel."
    assert run(query + "is_canceled.pred.b128")(warps[1], 0, response)
    assert run(query + "get_first_ctaid::x.b32.b128")(warps[1], 0, response) == 6
    assert run(query + "get_first_ctaid::y.b32.b128")(warps[1], 0, response) == 8
    assert run(query + "get_first_ctaid.v4.b32.b128")(warps[1], 0, response)[:3] == (6, 8, 1)


GROUPED = {  # what joins a bulk group: its operands after an address in global and in shared memory
    "cp.async.bulk.global.shared::cta.bulk_group": (64,),
    "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32": (64,),
    "cp.reduce.async.bulk.global.shared::cta.bulk_group.xor.b64": (64,),
}


@pytest.mark.parametrize("lane", [0, 3, 31])
@pytest.mark.parametrize("text", GROUPED)
def test_a_copy_is_in_the_group_of_the_lane_that_issued_it(bench, text, lane):
    """Bulk groups are a thread's (PTX ISA 9.7.9.25.3): nobody else waits for its copies."""
    machine, warps = bench
    machine.delayed = True
    run(text)(warps[0], lane, machine.base, address(warps[0], 0), *GROUPED[text])
    commit = run("cp.async.bulk.commit_group")
    wait = run("cp.async.bulk.wait_group")
    commit(warps[0], FULL)
    wait(warps[0], FULL & ~(1 << lane), 0)
    wait(warps[0], FULL, 1)
    with pytest.raises(Blocked):
        wait(warps[0], 1 << lane, 0)
    machine.flush()
    wait(warps[0], FULL, 0)
