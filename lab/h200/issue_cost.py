"""What instructions cost a sub-core of a Hopper GPU: arithmetic, conversions, and what a warp
issues for all its lanes.

One CTA; a loop of CHAINS independent chains of the same instructions, by one warp a sub-core and by
four. Cycles an instruction and sub-core: with four warps what its pipe takes, with one and a single
chain its latency. Two kinds of instruction in one chain show whether they have a pipe of their own:
then both together take the longer of the two, or two issues, and else the sum.
"""

from __future__ import annotations

import torch

from hopper.rewrite import TARGET
from lab.h200 import rig

CHAINS, UNROLLED, ROUNDS = 8, 8, 64
# {0}: the register of a chain, b32; %r60, %r61: values that are not known to the compiler.
ARITHMETIC = {
    "fma.f32": "fma.rn.f32 {f}, {f}, %f60, %f61;",
    "fma.f16x2": "fma.rn.f16x2 {0}, {0}, %r60, %r61;",
    "add.f16x2": "add.rn.f16x2 {0}, {0}, %r60;",
    "fma.f16": "fma.rn.f16 {h}, {h}, %h60, %h61;",
    "fma.bf16x2": "fma.rn.bf16x2 {0}, {0}, %r60, %r61;",
    "lop3": "lop3.b32 {0}, {0}, %r60, %r61, 0x96;",
    "prmt": "prmt.b32 {0}, {0}, %r60, %r61;",
    "mad.lo.s32": "mad.lo.s32 {0}, {0}, %r60, %r61;",
    "cvt.f32.f16": "{{ .reg .b16 a, b; mov.b32 {{a, b}}, {0}; cvt.f32.f16 {f}, a; }}",
    "cvt.f16.f32": "{{ .reg .b16 a; cvt.rn.f16.f32 a, {f}; mov.b32 {0}, {{a, a}}; }}",
    "cvt.f16x2.f32": "cvt.rn.f16x2.f32 {0}, {f}, %f60;",
    "cvt.f16x2.e4m3x2": "{{ .reg .b16 a, b; mov.b32 {{a, b}}, {0}; cvt.rn.f16x2.e4m3x2 {0}, a; }}",
    "cvt.e4m3x2.f32": "{{ .reg .b16 a; cvt.rn.satfinite.e4m3x2.f32 a, {f}, %f60;"
    " mov.b32 {0}, {{a, a}}; }}",
    "cvt.f32.s32": "cvt.rn.f32.s32 {f}, {0};",
    "cvt.s32.f32": "cvt.rzi.s32.f32 {0}, {f};",
    "ex2": "ex2.approx.ftz.f32 {f}, {f};",
    "shfl": "shfl.sync.bfly.b32 {0}, {0}, 1, 31, 0xffffffff;",
}
PAIRS = (
    ("fma.f32", "lop3"),
    ("fma.f16x2", "lop3"),
    ("fma.f16x2", "fma.f32"),
    ("cvt.f32.f16", "lop3"),
    ("cvt.f32.f16", "fma.f32"),
    ("cvt.f16x2.e4m3x2", "lop3"),
    ("cvt.f16x2.e4m3x2", "fma.f16x2"),
    ("cvt.f16x2.f32", "lop3"),
    ("cvt.f16x2.f32", "fma.f32"),
    ("mad.lo.s32", "lop3"),
    ("mad.lo.s32", "fma.f32"),
    ("ex2", "fma.f32"),
)
# Of a warp: by one lane, by all at one address, by all at an address each.
ADDRESSED = {
    "mbarrier.init": "mbarrier.init.shared::cta.b64 [{}], 0xffff;",
    "mbarrier.arrive": "mbarrier.arrive.shared::cta.b64 _, [{}];",
    "mbarrier.arrive.expect_tx": "mbarrier.arrive.expect_tx.shared::cta.b64 _, [{}], 0;",
    "atom.shared.add": "atom.shared.add.u32 %r70, [{}], 1;",
    "red.global.add.u32": "red.relaxed.gpu.global.add.u32 [{g}], %r60;",
    "red.global.add.f32": "red.relaxed.gpu.global.add.f32 [{g}], %f60;",
}


def arithmetic(names: tuple[str, ...], chains: int, target: str = TARGET) -> str:
    """PTX. Parameters: out (cycles, u64 a warp), data (32 bytes)."""
    step = [
        _moved(ARITHMETIC[name].format(f"%r{i}", f=f"%f{i}", h=f"%h{i}"), i)
        for name in names
        for i in range(chains)
    ]
    return _kernel("\n".join(step * UNROLLED), target)


