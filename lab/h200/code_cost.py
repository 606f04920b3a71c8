"""What instructions cost an SM of a Hopper GPU the first time it executes them.

Straight-line code of so many instructions, executed twice: cycles of the first pass less those of
the second, an instruction. One warp, or four of a CTA; one CTA or one on each SM; after other data
have gone through the L2 or right after another launch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hopper.rewrite import TARGET
from lab.h200.probe import launch

SIZES = (64, 256, 1024, 4096)
COLUMNS = ("instructions", "warps", "CTAs", "L2", "first", "second", "fetch")


@dataclass(frozen=True)
class CodeCost:
    """Cycles an instruction: first pass, second pass, and what the first takes longer."""

    instructions: int
    warps: int
    ctas: int
    cold: bool
    first: float
    second: float

    @property
    def fetch(self) -> float:
        return self.first - self.second


def kernel(instructions: int, target: str = TARGET) -> str:
    """PTX. Parameters: out (two u64 a CTA), data (8 bytes)."""
    body = "\n".join(f"fma.rn.f32 %f{i % 8}, %f{i % 8}, %f60, %f61;" for i in range(instructions))
    total = "".join(f"add.f32 %f62, %f62, %f{i};" for i in range(8))
    return f""".version 8.8
.target {target}
.address_size 64
.visible .entry k(.param .u64 out, .param .u64 data)
{{
    .reg .pred %p<4>; .reg .b32 %r<8>; .reg .f32 %f<64>; .reg .b64 %rd<16>;
    ld.param.u64 %rd1, [out]; ld.param.u64 %rd2, [data];
    mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; setp.eq.u32 %p1, %r1, 0;
    mul.wide.u32 %rd3, %r2, 16; add.u64 %rd1, %rd1, %rd3;
    ld.global.f32 %f60, [%rd2]; ld.global.f32 %f61, [%rd2+4];
    {"".join(f"add.f32 %f{i}, %f60, %f61;" for i in range(8))} mov.f32 %f62, %f60;
    mov.b32 %r3, 0;
    PASS: bar.sync 0; mov.u64 %rd5, %clock64;
    {body}
    {total}
    setp.eq.f32 %p3, %f62, 0f12345678; @%p3 st.global.f32 [%rd2], %f62;
    mov.u64 %rd6, %clock64; sub.u64 %rd6, %rd6, %rd5;
    @%p1 st.global.u64 [%rd1], %rd6; add.u64 %rd1, %rd1, 8;
    add.u32 %r3, %r3, 1; setp.lt.u32 %p2, %r3, 2; @%p2 bra PASS;
    ret;
}}
"""


def measure(instructions: int, warps: int, ctas: int, cold: bool) -> CodeCost:
    import torch

    out = torch.zeros(ctas, 2, dtype=torch.int64, device="cuda")
    data = torch.zeros(64, dtype=torch.uint8, device="cuda")
    launch(kernel(instructions), ctas, 32 * warps, 1, out, data, cold=cold)
    first, second = (out.double().mean(0) / instructions).tolist()
    return CodeCost(instructions, warps, ctas, cold, first, second)


def measure_all() -> list[CodeCost]:
    import torch

    everyone = torch.cuda.get_device_properties(0).multi_processor_count
    return [
        measure(n, warps, ctas, cold)
        for cold in (False, True)
        for ctas in (1, everyone)
        for warps in (1, 4)
        for n in SIZES
    ]


def rows(results: list[CodeCost]) -> Iterator[tuple]:
    for r in results:
        times = (f"{clk:.2f}" for clk in (r.first, r.second, r.fetch))
        yield r.instructions, r.warps, r.ctas, "cold" if r.cold else "warm", *times
