"""What a loop computes to the same result each round costs it nothing, as ptxas has it before.

What stands in the loop is from SASS of ptxas 13.0 for sm_100a, of the same sources.
"""

from __future__ import annotations

import pytest

from tests.b200.clock.test_timing import clocks

ROUNDS = 64
VALUES = 12


def loop(*values: str) -> float:
    """Clk of a round of a loop with a barrier that stores so many values."""
    stores = "".join(
        f"{value} st.volatile.shared.u32 [%r7+{4 * i}], %r13;" for i, value in enumerate(values)
    )
    body = f"""mov.u32 %r7, dyn; mov.u32 %r1, %tid.x; mul.lo.u32 %r8, %r1, %r1; mov.b32 %r9, 0;
        setp.eq.u32 %p2, %r1, 77;
        ROUND: bar.sync 0; mov.b32 %r13, %r8; {stores}
        add.u32 %r9, %r9, 1; setp.lt.u32 %p1, %r9, {ROUNDS}; @%p1 bra ROUND;"""
    return clocks(body, smem=1024)[0] / ROUNDS


def values(source: str, guard: str = "") -> list[str]:
    return [
        f"{guard} mul.lo.u32 %r13, {source}, %r1; {guard} xor.b32 %r13, %r13, {17 + 3 * i};"
        for i in range(VALUES)
    ]


@pytest.mark.parametrize(
    "source, guard",
    [("%r8", ""), ("%r8", "@!%p2"), ("%r13", "")],
    ids=["of a register", "guarded", "of the value before"],
)
def test_values_of_what_the_loop_does_not_write_cost_it_nothing(source, guard):
    assert loop(*values(source, guard)) == pytest.approx(loop(*[""] * VALUES), abs=1)


@pytest.mark.parametrize("written", ["", "@%p2 mov.b32 %r8, %r9;"], ids=["counter", "by a guard"])
def test_values_of_what_it_writes_cost_at_least_their_issue(written):
    source = "%r8" if written else "%r9"
    assert loop(*values(source), written) - loop(*[""] * VALUES, written) >= VALUES
