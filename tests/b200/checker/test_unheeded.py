"""A look at an mbarrier or a flag whose answer decides nothing is no wait: each crime has a twin."""

import pytest

from tests.b200.checker.checks_page import unexplained
from tests.b200.checker.launched import errors_of
from tests.planted_bugs.case import Source

LOOP = "@!%p3 bra AGAIN;"
TRY = "mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r1+1024], 0;"
TEST = "mbarrier.test_wait.parity.shared::cta.b64 %p3, [%r1+1024], 0;"
UNUSED = "selp.u32 %r6, 1, 0, %p3; add.u32 %r7, %r6, 1; xor.b32 %r6, %r7, 3;"


def errors(ctas: int, *body: str, schedule: str | None = None) -> list:
    """The errors of CTAs of 32 threads that execute `body`. %r0: lane, %p0: lane 0, %p1: CTA 0,
    %rd1: 8 KB of zeros, %rd2: the lane's own word there.
    """
    k = Source(".param .u64 memory", 32)
    for line in (
        "mov.u32 %r0, %tid.x;",
        "mov.u32 %r2, %ctaid.x;",
        "mov.u32 %r1, dyn;",
        "ld.param.u64 %rd1, [memory];",
        "mul.wide.u32 %rd3, %r0, 4;",
        "add.u64 %rd2, %rd1, %rd3;",
        "shl.b32 %r3, %r0, 2;",
        "add.u32 %r3, %r3, %r1;",
        "setp.eq.u32 %p0, %r0, 0;",
        "setp.eq.u32 %p1, %r2, 0;",
        *body,
        "DONE: ret;",
    ):
        k(line)
    found = errors_of(k, ctas, 2048, schedule)
    assert not unexplained(found)
    return found


def loaded(*waits: str) -> list:
    """A bulk load, some looks, a pause in which it lands, and reads of what it brings."""
    return errors(
        1,
        "@!%p0 bra READY;",
        "mbarrier.init.shared::cta.b64 [%r1+1024], 1;",
        "fence.mbarrier_init.release.cluster;",
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1+1024], 128;",
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
        "[%r1], [%rd1], 128, [%r1+1024];",
        "READY: bar.sync 0;",
        *waits,
        "ld.shared.u32 %r5, [%r3];",
        "st.global.u32 [%rd2+4096], %r5;",
        f"END: {TRY.replace('%p3', '%p6')}",
        "@!%p6 bra END;",
    )


@pytest.mark.parametrize("waits", [(TRY,), (TEST,), (TRY, TRY), (TRY, UNUSED)])
def test_a_look_at_an_mbarrier_is_no_wait(waits):
    first, *_ = loaded(*waits)
    assert "goes on whatever its mbarrier." in first.diagnosis and first.kind == "race"
    assert "has an answer that nothing depends on" in str(first)


@pytest.mark.parametrize(
    "waits",
    [
        (f"AGAIN: {TRY}", LOOP),
        (f"AGAIN: {TEST}", "selp.u32 %r6, 1, 0, %p3; setp.eq.u32 %p4, %r6, 0; @%p4 bra AGAIN;"),
        (TRY, f"AGAIN: {TRY}", LOOP),
        (f"AGAIN: {TRY}", LOOP, TRY.replace("%p3", "%p5")),
    ],
)
def test_its_twins(waits):
    assert not loaded(*waits)


ONE_MORE = "add.u32 %r9, %r9, 1; setp.lt.u32 %p4, %r9, 100;"
TRIES = "mov.u32 %r9, 0; AGAIN:", f"@%p3 bra OUT; {ONE_MORE} @%p4 bra AGAIN;"  # a look between


def tried(look: str, *behind: str) -> tuple[str, ...]:
    """Looks until one passes, but not for ever. behind: what comes where all have failed."""
    return TRIES[0], look, TRIES[1], *behind, "OUT:"


