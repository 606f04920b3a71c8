"""Warp-level communication, lane by lane as the PTX ISA describes it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from b200.errors import Fault, Unsupported
from b200.registry import FULL, find
from tests.b200.chip.isa_support import execute, fake_warp, instruction
from tests.b200.chip.test_integer import FEW, LANES, cut, signed

LOW_HALF = 0x0000FFFF
U32 = ["b32"]
LANE = np.arange(32)


def shuffled(mode: str, lane: int, b: int, c: int) -> tuple[int, bool]:
    """Source lane and predicate (PTX ISA 9.7.9.6, semantics)."""
    bound, segment = c & 0x1F, (c >> 8) & 0x1F
    highest = (lane & segment) | (bound & ~segment)
    lowest = lane & segment
    b &= 0x1F
    j = {"up": lane - b, "down": lane + b, "bfly": lane ^ b, "idx": lowest | (b & ~segment)}[mode]
    ok = j >= highest if mode == "up" else j <= highest
    return (j if ok else lane), ok


@pytest.mark.parametrize("mode", ["up", "down", "bfly", "idx"])
@FEW
@given(lanes=LANES, b=st.integers(0, 40), tile=st.sampled_from([2, 4, 8, 16, 32]))
def test_shuffle(mode, lanes, b, tile):
    """Segments of `tile` lanes, as __shfl_*_sync(..., width) compiles to."""
    a = cut(lanes, 32)
    c = (32 - tile) << 8 | (0 if mode == "up" else 31)
    d, p = execute(f"shfl.sync.{mode}.b32", ["b32", "pred"], ["b32", b, c, -1], a)
    for lane in range(32):
        source, ok = shuffled(mode, lane, b, c)
        assert (int(d[lane]), bool(p[lane])) == (int(a[source]), ok)


def test_shuffle_without_predicate_and_with_varying_lanes():
    a, b = np.arange(32) * 3, (np.arange(32) * 7) % 32
    d = execute("shfl.sync.idx.b32", U32, ["b32", "b32", 31, -1], a, b)
    assert np.array_equal(d, a[b])


@FEW
@given(mask=st.integers(1, FULL), p=st.integers(0, FULL))
def test_vote(mask, p):
    here = [p >> i & 1 for i in range(32) if mask >> i & 1]
    bits = np.array([p >> i & 1 for i in range(32)])
    ballot = execute("vote.sync.ballot.b32", U32, ["pred", mask], bits, mask=mask)
    assert set(ballot.tolist()) == {p & mask}
    same = len(set(here)) == 1
    for mode, want in (("all", all(here)), ("any", any(here)), ("uni", same)):
        got = execute(f"vote.sync.{mode}.pred", ["pred"], ["pred", mask], bits, mask=mask)
        assert got.all() == got.any() == want


@FEW
@given(seeds=LANES, mask=st.integers(1, FULL))
def test_match(seeds, mask):
    a = np.array([v % 5 << 33 | v % 3 for v in seeds], np.uint64)
    chosen = [i for i in range(32) if mask >> i & 1]
    d = execute("match.any.sync.b64", U32, ["b64", mask], a, mask=mask)
    for i in chosen:
        assert int(d[i]) == sum(1 << j for j in chosen if a[j] == a[i])
    d, p = execute("match.all.sync.b64", ["b32", "pred"], ["b64", mask], a, mask=mask)
    same = len({int(a[i]) for i in chosen}) == 1
    assert int(d[chosen[0]]) == (mask if same else 0) and bool(p[chosen[0]]) == same


@FEW
@given(lanes=LANES, mask=st.integers(1, FULL))
def test_reductions(lanes, mask):
    a = cut(lanes, 32)
    u = [int(a[i]) for i in range(32) if mask >> i & 1]
    s = [signed(x, 32) for x in u]
    every, some, odd = FULL, 0, 0
    for x in u:
        every, some, odd = every & x, some | x, odd ^ x
    want = {
        "add.u32": sum(u),
        "add.s32": sum(s),
        "min.u32": min(u),
        "max.u32": max(u),
        "min.s32": min(s),
    }
    want |= {"max.s32": max(s), "and.b32": every, "or.b32": some, "xor.b32": odd}
    for op, x in want.items():
        got = execute(f"redux.sync.{op}", U32, ["b32", mask], a, mask=mask)
        assert set(got.tolist()) == {x % 2**32}, op


def test_float_reductions():
    """redux.sync.{min,max}{.abs}{.NaN}.f32 (sm_100)."""
    x = np.linspace(-8, 4, 32).astype(np.float32)
    x[3] = np.nan

    def pattern(v):
        return int(np.float32(v).view(np.uint32))

    a = x.view(np.uint32)
    for op, want in (("min", -8.0), ("max", 4.0), ("max.abs", 8.0)):
        assert set(execute(f"redux.sync.{op}.f32", U32, ["b32", -1], a).tolist()) == {pattern(want)}
        assert set(execute(f"redux.sync.{op}.NaN.f32", U32, ["b32", -1], a).tolist()) == {
            0x7FFFFFFF
        }
    zeros = np.array([0.0, -0.0] * 16, np.float32).view(np.uint32)
    assert set(execute("redux.sync.min.f32", U32, ["b32", -1], zeros).tolist()) == {0x80000000}


@pytest.mark.parametrize("mask", [FULL, 0xFFFF0000, 0x00000040])
def test_elect(mask):
    d, p = execute("elect.sync", ["b32", "pred"], [-1], mask=mask, warp=fake_warp(live=mask))
    leader = (mask & -mask).bit_length() - 1
    assert set(d.tolist()) == {leader} and np.flatnonzero(p).tolist() == [leader]


def test_activemask():
    assert set(execute("activemask.b32", U32, [], mask=LOW_HALF).tolist()) == {LOW_HALF}


def test_membermask_is_checked():
    """Lanes outside the membermask, lanes that have diverged and lanes that are gone."""
    run = find("bar.warp.sync").factory(instruction("bar.warp.sync", ["b32"], []))
    run(fake_warp(), FULL, -1)
    run(fake_warp(live=LOW_HALF), LOW_HALF, -1)
    with pytest.raises(Fault, match="not in membermask 0x0000ffff"):
        run(fake_warp(), FULL, LOW_HALF)
    with pytest.raises(Fault, match="0xffff0000, which have diverged"):
        run(fake_warp(), LOW_HALF, -1)
    masks = np.where(np.arange(32) < 16, LOW_HALF, FULL).astype(np.uint32)
    with pytest.raises(Fault, match="different membermasks"):
        run(fake_warp(), FULL, masks)
    with pytest.raises(Fault, match="lane 15 reads lane 16"):
        execute("shfl.sync.down.b32", U32, ["b32", 1, 31, LOW_HALF], np.arange(32), mask=LOW_HALF)


def test_groups_of_lanes_shuffle_with_membermasks_of_their_own():
    masks = np.where(LANE < 16, LOW_HALF, FULL ^ LOW_HALF).astype(np.uint32)
    sources = ["b32", 8, 0x101F, "b32"]
    got = execute("shfl.sync.bfly.b32", U32, sources, LANE, masks)
    assert got.tolist() == [lane ^ 8 for lane in range(32)]
    with pytest.raises(Fault, match="0xffff0000, which have diverged"):
        execute("shfl.sync.bfly.b32", U32, ["b32", 8, 0x101F, -1], LANE, mask=LOW_HALF)


def test_refuses():
    for opcode in (
        "shfl.sync.up.b64",
        "redux.sync.add.f32",
        "vote.sync.ballot.pred",
        "redux.sync.and.u32",
    ):
        with pytest.raises(Unsupported):
            find(opcode).factory(instruction(opcode, ["b32"], ["b32"]))
