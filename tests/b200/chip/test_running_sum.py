"""Sums kept out of tensor memory against tensor_core.block_scaled_fp4, one step after the other.

That function is held against Fractions in test_tensor_core.py.
"""

from __future__ import annotations

import sys
from collections import Counter
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
import torch

from b200.chip.tensor import int8_product, running_sum, tensor_core
from b200.chip.tensor.mma import DecodedMma
from b200.chip.tensor.mma_operands import ScaleFactors, accumulator
from b200.chip.tensor.running_sum import RunningSum
from tests.b200.chip.tensor_support import warps

M, N, COLUMN = 64, 8, 96
# (format of the scales, lowest code, end of the codes): one value, few values, values with more bits
# than fp32 keeps, up to what overflows, subnormals, NaN among them.
REGIMES = (
    ("ue4m3", 0x38, 0x39),
    ("ue4m3", 0x36, 0x3A),
    ("ue4m3", 0x00, 0x38),
    ("ue4m3", 0x20, 0x60),
    ("ue4m3", 0x00, 0x7F),
    ("ue4m3", 0x00, 0x0C),
    ("ue4m3", 0x70, 0x80),
    ("ue8m0", 0x7E, 0x81),
    ("ue8m0", 0x60, 0xA0),
    ("ue8m0", 0xF0, 0xFF),
    ("ue8m0", 0x00, 0x100),
)


def an_mma(sf_type: str, negate: bool) -> DecodedMma:
    """What a running sum asks of an instruction: M x N, its cells from COLUMN on."""
    d = SimpleNamespace(n=N, sf_type=sf_type, negate_a=negate, negate_b=False)
    factors = ScaleFactors("A", 0, M, 0, 4), ScaleFactors("B", 4, N, 0, 4)
    acc = accumulator(COLUMN, M, N, 1, False)
    return cast(DecodedMma, SimpleNamespace(d=d, acc=acc, sfa=factors[0], sfb=factors[1]))