ELAPSED = "mov.u32 %r7, %clock; sub.u32 %r7, %r7, %r9; setp.lt.u32 %p4, %r7, 10000;"


@pytest.mark.parametrize(
    "waits",
    [
        tried(TRY),
        tried(TRY, "nanosleep.u32 20;"),
        (TRIES[0], TRY, ONE_MORE, "not.pred %p4, %p4; or.pred %p5, %p3, %p4; @!%p5 bra AGAIN;"),
        (TRY, "@%p3 bra OUT;", TRY, "@%p3 bra OUT;", TRY, "OUT:"),
        ("mov.u32 %r9, %clock;", f"AGAIN: {TRY} @%p3 bra OUT; {ELAPSED} @%p4 bra AGAIN; OUT:"),
    ],
)
def test_some_tries_are_no_wait(waits):
    first, *_ = loaded(*waits)
    assert "goes on whatever its mbarrier." in first.diagnosis and first.kind == "race"
    assert "a loop that ends after some tries is no wait" in str(first)


LIMITED = (  # %r20 tries; for ever if it is 0, which the loop itself looks at
    "mov.u32 %r9, 0;",
    f"AGAIN: setp.eq.u32 %p7, %r20, 0; {TRY} @%p3 bra OUT; @%p7 bra AGAIN;",
    "add.u32 %r9, %r9, 1; setp.lt.u32 %p4, %r9, %r20; @%p4 bra AGAIN; OUT:",
)


def tried_up_to(compare: str) -> tuple[str, ...]:
    """Looks as long as the bound %r20 is, for instance, "ge" the count of tries."""
    more = f"add.u32 %r9, %r9, 1; setp.{compare}.u32 %p4, %r20, %r9;"
    return "mov.u32 %r9, 0;", f"AGAIN: {TRY} @%p3 bra OUT; {more} @%p4 bra AGAIN; OUT:"


PACKED = "mov.b64 %rd9, {%r9, %r9}; setp.lt.u64 %p4, %rd9, 100000;"
COMPARED = f"AGAIN: {TRY} @%p3 bra OUT; {{}} @!%p4 bra AGAIN; OUT:"


@pytest.mark.parametrize(
    "waits",
    [
        (TRIES[0], TRY, f"@%p3 bra OUT; {ONE_MORE} {PACKED} @%p4 bra AGAIN; OUT:"),
        (COMPARED.format("mov.u32 %r7, -1; setp.gt.u32 %p4, %r7, 5;"),),  # as an unsigned number
        ("mov.u32 %r20, 5;", *tried_up_to("gt")),
        (COMPARED.format("mov.u32 %r7, 2; or.b32 %r7, %r7, 1; setp.eq.u32 %p4, %r7, 3;"),),
        (COMPARED.format("setp.ne.u32 %p5, 1, 1; setp.eq.or.u32 %p4, 1, 1, %p5;"),),
    ],
)
def test_loops_that_end_by_what_they_compute(waits):
    first, *_ = loaded(*waits)
    assert "goes on whatever its mbarrier." in first.diagnosis and first.kind == "race"


PAUSED = "@%p3 bra ON; nanosleep.u32 100; ON: mov.u32 %r9, 0;"
TWICE = "setp.ge.and.u32 %p4, %r9, 2, %p3;"
INVERTED = "not.b32 %r6, %r6; setp.ne.u32 %p4, %r6, 0;"
UNLESS_NEGATIVE = (  # counts down to 0, but not from -1
    "setp.lt.s32 %p7, %r20, 0; @%p7 bra AGAIN; sub.u32 %r20, %r20, 1;"
    "setp.eq.u32 %p4, %r20, 0; @%p4 bra OUT;"
)
FLOATS = "selp.f32 %f6, 0f3F800000, 0fBF800000, %p3; setp.ge.f32 %p4, %f6, 0f00000000;"


