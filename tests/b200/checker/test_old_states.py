"""A wait by the state of an arrive, the phases of which are over: each crime has a twin."""

import pytest

from b200.checker.finding import PORTABILITY
from tests.b200.checker.checks_page import unexplained
from tests.b200.checker.launched import findings_of
from tests.planted_bugs.case import Source

ARRIVE = "mbarrier.arrive.shared::cta.b64 {}, [%r1];"
LOOK = "mbarrier.test_wait.shared::cta.b64 %p3, [%r1], {};"


def findings(*first: str) -> list:
    """Findings of two warps: thread 0 arrives once, in phase 0, thread 32 so often that `phases`
    are over at barrier 1; `first` is what thread 0 does then.
    """
    k = Source(".param .u64 out", 64)
    for line in (
        "mov.u32 %r0, %tid.x;",
        "mov.u32 %r1, dyn;",
        "ld.param.u64 %rd1, [out];",
        "setp.eq.u32 %p0, %r0, 0; setp.ge.u32 %p1, %r0, 32; setp.eq.u32 %p2, %r0, 32;",
        "@%p0 mbarrier.init.shared::cta.b64 [%r1], 2;",
        "bar.sync 0;",
        "@%p1 bra OTHER;",
        f"@%p0 {ARRIVE.format('%rd2')}",
        *first,
        "bra DONE;",
        "OTHER:",
        f"@%p2 {ARRIVE.format('_')}",
        "bar.sync 1;",
        f"@%p2 {ARRIVE.format('_')}",
        f"@%p2 {ARRIVE.format('_')}",
        "bar.sync 2;",
        "DONE: ret;",
    ):
        k(line)
    return findings_of(k)


WAIT = LOOK.format("%rd2")
USED = "selp.u32 %r5, 1, 0, %p3; @%p0 st.global.u32 [%rd1], %r5;"


@pytest.mark.parametrize(
    "look", [WAIT, f"AGAIN: {WAIT} add.u32 %r9, %r9, 1; setp.lt.u32 %p4, %r9, 3; @%p4 bra AGAIN;"]
)
def test_a_state_two_phases_old(look):
    found = [
        f
        for f in findings("bar.sync 1;", "bar.sync 2;", "@!%p0 bra DONE;", look, USED)
        if "two phases old" in f.diagnosis
    ]
    (one,) = found
    assert one.severity == PORTABILITY and not unexplained(found)
    assert "of phase 0; 2 phases" in str(one)


@pytest.mark.parametrize(
    "first",
    [
        ("bar.sync 1;", "@!%p0 bra ON;", WAIT, USED, "ON: bar.sync 2;"),  # the phase before
        ("@!%p0 bra ON;", WAIT, USED, "ON: bar.sync 1;", "bar.sync 2;"),  # the current one
        # a state that the third phase gives
        ("bar.sync 1;", "bar.sync 2;", "@!%p0 bra DONE;", ARRIVE.format("%rd2"), WAIT, USED),
    ],
)
def test_its_twins(first):
    assert not [f for f in findings(*first) if "phases old" in f.diagnosis]
