"""The wait of one lane for its bulk store says nothing to the others: each crime has a twin."""

import pytest

from b200.checker.finding import ERROR, PORTABILITY
from tests.b200.checker.launched import findings_of
from tests.planted_bugs.case import Source

SEND = (
    "cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r1], 128;",
    "cp.async.bulk.commit_group;",
)
WAIT = "cp.async.bulk.wait_group.read 0;"


def found(*behind: str) -> list:
    """The findings of a warp whose lane 0 sends 128 bytes, and that goes on with `behind`."""
    k = Source(".param .u64 memory", 32)
    for line in (
        "mov.u32 %r0, %tid.x;",
        "mov.u32 %r1, dyn;",
        "ld.param.u64 %rd1, [memory];",
        "shl.b32 %r2, %r0, 2;",
        "add.u32 %r2, %r2, %r1;",
        "setp.ne.u32 %p0, %r0, 0;",
        "st.shared.u32 [%r2], %r0;",
        "fence.proxy.async.shared::cta;",
        "bar.warp.sync -1;",
        "@%p0 bra ON;",
        *SEND,
        *behind,
        "bar.warp.sync -1;",
        "@%p0 bra DONE;",
        "cp.async.bulk.wait_group 0;",
        "DONE: ret;",
    ):
        k(line)
    return findings_of(k)


AGAIN = "st.shared.u32 [%r2], %r0;"


def test_lanes_that_have_not_waited_write_over_the_source():
    (said,) = found(WAIT, "ON:", AGAIN)
    assert said.kind == "race" and said.severity == PORTABILITY
    assert "overwrites what another lane of the warp has just sent" in said.diagnosis
    assert "waited for by lane 0; this access is by lanes 1-31" in str(said)


def test_lanes_that_come_without_the_one_that_has_waited():
    behind = "ON: setp.eq.u32 %p1, %r0, 0;", "@%p1 bra OUT;", AGAIN, "OUT:"
    (said,) = found(WAIT, *behind)
    assert said.severity == ERROR
    assert "overwrites what another lane of the warp has just sent" in said.diagnosis


@pytest.mark.parametrize(
    "behind",
    [
        (WAIT, "ON:", "bar.warp.sync -1;", AGAIN),
        (WAIT, "ON:", "bar.sync 0;", AGAIN),
        (WAIT, AGAIN, "ON:"),  # the lane that has waited, and nobody else
        (WAIT, "ON:", "add.u32 %r2, %r2, 128;", AGAIN),  # somewhere else
    ],
)
def test_its_twins(behind):
    assert not found(*behind)


def test_without_a_wait_it_is_an_error():
    assert found("ON:", AGAIN)[0].severity == ERROR