def _moved(text: str, i: int) -> str:
    """A chain is one register, whatever type an instruction has: moves, which SASS has not."""
    if f"%f{i}" in text:
        before = f"mov.b32 %f{i}, %r{i};"
        after = f"mov.b32 %r{i}, %f{i};" if _writes(text, f"%f{i}") else ""
        return before + text + after
    if f"%h{i}" in text:
        return f"mov.b32 {{%h{i}, %h50}}, %r{i}; {text} mov.b32 %r{i}, {{%h{i}, %h50}};"
    return text


def _writes(text: str, register: str) -> bool:
    return any(
        part.split(",")[0].split()[-1] == register for part in text.split(";") if "," in part
    )


def addressed(name: str, lanes: str, target: str = TARGET) -> str:
    """PTX, as arithmetic. lanes: "one", "same" (all at one address) or "each" (8 bytes apart)."""
    shared = "%r50" if lanes != "each" else "%r51"
    text = ADDRESSED[name].format(shared, g="%rd5" if lanes != "each" else "%rd6")
    text = f"@%p1 {text}" if lanes == "one" else text
    return _kernel("\n".join([text] * UNROLLED), target)


def _kernel(step: str, target: str) -> str:
    use = "".join(f"xor.b32 %r62, %r62, %r{i};" for i in range(CHAINS))
    start = "".join(f"add.u32 %r{i}, %r60, {i};" for i in range(CHAINS))
    body = f"""ld.param.u64 %rd1, [out]; ld.param.u64 %rd2, [data];
    mov.u32 %r72, %tid.x; and.b32 %r73, %r72, 31; shr.u32 %r74, %r72, 5;
    setp.eq.u32 %p1, %r73, 0;
    mov.b32 %r50, dyn; mad.lo.u32 %r50, %r74, 512, %r50; mad.lo.u32 %r51, %r73, 8, %r50;
    mul.wide.u32 %rd4, %r74, 512; add.u64 %rd5, %rd2, %rd4;
    mul.wide.u32 %rd4, %r73, 8; add.u64 %rd6, %rd5, %rd4;
    ld.global.u32 %r60, [%rd2]; ld.global.u32 %r61, [%rd2+4];
    mov.b32 %f60, %r60; mov.b32 %f61, %r61; mov.b32 {{%h60, %h61}}, %r60; mov.b32 %r62, 0;
    mbarrier.init.shared::cta.b64 [%r51], 0xfffff;
    {start}
    mov.b32 %r63, 0;
    bar.sync 0;
    ROUND:
    setp.ne.u32 %p2, %r63, 4; @%p2 bra STEP; mov.u64 %rd7, %clock64; STEP:
    {step}
    add.u32 %r63, %r63, 1; setp.lt.u32 %p3, %r63, {ROUNDS + 4}; @%p3 bra ROUND;
    mov.u64 %rd8, %clock64; sub.u64 %rd8, %rd8, %rd7;
    {use}
    mul.wide.u32 %rd9, %r74, 8; add.u64 %rd10, %rd1, %rd9;
    @%p1 st.global.u64 [%rd10], %rd8;
    setp.eq.u32 %p4, %r62, 0x12345; @%p4 st.global.u32 [%rd1], %r62;"""
    return rig.ptx(body, target=target)


def cycles(text: str, warps: int) -> float:
    """Cycles of an instruction of each warp, where none takes turns: of the slowest warp."""
    out, data = rig.zeros(warps), torch.full((1 << 14,), 0x3C, dtype=torch.uint8, device="cuda")
    rig.launch(text, rig.row(1, 32 * warps, 1, rig.SMEM), out, data)
    return out.max().item() / (ROUNDS * UNROLLED)


def results() -> rig.Results:
    """throughput: cycles an instruction (of a pair: for both) and sub-core, of four warps; latency:
    of one warp with one chain.
    """
    for names in [(name,) for name in ARITHMETIC] + list(PAIRS):
        many = cycles(arithmetic(names, CHAINS), 16) / (CHAINS * 4)
        one = cycles(arithmetic(names, 1), 1)
        yield {"name": " + ".join(names), "throughput": many, "latency": one}
    for name in ADDRESSED:
        for lanes in ("one", "same", "each"):
            text = addressed(name, lanes)
            many, one = cycles(text, 16) / 4, cycles(text, 1)
            yield {"name": f"{name} {lanes}", "throughput": many, "latency": one}
