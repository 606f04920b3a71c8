"""Run hand-written PTX on the emulator: `run("add.s32 ...", out=tensor, ...)`."""

from __future__ import annotations

from b200.chip.gpu import Gpu
from b200.program.module import Program

HEADER = ".version 8.8\n.target sm_100a\n.address_size 64\n"


def kernel(body: str, params: list[str], smem: str = "", name: str = "k", reqntid: int = 32) -> str:
    """PTX of one kernel. params: ".u64 out" and the like; %p %r %rd %rs %f are declared."""
    listed = ",\n".join(f".param {p}" for p in params)
    return f"""{HEADER}
.extern .shared .align 1024 .b8 dyn[];
{smem}
.visible .entry {name}({listed})
.reqntid {reqntid}, 1, 1
{{
.reg .pred %p<40>;
.reg .b16 %rs<60>;
.reg .b32 %r<200>;
.reg .b64 %rd<100>;
.reg .b128 %rq<4>;
.loc 1 1 0
{body}
ret;
}}
.file 1 "kernel.py"
"""


def own_element(nbytes: int) -> str:
    """PTX that makes %r1 the thread of its CTA, and %rd3 the address of the thread's own element of
    the parameter `out`, which has one of `nbytes` for each thread of the grid.
    """
    return f"""
ld.param.u64 %rd1, [out];
mov.u32 %r1, %tid.x;
mov.u32 %r90, %ctaid.x;
mov.u32 %r91, %ntid.x;
mad.lo.u32 %r92, %r90, %r91, %r1;
mul.wide.u32 %rd2, %r92, {nbytes};
add.u64 %rd3, %rd1, %rd2;
"""


def run(
    text: str | Program,
    *args,
    grid=(1, 1, 1),
    block=(32, 1, 1),
    cluster=(1, 1, 1),
    smem=0,
    gpu=None,
):
    """Launch the only kernel of a module; see Gpu.launch for the arguments."""
    return (gpu or Gpu()).launch(text, None, grid, block, cluster, smem, args)
