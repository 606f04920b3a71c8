"""Arrivals behind copies come one by one, in any order: those of one instruction are counted together
however late they come (PTX ISA 9.7.13.15).
"""

import pytest

from tests.b200.checker.launched import errors_of
from tests.planted_bugs.cta import start


@pytest.mark.parametrize("schedule", [None, "early", "late", "random:1", "random:2"])
@pytest.mark.parametrize("count", [1, 16, 32])
def test_lanes_that_arrive_behind_their_copies(count, schedule):
    k = start(32)
    k.only(0, lambda: k(f"mbarrier.init.shared::cta.b64 [%r1+1024], {count};"))
    k("bar.warp.sync -1;")
    k("mul.wide.u32 %rd8, %r0, 4;")
    k("add.u64 %rd9, %rd0, %rd8;")
    k("cp.async.ca.shared.global [%r3], [%rd9], 4;")
    k("cp.async.mbarrier.arrive.noinc.shared.b64 [%r1+1024];", "arrive")
    again = k.label()
    k("mov.u32 %r8, 0;")  # the crime may hang: look a few times
    k(f"{again}: add.u32 %r8, %r8, 1;")
    k("setp.gt.u32 %p6, %r8, 64;")
    k("@%p6 bra END;")
    k("mbarrier.test_wait.parity.shared::cta.b64 %p20, [%r1+1024], 0;")
    k(f"@!%p20 bra {again};")
    k("END: mov.u32 %r9, 0;")
    found = [f.diagnosis for f in errors_of(k, 1, 64, schedule)]
    assert any("arrive on an mbarrier of count" in text for text in found) is (count < 32), found
