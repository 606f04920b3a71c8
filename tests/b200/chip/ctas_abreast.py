"""Runs a kernel with CTAs abreast and with one CTA after the other, for tests."""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch

from b200.checker import Checker
from b200.chip.abreast.order import SideBySide
from b200.chip.gpu import Gpu
from b200.chip.machine import Machine
from b200.errors import EmulatorError
from tests.b200.ptx_support import kernel, run
from tests.planted_bugs.reports import ADDRESS

CTAS, THREADS = 9, 64

# %rd1 `out`, %rd2 `given`, %r1 the CTA, %r2 the thread, %r3 shared memory, %r4 the thread's number
# in the grid, %r5 its own word of shared memory, %rd3 and %rd4 its own words of `out` and `given`.
HEAD = """
ld.param.u64 %rd1, [out];
ld.param.u64 %rd2, [given];
mov.u32 %r1, %ctaid.x;
mov.u32 %r2, %tid.x;
mov.u32 %r3, dyn;
mad.lo.u32 %r4, %r1, 64, %r2;
shl.b32 %r5, %r2, 2;
add.u32 %r5, %r5, %r3;
mul.wide.u32 %rd9, %r4, 4;
add.u64 %rd3, %rd1, %rd9;
add.u64 %rd4, %rd2, %rd9;
"""
LOAD = "ld.global.u32 %r10, [%rd4];"
STORE = "st.global.u32 [%rd3], %r10;"
OTHER = """
xor.b32 %r11, %r5, 252;
ld.shared.u32 %r10, [%r11];
"""


@dataclass
class Outcome:
    said: str
    counters: dict[str, int]
    out: list[int]
    given: list[int]
    order: SideBySide

    def shows(self) -> tuple:
        return self.said, self.counters, self.out, self.given


def outcome(body: str, most: int, check: bool, ctas: int = CTAS) -> Outcome:
    out = torch.zeros(2 * ctas * THREADS, dtype=torch.int32)
    given = torch.arange(2 * ctas * THREADS, dtype=torch.int32) * 7919 % 4093
    gpu, order = Gpu(), SideBySide(most, pays=0)
    gpu.machine = Machine(gpu.memory, order, (Checker(),) if check else ())
    text = kernel(HEAD + body, [".u64 out", ".u64 given"], reqntid=THREADS)
    counters = {}
    try:
        done = run(text, out, given, grid=(ctas, 1, 1), block=(THREADS, 1, 1), smem=1024, gpu=gpu)
        said = "\n".join([*map(str, done.findings or ()), *done.incomplete])
        counters = done.counters
    except EmulatorError as error:
        said = f"{error.kind}: {error}"
    said = re.sub("0x[0-9a-f]{9,}", "ADDRESS", ADDRESS.sub("ADDRESS", said))
    return Outcome(said, counters, out.tolist(), given.tolist(), order)


def compare(body: str, check: bool, ctas: int = CTAS) -> Outcome:
    abreast = outcome(body, 64, check, ctas)
    one_by_one = outcome(body, 0, check, ctas)
    assert one_by_one.order.ran == 0
    assert abreast.shows() == one_by_one.shows()
    return abreast
