"""Lines of code that a header of a library brings: the program's own line stands for them.

The `.loc` lines are nvcc 13.0's for a cub::BlockLoad: each `inlined_at` names the place of the call,
by file, line and column, and that place has a `.loc` of its own, which goes on outwards.
"""

from __future__ import annotations

import pytest

from b200.program.module import Instr
from b200.program.parse import parse
from tests.b200.ptx_support import HEADER

CUB = "/usr/local/cuda-13.0/include/cccl/cub"
BODY = """
.visible .entry k() {
.reg .b32 %r<3>;
.loc 1 6 3
mov.u32 %r0, 0;
.loc 2 1139 5, function_name $a, inlined_at 1 6 3
.loc 2 901 7, function_name $b, inlined_at 2 1139 5
.loc 3 344 10, function_name $c, inlined_at 2 901 7
.loc 3 287 3, function_name $d, inlined_at 3 344 10
mov.u32 %r1, 1;
.loc 4 9 2, function_name $e, inlined_at 1 7 3
mov.u32 %r2, 2;
ret;
}
"""


@pytest.mark.parametrize(
    "helper, last", [("/home/me/include/tile.cuh", "tile.cuh:9"), (f"{CUB}/util.cuh", "my.cu:7")]
)
def test_the_first_line_outside_of_libraries_stands_for_an_instruction(helper, last):
    files = ["/home/me/my.cu", f"{CUB}/block/block_load.cuh", f"{CUB}/thread_load.cuh", helper]
    listed = "".join(f'.file {i} "{file}"\n' for i, file in enumerate(files, 1))
    (kernel,) = parse(HEADER + BODY + listed).kernels.values()
    lines = [str(i.loc).rpartition("/")[2] for i in kernel.body if isinstance(i, Instr)]
    assert lines[:3] == ["my.cu:6", "my.cu:6", last]