def in_lanes(codes: np.ndarray) -> bytes:
    """Scale factors of rows as a partition holds them: row r in lane r % 32 of column r // 32."""
    words = np.zeros(-(-len(codes) // 32) * 32, np.uint32)
    words[: len(codes)] = codes.view(np.uint32)[:, 0]
    return words.reshape(-1, 32).T.tobytes()


def steps_of(rng, regime):
    """Random steps: bytes and scale codes of A and B. Codes of few bits make sums that are exact."""
    _, low, high = regime
    mask = rng.choice([0x11, 0x99, 0xBB, 0xFF, 0x88])
    for _ in range(rng.integers(1, 2 * running_sum.STEPS + 2)):
        a, b = (rng.integers(0, 256, (rows, 32), dtype=np.uint8) & mask for rows in (M, N))
        sfa, sfb = (rng.integers(low, high, (rows, 4)).astype(np.uint8) for rows in (M, N))
        yield a, sfa, b, sfb


def ways_taken(monkeypatch) -> Counter:
    """How often the arithmetic went each way."""
    taken: Counter = Counter()

    def count(owner, name: str):
        way = getattr(owner, name)

        def counted(*args):
            taken[name] += 1
            return way(*args)

        monkeypatch.setattr(owner, name, counted)

    for name in ("_together", "_one", "_in_float64", "_end"):
        count(RunningSum, name)
    count(int8_product, "product")
    count(int8_product.ProductOfLimbs, "add")
    return taken


@pytest.mark.parametrize("sums", [250, pytest.param(1500, marks=pytest.mark.slow)])
@pytest.mark.parametrize("int8", [True, False])
def test_random_sums_are_those_of_single_steps(monkeypatch, int8, sums):
    if not int8:
        monkeypatch.setattr(int8_product, "is_there", lambda: False)
    elif not int8_product.is_there():
        assert not torch.backends.cpu.get_cpu_capability().startswith("AVX")
        return
    taken = ways_taken(monkeypatch)
    rng = np.random.default_rng(36)
    (cta,) = (warp.cta for warp in warps()[1])
    infinite = 0
    for number in range(sums):
        regime = REGIMES[number % len(REGIMES)]
        negate = bool(rng.integers(2))
        mma, cells = an_mma(regime[0], negate), None
        running = RunningSum((cta,), mma)
        for a, sfa, b, sfb in steps_of(rng, regime):
            cells = tensor_core.block_scaled_fp4(a, sfa, b, sfb, cells, regime[0], negate).copy()
            if running in cta.sums:
                running.add([a], [in_lanes(sfa)], [b], in_lanes(sfb))
            else:  # it has ended: steps are added in tensor memory
                have = tensor_core.block_scaled_fp4(
                    a, sfa, b, sfb, mma.acc.read(cta), regime[0], negate
                )
                mma.acc.write(cta, have)
        assert cells is not None
        np.testing.assert_array_equal(mma.acc.read(cta), cells, err_msg=f"sum {number}, {regime}")
        assert not cta.sums
        infinite += bool((cells & 0x7FFFFFFF >= 0x7F800000).any())
    assert infinite > sums // 10 and all(taken[way] > sums // 10 for way in taken)
    assert len(taken) == (6 if int8 else 4)


def test_numbers_are_their_two_limbs():
    numbers = np.arange(
        -int8_product.LARGEST_OF_TWO, int8_product.LARGEST_OF_TWO + 1, dtype=np.int16
    )
    low, high = int8_product.split(numbers[None])
    assert low.dtype == high.dtype == np.int8
    assert max(np.abs(low).max(), np.abs(high).max()) <= 64
    np.testing.assert_array_equal(low + 128 * high.astype(int), numbers[None])


@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_sums_of_limbs_are_exact(sign):
    """258 products of 2040 are a little less than 2^30. Limbs are -8 and 16."""
    assert 258 * 2040**2 < int8_product.LARGEST_SUM < 259 * 2040**2
    a = int8_product.split(np.full((3, 258), 2040, np.int16))
    b = int8_product.split(np.full((2, 258), sign * 2040, np.int16))
    total = np.full((3, 2), 0.5)
    int8_product.product_of_limbs(3, 2).add(total, a, b, 0.25)
    assert (total == 0.5 + sign * 258 * 2040**2 / 4).all()


def test_a_program_without_pytorch_multiplies_floats(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch")
    assert not int8_product.is_there()
    with int8_product.one_thread():
        pass


def test_pytorch_multiplies_in_one_thread_during_a_launch_and_in_as_many_after():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with int8_product.one_thread():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_touched_columns_hold_the_sum_and_others_leave_it_alone():
    rng = np.random.default_rng(1)
    (cta,) = (warp.cta for warp in warps()[1])
    running = RunningSum((cta,), an_mma("ue4m3", False))
    a, sfa, b, sfb = next(steps_of(rng, REGIMES[0]))
    running.add([a], [in_lanes(sfa)], [b], in_lanes(sfb))
    cta.columns(COLUMN + N, 8)
    cta.columns(0, COLUMN)
    assert cta.sums == [running]
    want = tensor_core.block_scaled_fp4(a, sfa, b, sfb, None, "ue4m3")
    rows = np.arange(M) % 16 + np.arange(M) // 16 * 32
    got = cta.columns(COLUMN + N - 1, 1)[rows, COLUMN : COLUMN + N]
    np.testing.assert_array_equal(got, want)
    assert not cta.sums


def test_a_sum_across_the_columns_of_another_comes_after_it():
    rng = np.random.default_rng(2)
    (cta,) = (warp.cta for warp in warps()[1])
    first, second = an_mma("ue4m3", False), an_mma("ue4m3", True)
    second.acc = accumulator(COLUMN + 4, M, N, 1, False)  # type: ignore[misc]
    a, sfa, b, sfb = next(steps_of(rng, REGIMES[0]))
    for mma in (first, second):
        RunningSum((cta,), mma).add([a], [in_lanes(sfa)], [b], in_lanes(sfb))
    want = tensor_core.block_scaled_fp4(a, sfa, b, sfb, None, "ue4m3").copy()
    np.testing.assert_array_equal(first.acc.read(cta)[:, :4], want[:, :4])
    minus = tensor_core.block_scaled_fp4(a, sfa, b, sfb, None, "ue4m3", negate=True)
    np.testing.assert_array_equal(second.acc.read(cta), minus)


def check_steps(rng, exponents) -> None:
    """Steps whose scales are powers of two, of each row's own exponents, worked off one by one."""
    (cta,) = (warp.cta for warp in warps()[1])
    mma, cells = an_mma("ue8m0", False), None
    running = RunningSum((cta,), mma)
    for of_a, of_b in exponents:
        a, b = (rng.integers(0, 256, (rows, 32), dtype=np.uint8) for rows in (M, N))
        sfa, sfb = (
            (127 + np.broadcast_to(e, (r, 4))).astype(np.uint8) for r, e in ((M, of_a), (N, of_b))
        )
        cells = tensor_core.block_scaled_fp4(a, sfa, b, sfb, cells, "ue8m0").copy()
        if running in cta.sums:
            running.add([a], [in_lanes(sfa)], [b], in_lanes(sfb))
            running.work()
        else:
            have = mma.acc.read(cta)
            mma.acc.write(cta, tensor_core.block_scaled_fp4(a, sfa, b, sfb, have, "ue8m0"))
    np.testing.assert_array_equal(mma.acc.read(cta), cells)


@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize("apart", range(20, 50))
def test_steps_that_are_far_apart_are_those_of_single_steps(apart, place):
    """A step of 2^apart times the numbers of the others: before them, between them, after them."""
    rng = np.random.default_rng(apart)
    check_steps(rng, [(apart // 2, apart - apart // 2) if n == place else (0, 0) for n in range(3)])


@pytest.mark.parametrize("wide", range(2, 9))
def test_steps_of_few_and_of_many_bits_take_turns(wide):
    """So a sum is kept in fp32 and in float64 in turn."""
    rng = np.random.default_rng(wide)

    def some(rows: int) -> np.ndarray:
        return rng.integers(-wide, wide + 1, (rows, 4))

    few = (0, 0)
    check_steps(rng, [few, (some(M), some(N)), few, few, (some(M), some(N)), few])