@pytest.mark.parametrize(
    "waits",
    [
        ("ld.global.u32 %r20, [%rd1+4000];", *LIMITED),
        (TRY, PAUSED, f"AGAIN: @%p3 bra OUT; nanosleep.u32 20; {TRY} bra AGAIN; OUT:"),
        ("mov.u32 %r9, 0;", f"AGAIN: {TRY} {ONE_MORE} {TWICE} @!%p4 bra AGAIN;"),
        ("ld.global.u32 %r20, [%rd1+4000]; add.u32 %r20, %r20, -1;", *tried_up_to("ge")),
        ("mov.u32 %r20, -1;", f"AGAIN: {TRY} @%p3 bra OUT; {UNLESS_NEGATIVE} bra AGAIN; OUT:"),
        (f"AGAIN: {TRY} {FLOATS} @!%p4 bra AGAIN;",),
        (f"AGAIN: {TRY} selp.u16 %h6, 1, -1, %p3; setp.gt.u16 %p4, %h6, 1; @%p4 bra AGAIN;",),
        (f"AGAIN: {TRY} selp.b32 %r6, -1, 0, %p3; {INVERTED} @%p4 bra AGAIN;",),
        (COMPARED.format("mov.u32 %r7, -1; setp.gt.s32 %p4, %r7, 5;"),),
        (COMPARED.format("setp.ne.u32 %p5, 1, 1; setp.eq.and.u32 %p4, 1, 1, %p5;"),),
    ],
)
def test_loops_that_end_by_the_look_alone(waits):
    assert not loaded(*waits)


NO_PREDICATE = "mov.u32 %r9, 0; setp.eq.u32 %p5, %r9, 1;"


@pytest.mark.parametrize(
    "waits",
    [
        tried(TRY, "trap;"),
        tried(TRY, f"LAST: {TRY} @!%p3 bra LAST;"),
        tried(TRY, "nanosleep.u32 20; mov.u32 %r9, 0; bra AGAIN;"),
        (*tried(TRY), "setp.eq.u32 %p4, %r9, 100; @%p4 bra DONE;"),
        (*tried(TRY), "selp.u32 %r7, 1, 0, %p3; st.global.u32 [%rd2+4224], %r7;"),
        (NO_PREDICATE, f"AGAIN: {TRY} or.pred %p4, %p3, %p5; @!%p4 bra AGAIN;"),
    ],
)
def test_the_twins_of_some_tries(waits):
    assert not loaded(*waits)


FOUND = "setp.ne.u32 %p3, %r6, 0;"
ACQUIRE = "ld.acquire.gpu.global.u32 %r{}, [%rd1+2048];"
RELAXED = "ld.relaxed.gpu.global.u32 %r{}, [%rd1+2048];"
FENCE = "fence.acq_rel.gpu;"
ONCE_MORE = f"{ACQUIRE.format(6)} {FOUND}"
EITHER = "setp.ne.u32 %p4, %r7, 0; or.pred %p5, %p3, %p4;"


def flagged(*waits: str) -> list:
    """CTA 0 stores and sets a flag; CTA 1 looks at it and reads."""
    return errors(
        2,
        "@!%p1 bra READER;",
        "st.global.u32 [%rd2], %r0;",
        "bar.warp.sync -1;",
        "@%p0 st.release.gpu.global.u32 [%rd1+2048], 1;",
        "bra DONE;",
        "READER: mov.u32 %r6, 1;",
        *waits,
        "ld.global.u32 %r5, [%rd2];",
        "st.global.u32 [%rd2+4096], %r5;",
    )


@pytest.mark.parametrize(
    "waits",
    [
        (ACQUIRE.format(7),),
        (RELAXED.format(7), FENCE),
        tried(ACQUIRE.format(6) + FOUND),
        (*tried(RELAXED.format(6) + FOUND), FENCE),
    ],
)
def test_a_look_at_a_flag_is_no_wait(waits):
    (found,) = flagged(*waits)
    assert found.kind == "global"
    assert "missing: a loop around the ld." in str(found) and "nothing depends on" in str(found)


