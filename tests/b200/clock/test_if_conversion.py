"""Short branches are guards, as ptxas has them.

Which branches stay is from SASS of ptxas 13.0 for sm_100a, of the same arms.
"""

from __future__ import annotations

import pytest
import torch

from b200.clock.if_conversion import guarded
from b200.program.module import Instr, Label
from b200.program.parse import parse
from tests.b200.clock.test_timing import timed
from tests.b200.ptx_support import kernel, run

HEAD = """ld.param.u64 %rd1, [data]; ld.param.u64 %rd2, [out]; mov.u32 %r1, %tid.x;
mov.u32 %r5, dyn; shl.b32 %r6, %r1, 2; add.u32 %r7, %r5, %r6;
mul.wide.u32 %rd3, %r1, 4; add.u64 %rd4, %rd1, %rd3; add.u64 %rd5, %rd2, %rd3;
mov.u32 %r8, %r1; and.b32 %r9, %r1, 1; setp.eq.u32 %p1, %r9, 0;
"""
END = "st.global.u32 [%rd5], %r8;"


def source(body: str) -> str:
    return kernel(HEAD + body + END, [".u64 data", ".u64 out"])


def sums(count: int, first: int = 7) -> str:
    return "".join(f"mad.lo.s32 %r8, %r8, %r8, {first + 2 * i};\n" for i in range(count))


def stores(count: int, space: str = "shared", at: str = "%r7") -> str:
    return "".join(f"st.{space}.u32 [{at}+{1024 * i}], %r8;\n" for i in range(count))


def skip(arm: str) -> str:
    return f"@%p1 bra L1;\n{arm}L1:\n"


def choose(first: str, second: str) -> str:
    return f"@%p1 bra L1;\n{first}bra.uni L2;\nL1:\n{second}L2:\n"


def loads(count: int) -> str:
    return "".join(f"ld.global.u32 %r{20 + i}, [%rd4+{8192 + 4096 * i}];\n" for i in range(count))


def copies(count: int) -> str:
    return "".join(
        f"cp.async.ca.shared.global [%r7+{1024 * i}], [%rd4+{4096 * i}], 16;\n"
        for i in range(count)
    )


BEFORE = "ld.global.u32 %r90, [%rd2+64];\n"
BEHIND = "ld.global.u32 %r90, [%rd2+64];\nadd.s32 %r8, %r8, %r90;\n"
OF_A_LOAD = "ld.global.u32 %r9, [%rd4];\nsetp.eq.u32 %p1, %r9, 0;\n"
PRODUCT = "mad.lo.s32 %r20, %r20, %r20, 7;\n"
LOAD = "ld.global.u32 %r20, [%rd4+8192];\nadd.s32 %r8, %r8, %r20;\n"


@pytest.mark.parametrize(
    "branch, sass",
    [
        (skip(sums(8)), 0),
        (skip(sums(9)), 1),
        (skip(stores(8)), 0),
        (skip(stores(9)), 1),
        (skip(stores(8, "global", "%rd5")), 0),
        (choose(sums(7), sums(7, 101)), 0),
        (choose(sums(8), sums(8, 101)), 2),
        (choose(stores(7, "global", "%rd5"), stores(7, "global", "%rd4")), 0),
        (choose(stores(8, "global", "%rd5"), stores(8, "global", "%rd4")), 2),
        (skip(LOAD), 1),
        (BEFORE + skip(LOAD), 0),
        (skip(LOAD) + BEHIND, 0),
        (OF_A_LOAD + skip(LOAD), 1),
        (BEFORE + OF_A_LOAD + skip(LOAD), 0),
        (OF_A_LOAD + skip(LOAD) + BEHIND, 0),
        (BEFORE + skip(loads(12)), 0),
        (BEFORE + skip(loads(24)), 1),
        (BEFORE + skip(loads(1) + 14 * PRODUCT), 0),
        (BEFORE + skip(loads(1) + 20 * PRODUCT), 1),
        (BEFORE + skip(sums(9)), 1),
        (BEFORE + skip(copies(5)), 0),
        (BEFORE + skip(copies(6)), 1),
        (skip(copies(1)), 1),
        (choose(loads(4), loads(4).replace("%rd4", "%rd5")), 0),
        (BEFORE + skip("rcp.rn.f32 %r8, %r8;\n"), 1),
        (skip(LOAD.replace("global", "shared").replace("%rd4", "%r7")), 0),
        (skip("shfl.sync.bfly.b32 %r8, %r8, 1, 31, -1;\n"), 1),
        (skip("red.global.add.u32 [%rd5], %r8;\n"), 1),
    ],
)
def test_arms_that_stay_behind_a_branch(branch, sass):
    (found,) = parse(source(branch)).kernels.values()
    left = [i for i in guarded(found) if isinstance(i, Instr) and i.mods[0] == "bra"]
    assert len(left) == sass


def test_a_label_that_others_come_to_stays():
    body = "bra L1;\n" + skip(sums(2))
    (found,) = parse(source(body)).kernels.values()
    assert [i.name for i in guarded(found) if isinstance(i, Label)] == ["L1"]


def test_guards_compute_what_branches_did():
    for arms in (skip(sums(3)), choose(sums(2), sums(2, 101))):
        results = []
        for gpu in (timed(), None):
            out = torch.zeros(32, dtype=torch.int32)
            run(source(arms), out, out, smem=16384, gpu=gpu)
            results.append(out.tolist())
        assert results[0] == results[1] != list(range(32))


def test_loads_between_short_arms_go_ahead_of_them():
    """Four loads, each with a store in one of two arms, take about as long as one. An arm of nine
    sums is a branch, so the next load waits for it.
    """
    times = []
    for length in (1, 9):
        body = ""
        for i in range(4):
            arms = choose(stores(1) + sums(length - 1), stores(1, at="%r5") + sums(length - 1, 101))
            arms = arms.replace("L1", f"L{i}a").replace("L2", f"L{i}b")
            part = f"ld.global.u32 %r8, [%rd4+{4096 * i}];\nadd.u32 %r8, %r8, 1;\n{arms}"
            body += part.replace("%r8", f"%r{100 + i}")
        data, out = torch.zeros(8192, dtype=torch.int32), torch.zeros(32, dtype=torch.int32)
        times.append(run(source(body), data, out, smem=16384, gpu=timed()).time.time_us)
    assert times[1] > times[0] + 1.0  # three latencies of DRAM, about half a microsecond each
