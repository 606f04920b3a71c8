"""The first cause of a deadlock is what nothing else holds up, whichever warp comes first."""

from __future__ import annotations

import pytest

from b200 import EmulatorError
from tests.b200.ptx_support import kernel, run

INIT = "@%p9 mbarrier.init.shared::cta.b64 [%r9+{}], 1;\n"
WAIT = (
    "W{label}: mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r9+{at}], 0;\n@!%p1 bra W{label};\n"
)
ARRIVE = "mbarrier.arrive.shared::cta.b64 _, [%r9+{}];\n"
FIRST, SECOND, THIRD = 0, 64, 128  # of 0x400; apart, so that none is named by a row


def program(*roles: tuple[int | None, int | None]) -> str:
    """A warp a role, which waits for the first mbarrier and then arrives on the second."""
    body = (
        "mov.u32 %r9, dyn;\nmov.u32 %r1, %tid.x;\nsetp.eq.u32 %p9, %r1, 0;\nshr.u32 %r2, %r1, 5;\n"
    )
    body += "".join(INIT.format(at) for at in (FIRST, SECOND, THIRD)) + "bar.sync 0;\n"
    for warp, (waits, arrives) in enumerate(roles):
        body += f"setp.ne.u32 %p2, %r2, {warp};\n@%p2 bra E{warp};\n"
        body += "" if waits is None else WAIT.format(label=warp, at=waits)
        body += "" if arrives is None else ARRIVE.format(arrives)
        body += f"ret;\nE{warp}:\n"
    return kernel(body, [], reqntid=32 * len(roles))


def causes(*roles: tuple[int | None, int | None]) -> list[str]:
    with pytest.raises(EmulatorError) as caught:
        run(program(*roles), block=(32 * len(roles), 1, 1), smem=256)
    lines = str(caught.value).partition("who waits")[0].splitlines()
    starts = ("  likely cause: ", "    the same of ", "  or: ", "  held up by the above: ")
    return [line.strip() for line in lines if line.startswith(starts)]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_what_others_wait_behind_comes_first(order):
    """Nobody arrives on SECOND; who waits for it would arrive on FIRST."""
    roles = (FIRST, None), (SECOND, FIRST)
    root, held_up = causes(*(roles[i] for i in order))
    assert root == "likely cause: mbarrier at 0x440: nobody has ever arrived on it"
    assert held_up == "held up by the above: mbarrier at 0x400, waited for at kernel.py:1"


def test_two_that_wait_for_each_other_are_both_causes():
    found = causes((FIRST, None), (SECOND, THIRD), (THIRD, SECOND))
    assert [line.split(":")[0] for line in found] == [
        "likely cause",
        "the same of mbarrier at 0x480",
        "held up by the above",
    ]


def test_the_end_of_a_cluster_is_held_up_by_a_warp_that_waits_before_it():
    body = (
        "mov.u32 %r9, dyn;\nmov.u32 %r1, %tid.x;\nsetp.eq.u32 %p9, %r1, 0;\n"
        f"{INIT.format(0)}bar.sync 0;\nsetp.lt.u32 %p2, %r1, 32;\n@%p2 bra END;\n"
        f"{WAIT.format(label=1, at=0)}"
        "END:\nbarrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\n"
    )
    with pytest.raises(EmulatorError) as caught:
        run(kernel(body, [], reqntid=64), block=(64, 1, 1), smem=64)
    lines = str(caught.value).splitlines()
    assert lines[1].startswith("  likely cause: mbarrier at 0x400: nobody has ever arrived")
    assert any(line.startswith("  held up by the above: the cluster barrier") for line in lines)