@pytest.mark.parametrize(
    "waits",
    [
        (f"AGAIN: {ACQUIRE.format(6)}", FOUND, LOOP),
        (f"AGAIN: {RELAXED.format(6)}", FOUND, LOOP, FENCE),
        # By coherence the second look finds what the first has found (8.10)
        (f"AGAIN: {RELAXED.format(6)}", FOUND, LOOP, ACQUIRE.format(7)),
        (ACQUIRE.format(6), FOUND, "@!%p3 bra DONE;"),
        tried(ACQUIRE.format(6) + FOUND, "bra DONE;"),
        (*tried(ACQUIRE.format(6) + FOUND), "setp.eq.u32 %p4, %r6, 0; @%p4 bra DONE;"),
        (ACQUIRE.format(6), FOUND, PAUSED, f"AGAIN: @%p3 bra OUT; {ONCE_MORE} bra AGAIN; OUT:"),
        # Of two flags of one writer, either tells
        (f"AGAIN: {ACQUIRE.format(6)} {ACQUIRE.format(7)}", FOUND, EITHER, "@!%p5 bra AGAIN;"),
    ],
)
def test_the_twins_of_a_flag(waits):
    assert not flagged(*waits)


def counted(step: str, more: str, first: str = "mov.u32 %r9, 0;") -> tuple[str, ...]:
    """Looks that go on counting %r9 by `step`, as long as `more` leaves %p4 true."""
    return first, f"AGAIN: {TRY} @%p3 bra OUT; {step} {more} @%p4 bra AGAIN; OUT:"


TO_THE_SIGN = "not.b32 %r10, %r9; shr.u32 %r10, %r10, 31; add.u32 %r9, %r9, %r10;"  # c += ~c >> 31
TO_A_HUNDRED = "add.u32 %r9, %r9, 1; min.u32 %r9, %r9, 100;"
TO_ZERO = "setp.gt.s32 %p5, %r9, 0; selp.s32 %r10, -1, 0, %p5; add.s32 %r9, %r9, %r10;"
DOUBLED = "shl.b32 %r9, %r9, 1; min.u32 %r9, %r9, 256;"


@pytest.mark.parametrize(
    "waits",
    [
        counted(TO_THE_SIGN, "setp.lt.u32 %p4, %r9, -2147483647;"),
        counted(TO_A_HUNDRED, "setp.ne.u32 %p4, %r9, 101;"),
        counted(TO_ZERO, "setp.gt.s32 %p4, %r9, -1;", "mov.u32 %r9, 1000;"),
        counted(TO_ZERO, "setp.gt.s32 %p4, %r9, -1;", "ld.global.u32 %r9, [%rd1];"),
        counted(DOUBLED, "setp.le.u32 %p4, %r9, 256;", "mov.u32 %r9, 8;"),
    ],
)
def test_a_count_that_comes_to_rest_before_its_bound_is_a_wait(waits):
    assert not loaded(*waits)


@pytest.mark.parametrize(
    "waits",
    [
        counted(TO_THE_SIGN, "setp.lt.u32 %p4, %r9, -2147483648;"),
        counted(TO_THE_SIGN, "setp.ne.u32 %p4, %r9, 5;"),
        counted(TO_A_HUNDRED, "setp.ne.u32 %p4, %r9, 100;"),
        counted(TO_ZERO, "setp.gt.s32 %p4, %r9, 0;", "mov.u32 %r9, 1000;"),
        counted(DOUBLED, "setp.lt.u32 %p4, %r9, 256;", "mov.u32 %r9, 8;"),
    ],
)
def test_a_count_that_comes_to_its_bound_first_is_no_wait(waits):
    first, *_ = loaded(*waits)
    assert "goes on whatever its mbarrier." in first.diagnosis and first.kind == "race"
