"""What programmatic dependent launch saves between two launches of a queue.

`python -m lab h200_dependent` (dependent_model.py) puts the clock's times beside those.

A CTA of 192 threads does `before` steps (a product and a sum, one after the other), executes
griddepcontrol.wait, and does `work` steps. off: launched without the attribute. The others are with
it: no trigger (griddepcontrol.launch_dependents), the trigger as the first instruction, just
before the wait, or as the last one. us: a launch, of many in a queue.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from hopper.timing import queue_us
from lab.h200 import rig

THREADS, CALLS, ROUNDS = 192, 200, 7  # 175 cells of 7 rounds, 10 to 15 ms each: 20 seconds
TRIGGERS = ("none", "first", "before the wait", "last")  # by the kernel's parameter `early`
HOW = ("off", *TRIGGERS)
PLACES = (  # CTAs of a cluster, of a grid, KB of shared memory of a CTA
    *((1, 64, 216), (1, 132, 8), (1, 132, 216), (1, 528, 216)),
    *((4, 64, 216), (4, 132, 8), (4, 132, 216)),
)
STEPS = ((0, 20), (0, 2000), (250, 1000), (500, 1000), (500, 2000))  # before, work


@dataclass(frozen=True)
class Asked:
    cluster: int
    grid: int
    smem_kb: int
    before: int
    work: int


@dataclass(frozen=True)
class DependentTime(Asked):
    how: str
    us: float


def _loop(name: str, count: str) -> str:
    """Steps by fours, as nvcc unrolls them, and what is left by ones. `count` is zero behind it."""
    step = "fma.rn.f32 %f1, %f1, 0f3F800347, 0f3F000000;\n    "

    def by(number: int, here: str, next_: str) -> str:
        return f"""{here}: setp.lt.u32 %p1, {count}, {number}; @%p1 bra {next_};
    {step * number}sub.u32 {count}, {count}, {number}; bra {here};
    """

    return f"""{by(4, name, f"{name}_REST")}{by(1, f"{name}_REST", f"{name}_END")}{name}_END:"""


def _trigger(number: int) -> str:
    return f"setp.eq.s32 %p1, %r2, {number}; @%p1 griddepcontrol.launch_dependents;"


KERNEL = rig.ptx(
    f"""ld.param.u64 %rd1, [out]; ld.param.u32 %r1, [work]; ld.param.u32 %r2, [early];
    ld.param.u32 %r3, [before]; mov.u32 %r4, %tid.x; cvt.rn.f32.u32 %f1, %r4;
    {_trigger(1)}
    {_loop("BEFORE", "%r3")}
    {_trigger(2)}
    griddepcontrol.wait;
    {_loop("WORK", "%r1")}
    {_trigger(3)}
    setp.eq.f32 %p2, %f1, 0f4640E400; @!%p2 bra END;
    ld.shared.f32 %f2, [dyn]; add.f32 %f1, %f1, %f2; st.global.f32 [%rd1], %f1;
    END:""",
    THREADS,
    (".u64 out", ".u32 work", ".u32 early", ".u32 before"),
)


def asked() -> Iterator[Asked]:
    for place in PLACES:
        for steps in STEPS:
            yield Asked(*place, *steps)


def results() -> rig.Results:
    out, image = rig.zeros(1), rig.image_of(KERNEL)
    for of in asked():
        for how in HOW:
            shape = rig.row(of.grid, THREADS, of.cluster, of.smem_kb << 10, how != "off")
            image.prepare(shape)
            early = TRIGGERS.index(how) if how in TRIGGERS else 0
            params = struct.pack("<QIII", out.data_ptr(), of.work, early, of.before)
            us = queue_us(lambda _: image.enqueue(shape, params), CALLS, ROUNDS)  # noqa: B023
            yield asdict(DependentTime(**asdict(of), how=how, us=us))
