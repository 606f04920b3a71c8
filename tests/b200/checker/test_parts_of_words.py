"""Accesses of bytes and halves: those of one place race, those of one word alone do not."""

import pytest

from tests.b200.checker.launched import errors_of
from tests.planted_bugs.case import Source

STRIDES = (1, 4)  # from the place of one lane to that of the next, in places


def errors(body: list[str], ctas: int, schedule: str | None = None) -> list:
    """What is wrong with CTAs of two warps in all. %r0: the thread of the grid. %r1: shared memory.
    %rd1: 4 KB of zeros.
    """
    k = Source(".param .u64 memory", 64 // ctas)
    for line in (
        "mov.u32 %r0, %tid.x;",
        "mov.u32 %r9, %ctaid.x;",
        f"mad.lo.u32 %r0, %r9, {64 // ctas}, %r0;",
        "mov.u32 %r1, dyn;",
        "ld.param.u64 %rd1, [memory];",
        "cvta.to.global.u64 %rd1, %rd1;",
        "and.b32 %r4, %r0, 31;",
        "shr.u32 %r5, %r0, 5;",
        *body,
    ):
        k(line)
    return errors_of(k, ctas, 1024, schedule)


def places(space: str, nbytes: int, stride: int, lane: str, reg: int) -> list[str]:
    """The address of a lane's place: %r or %rd `reg`."""
    at = [f"mul.lo.u32 %r{reg}, {lane}, {nbytes * stride};"]
    if space == "shared":
        return [*at, f"add.u32 %r{reg}, %r{reg}, %r1;"]
    return [*at, f"cvt.u64.u32 %rd{reg}, %r{reg};", f"add.u64 %rd{reg}, %rd{reg}, %rd1;"]


CASES = [
    (space, bits, stride, same)
    for space in ("shared", "global")
    for bits in (8, 16)
    for stride in STRIDES
    for same in (True, False)
    # A byte by itself in global memory is missed (docs/reference/memory-order.md).
    if (space, bits, stride, same) != ("global", 8, 4, True)
]


@pytest.mark.parametrize("schedule", [None, "late"])
@pytest.mark.parametrize(("space", "bits", "stride", "same"), CASES)
def test_one_warp_reads_where_another_stores(space, bits, stride, same, schedule):
    """Warp 1 stores what warp 0 reads with nothing in between, or the neighbouring places."""
    reg = "r" if space == "shared" else "rd"
    beside = 0 if same else bits // 8 * (1 if stride > 1 else 32)
    start = "st.shared.v4.u32 [%r8], {0, 0, 0, 0};"  # all that is read, before a barrier
    found = errors(
        [
            *("mul.lo.u32 %r8, %r0, 16;", "add.u32 %r8, %r8, %r1;", start, "bar.sync 0;"),
            *places(space, bits // 8, stride, "%r4", 6),
            "mov.u16 %h2, 7;",
            "setp.eq.u32 %p1, %r5, 0;",
            f"@%p1 ld.{space}.u{bits} %h1, [%{reg}6];",
            f"@!%p1 st.{space}.u{bits} [%{reg}6+{beside}], %h2;",
        ],
        1 if space == "shared" else 2,
        schedule,
    )
    assert bool(found) == same


@pytest.mark.parametrize("execution", [0, 20, 29, 30])
def test_a_read_of_halves_is_known_however_often_it_was_executed(execution):
    """A warp reads 30 rows of halves by one instruction; another CTA stores to one row, or behind."""
    found = errors(
        [
            *places("global", 2, 2, "%r4", 6),
            "mov.u16 %h2, 7;",
            "setp.eq.u32 %p1, %r5, 0;",
            "@!%p1 bra STORE;",
            "mov.u32 %r10, 0;",
            "LOOP:",
            "ld.global.u16 %h1, [%rd6];",
            "add.u64 %rd6, %rd6, 128;",
            "add.u32 %r10, %r10, 1;",
            "setp.lt.u32 %p2, %r10, 30;",
            "@%p2 bra LOOP;",
            "bra DONE;",
            "STORE:",
            f"st.global.u16 [%rd6+{128 * execution}], %h2;",
            "DONE:",
        ],
        2,
    )
    assert bool(found) == (execution < 30)
