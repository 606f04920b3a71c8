"""Functions of the CUDA runtime that kernels call to launch grids, as PTX.

nvcc leaves them to libcudadevrt (CUDA programming guide, "Toolkit Support for Dynamic
Parallelism"), under names with and without __cudaCDP2. What they come to is two system calls with
plain arguments (chip/memory/system_calls.py). A queue of a kernel has no meaning of its own: grids
run in the order of their launches.
"""

from __future__ import annotations

import re

_DECLARED = re.compile(r"\.extern\s+\.func\s*\([^)]*\)\s*(__cudaCDP2|cuda)(\w+)\s*\(")
_TEXTS = {
    "GetParameterBufferV2": """
.func (.param .b64 result) NAME (.param .b64 kernel, .param .align 4 .b8 grid[12],
    .param .align 4 .b8 block[12], .param .b32 smem)
{
.reg .b64 %kernel, %buffer;
.reg .b32 %size<7>;
ld.param.b64 %kernel, [kernel];
ld.param.b32 %size0, [grid]; ld.param.b32 %size1, [grid+4]; ld.param.b32 %size2, [grid+8];
ld.param.b32 %size3, [block]; ld.param.b32 %size4, [block+4]; ld.param.b32 %size5, [block+8];
ld.param.b32 %size6, [smem];
{
.param .b64 child0; st.param.b64 [child0], %kernel;
.param .b32 child1; st.param.b32 [child1], %size0;
.param .b32 child2; st.param.b32 [child2], %size1;
.param .b32 child3; st.param.b32 [child3], %size2;
.param .b32 child4; st.param.b32 [child4], %size3;
.param .b32 child5; st.param.b32 [child5], %size4;
.param .b32 child6; st.param.b32 [child6], %size5;
.param .b32 child7; st.param.b32 [child7], %size6;
.param .b64 child8;
call.uni (child8), b200_child_grid,
    (child0, child1, child2, child3, child4, child5, child6, child7);
ld.param.b64 %buffer, [child8];
}
st.param.b64 [result], %buffer;
ret;
}""",
    "LaunchDeviceV2": """
.func (.param .b32 result) NAME (.param .b64 buffer, .param .b64 queue)
{
.reg .b64 %buffer;
.reg .b32 %code;
ld.param.b64 %buffer, [buffer];
{
.param .b64 child0; st.param.b64 [child0], %buffer;
.param .b32 child1;
call.uni (child1), b200_launch_child_grid, (child0);
ld.param.b32 %code, [child1];
}
st.param.b32 [result], %code;
ret;
}""",
    "StreamCreateWithFlags": """
.func (.param .b32 result) NAME (.param .b64 out, .param .b32 flags)
{
.reg .b64 %out, %queue;
.reg .b32 %code;
ld.param.b64 %out, [out];
mov.b64 %queue, 1;
st.b64 [%out], %queue;
mov.b32 %code, 0;
st.param.b32 [result], %code;
ret;
}""",
    "StreamDestroy": """
.func (.param .b32 result) NAME (.param .b64 queue)
{
.reg .b32 %code;
mov.b32 %code, 0;
st.param.b32 [result], %code;
ret;
}""",
}


def with_device_runtime(text: str) -> str:
    """A module's text, without comments, with those of these functions that it declares."""
    declared = dict.fromkeys(match.groups() for match in _DECLARED.finditer(text))
    bodies = [
        _TEXTS[name].replace("NAME", prefix + name) for prefix, name in declared if name in _TEXTS
    ]
    return "\n".join((text, *bodies)) if bodies else text
