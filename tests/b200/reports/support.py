"""Programs that launch kernels with a race, a fault or a deadlock, for `b200 run`."""

from __future__ import annotations

from tests.b200.ptx_support import kernel

# Two CTAs write their numbers to one address.
RACE = kernel(
    "ld.param.u64 %rd1, [a]; mov.u32 %r1, %ctaid.x;\n.loc 1 7 0\nst.global.u32 [%rd1], %r1;",
    [".u64 a"],
    name="racy",
)
CLEAN = kernel(
    "ld.param.u64 %rd1, [a]; mov.u32 %r1, %ctaid.x; mul.wide.u32 %rd2, %r1, 4;"
    " add.u64 %rd1, %rd1, %rd2; st.global.u32 [%rd1], %r1;",
    [".u64 a"],
    name="clean",
)
FAULT = kernel("ld.param.u64 %rd1, [a]; ld.global.u32 %r1, [%rd1+1];", [".u64 a"], name="faulty")
BARRIER = ".shared .align 8 .b8 bar[8];"
DEADLOCK = kernel(
    """mov.u32 %r3, bar; mov.u32 %r0, %tid.x; setp.ne.u32 %p0, %r0, 0; @%p0 bra END;
    mbarrier.init.shared::cta.b64 [%r3], 1;
    WAIT: mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r3], 0; @!%p1 bra WAIT;
    END:""",
    [".u64 a"],
    smem=BARRIER,
    name="hanging",
)
# The race, and then, in the second CTA, a loop without end that has an effect, now and then.
ENDLESS = kernel(
    "ld.param.u64 %rd1, [a]; mov.u32 %r1, %ctaid.x; st.global.u32 [%rd1], %r1;"
    " setp.eq.u32 %p0, %r1, 0; @%p0 bra END;"
    " mov.u32 %r3, 0; AGAIN: add.u32 %r3, %r3, 1; and.b32 %r4, %r3, 255; setp.ne.u32 %p0, %r4, 0; @%p0 bra AGAIN;"
    " atom.global.add.u32 %r2, [%rd1+64], 1; bra AGAIN; END:",
    [".u64 a"],
    name="endless",
)


def launching(module: str) -> str:
    """The head of a program: launch(TEXT) in the B200 that is installed. module: torch, or numpy,
    which a process of its own imports in a twentieth of the time: whose array the kernels have.
    """
    return f"""
import os, signal, sys, time, {module}, b200
RACE, CLEAN, FAULT, DEADLOCK, ENDLESS = {[RACE, CLEAN, FAULT, DEADLOCK, ENDLESS]!r}
x = {module}.zeros(64, dtype={module}.int32)
def launch(text):
    return b200._runtime.gpu.launch(text, None, (2, 1, 1), (32, 1, 1), args=[x])
"""


LAUNCH, WITHOUT_TORCH = launching("torch"), launching("numpy")
