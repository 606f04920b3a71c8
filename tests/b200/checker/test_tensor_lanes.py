"""Accesses of single lanes of tensor memory: tcgen05.cp of 4x256b, tcgen05.shift, and MMAs with
disable-output-lane. What they leave out keeps what it had (PTX ISA 9.7.16.9, 9.7.16.10.9, 9.7.16.11).
"""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import b200
from b200.checker.tensor import tensor_shadow
from b200.checker.tensor.tensor_shadow import TensorShadow
from b200.chip.gpu import Gpu
from tests.b200.checker.checks_page import unexplained
from tests.planted_bugs.core import BARRIER, commit, multiply, one_warp

LANES = 128


def found(body, lanes=32, grid=1, change=None) -> list[tuple[str, str]]:
    """(kind, diagnosis) of what is found in a warp's kernel, notes left out; it stores the first
    `lanes` lanes of column 0. change: of the listing.
    """
    gpu = Gpu()
    gpu.machine = b200.machine(gpu.memory)
    k, words = one_warp(body, lanes), torch.ones(4096, dtype=torch.int32)
    if change is not None:
        change(k)
    launch = gpu.launch(k.text("k"), None, (grid, 1, 1), (32, 1, 1), (1, 1, 1), 0x8000, (words,))
    findings = [f for f in launch.findings or () if f.severity != "note"]
    assert not unexplained(findings)
    return [(f.kind, f.diagnosis) for f in findings]


def copy(k, shape="4x256b", row="0"):
    k(f"shl.b32 %r15, {row}, 16; add.u32 %r15, %r15, %r4;")
    k(f"tcgen05.cp.cta_group::1.{shape} [%r15], %rd21;")


def wait(k):
    commit(k, 1)
    k.wait(f"%r1+{BARRIER + 8}", 0)
    k("tcgen05.fence::after_thread_sync;")


def unwritten(lanes: str) -> list[tuple[str, str]]:
    return [
        (
            "uninitialised",
            f"tcgen05.ld reads lanes {lanes} of tensor memory that nothing has written",
        )
    ]


@pytest.mark.parametrize("row, left", [("0", "1-31"), ("5", "0-4, 6-31"), ("31", "0-30")])
def test_a_copy_of_4x256b_writes_one_lane_of_each_quarter(row, left):
    assert found(lambda k: copy(k, row=row)) == unwritten(left)


def test_who_uses_the_written_lane_only():
    assert found(copy, lanes=1) == []


def test_copies_of_all_lanes_are_whole():
    def body(k):
        for row in range(32):
            copy(k, row=str(row))

    assert found(body) == []


@pytest.mark.parametrize("shape", ["64x128b.warpx2::02_13", "32x128b.warpx4", "128x128b"])
def test_the_other_shapes_write_all_lanes(shape):
    assert found(lambda k: copy(k, shape)) == []


@pytest.mark.parametrize("shape, right", [("4x256b", False), ("128x256b", True)])
def test_an_operand_of_one_lane(shape, right):
    """An MMA takes A from tensor memory: lanes that no copy has written are not there."""

    def body(k):
        k("add.u32 %r17, %r4, 32;")
        k(f"tcgen05.cp.cta_group::1.{shape} [%r17], %rd21;")
        multiply(k, 0, a="[%r17]")

    text = "tcgen05.mma reads tensor memory that nothing has written"
    assert found(body) == ([] if right else [("uninitialised", text)])
    assert found(body, lanes=1) == []  # row 0 of D comes of row 0 of A


@pytest.mark.parametrize("mask, left", [("0xffffff00", "8-31"), ("0x0000fff0", "4-15")])
def test_lanes_that_an_mma_leaves_out(mask, left):
    def body(k):
        k(f"mov.u32 %r14, {mask};")
        multiply(k, 0, lanes="{%r14, %r14, %r14, %r14}, ")

    assert found(body) == unwritten(left)
    assert found(body, lanes=4) == []


@pytest.mark.parametrize("second, right", [("0xffffff00", True), ("0xffff0000", False)])
def test_an_mma_adds_to_the_lanes_that_it_writes(second, right):
    """The second one's lanes must have a sum."""

    def body(k):
        for mask, adds in (("0xffffff00", False), (second, True)):
            k(f"mov.u32 %r14, {mask};")
            multiply(k, 0, lanes="{%r14, %r14, %r14, %r14}, ", adds=adds)

    reads = "tcgen05.mma reads tensor memory that nothing has written"
    assert (("uninitialised", reads) in found(body, lanes=16)) is not right


def test_two_mmas_of_different_lanes_are_one_sum():
    def body(k):
        for mask in ("0xffffff00", "0x000000ff"):
            k(f"mov.u32 %r14, {mask};")
            multiply(k, 0, lanes="{%r14, %r14, %r14, %r14}, ")

    assert found(body) == []


def test_a_shift_keeps_the_last_lane():
    """Lane 31 of each quarter, which no sum was ever put into, is not written by a shift either."""

    def body(k):
        k("mov.u32 %r14, 0x80000000;")
        multiply(k, 0, lanes="{%r14, %r14, %r14, %r14}, ")
        k("tcgen05.shift.cta_group::1.down [%r4];")

    assert ("uninitialised", "tcgen05.shift reads tensor memory that nothing has written") in found(
        body
    )


@pytest.mark.parametrize("first, right", [(0, False), (4, False), (8, True)])
def test_a_sum_over_its_own_operand(first, right):
    """D is 8 columns from 0 on, and A 8 from `first` on."""

    def body(k):
        k(f"add.u32 %r17, %r4, {first};")
        k("tcgen05.cp.cta_group::1.128x256b [%r17], %rd21;")
        multiply(k, 0, a="[%r17]")

    text = "tcgen05.mma writes its accumulator over A, which it reads"
    assert found(body) == ([] if right else [("product", text)])


@pytest.mark.parametrize("shift, right", [(".ashift", False), ("", True)])
def test_an_mma_that_shifts_its_operand_writes_it(shift, right):
    """A is loaded while the MMA, which shifts its rows, is under way (9.7.16.10.9)."""

    def body(k):
        k("add.u32 %r17, %r4, 32;")
        k("tcgen05.cp.cta_group::1.128x256b [%r17], %rd21;")
        wait(k)
        multiply(k, 0, a="[%r17]", mods=shift)

    def read(k):
        (at,) = (i for i, line in enumerate(k.lines) if line.startswith("L5: mbarrier.try_wait"))
        k.lines[at:at] = [
            "add.u32 %r17, %r4, 32;",
            "tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r18}, [%r17];",
        ]

    text = "tcgen05.ld reads tensor memory before the tcgen05.mma that writes it has committed"
    assert (("race", text) not in found(body, change=read)) is right


@pytest.mark.parametrize("waits", [True, False])
def test_a_store_beside_a_copy_of_one_lane(waits):
    """The store reaches the lane that the copy, under way, writes."""

    def issue(k):
        multiply(k, 0)
        copy(k)

    def kernel(k):
        store = (
            "tcgen05.st.sync.aligned.32x32b.x1.b32 [%r4], {%r0};",
            "tcgen05.wait::st.sync.aligned;",
        )
        into = "tcgen05.ld" if waits else "L4: mbarrier.try_wait"
        (at,) = (i for i, line in enumerate(k.lines) if line.startswith(into))
        k.lines[at:at] = store

    expected = ("race", "tcgen05.st overwrites tensor memory that tcgen05.cp may still use")
    assert (expected in found(issue, change=kernel)) is not waits


@pytest.mark.parametrize("columns, right", [(8, True), (16, False)])
def test_integers_of_too_many_columns(columns, right):
    """Sums of bytes in 8 columns, of which as many or twice as many are added up: no NaN tells."""

    def body(k):
        i8 = 2 << 4 | 1 << 7 | 1 << 10 | 8 >> 3 << 17 | 128 >> 4 << 24  # signed, N = 8, M = 128
        k(f"tcgen05.mma.cta_group::1.kind::i8 [%r4], %rd20, %rd22, {i8}, %p5;")

    def more(k):
        (at,) = (i for i, line in enumerate(k.lines) if line.startswith("tcgen05.ld"))
        registers = [f"%r{100 + i}" for i in range(columns)]
        loaded = f"{{{', '.join(registers)}}}, [%r4];"
        k.lines[at] = f"tcgen05.ld.sync.aligned.32x32b.x{columns}.b32 {loaded}"
        sums = [f"add.u32 %r5, %r5, {register};" for register in registers]
        k.lines[at + 2 : at + 2] = ["mov.u32 %r5, 7;", *sums]

    text = "tcgen05.ld reads columns [8, 16) of tensor memory that nothing has written"
    assert found(body, change=more) == ([] if right else [("uninitialised", text)])


def test_a_cluster_that_writes_another_lane_is_checked():
    """CTA 1 takes the steps of CTA 0, with another lane: it does not follow."""

    def body(k):
        k("mov.u32 %r16, %ctaid.x;")
        copy(k, row="%r16")

    (text,) = (text for kind, text in found(body, lanes=1, grid=2) if kind == "uninitialised")
    assert "reads lanes 0-31 of" in text  # 1 to 31 in CTA 0, 0 and 2 to 31 in CTA 1


writes = st.tuples(
    st.sampled_from(["lane", "mask", "whole", "half"]),
    st.integers(0, 31),
    st.integers(0, 2**32 - 1),
    st.integers(0, 3),
    st.integers(1, 3),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(writes, max_size=12))
def test_the_shadow_against_one_of_single_lanes(steps):
    shadow, plain = TensorShadow(), np.zeros((LANES, 8), int)
    for number, (what, row, mask, first, width) in enumerate(steps, 1):
        columns = slice(first, first + width)
        if what == "lane":
            lanes = np.arange(LANES) % 32 == row
            halves, chosen = tensor_shadow.of(range(row, LANES, 32))
        elif what == "mask":
            lanes = np.tile(mask >> np.arange(32) & 1, 4).astype(bool)
            halves, chosen = tensor_shadow.only(lanes)
        else:
            height = 16 if what == "half" else 32
            lanes = np.arange(LANES) // height == row % (LANES // height)
            halves, chosen = (
                tensor_shadow.halves_of(height * (row % (LANES // height)), height),
                None,
            )
        read = shadow.writers(halves, columns, chosen)
        assert set(read.ravel().tolist()) == set(plain[lanes, columns].ravel().tolist())
        shadow.wrote(number, halves, columns, chosen)
        plain[lanes, columns] = number
        halves = slice(2 * (row % 4), 2 * (row % 4) + 2)
        np.testing.assert_array_equal(
            shadow.empty(halves, slice(0, 8)), plain[32 * (row % 4) :][:32] == 0
        )
        assert shadow.latest(halves, slice(0, 8)) == plain[32 * (row % 4) :][:32].max()
