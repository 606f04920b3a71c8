"""Device functions, written out where they are called."""

from __future__ import annotations

import re

import pytest
import torch

import b200
from b200.chip.gpu import Gpu
from b200.errors import EmulatorError

# LLVM's form of calls: a pair of words in and out, a function that calls another, an early return.
TEXT = """.version 8.8
.target sm_100a
.address_size 64
.func (.param .align 4 .b8 func_retval0[8]) swap(.param .align 4 .b8 swap_param_0[8])
;
.func (.param .b32 func_retval0) twice(.param .b32 twice_param_0)
{
	.reg .pred %p<2>;
	.reg .b32 %r<9>;
	.loc 1 7 0
	ld.param.b32 %r1, [twice_param_0];
	setp.lt.u32 %p1, %r1, 4;
	@%p1 bra $L1;
	add.u32 %r2, %r1, %r1;
	st.param.b32 [func_retval0], %r2;
	ret;
$L1:
	st.param.b32 [func_retval0], 0;
	ret;
}
.func (.param .align 4 .b8 func_retval0[8]) swap(.param .align 4 .b8 swap_param_0[8])
{
	.reg .b32 %r<9>;
	.loc 1 20 0
	ld.param.v2.b32 {%r1, %r2}, [swap_param_0];
	{ // callseq 2, 0
	.param .b32 param0;
	.param .b32 retval0;
	st.param.b32 [param0], %r2;
	call.uni (retval0),
	twice,
	(
	param0
	);
	ld.param.b32 %r3, [retval0];
	} // callseq 2
	st.param.b32 [func_retval0], %r3;
	st.param.b32 [func_retval0+4], %r1;
	ret;
}
.visible .entry calls(.param .u64 out)
.reqntid 32
{
	.reg .b32 %r<9>;
	.reg .b64 %rd<9>;
	.loc 1 30 0
	mov.u32 %r1, %tid.x;
	add.u32 %r2, %r1, 100;
	{ // callseq 0, 0
	.param .align 4 .b8 param0[8];
	.param .align 4 .b8 retval0[8];
	st.param.v2.b32 [param0], {%r2, %r1};
	call.uni (retval0), swap, (param0);
	ld.param.u64 %rd1, [out];
	ld.param.v2.b32 {%r3, %r4}, [retval0];
	} // callseq 0
	{ // callseq 1, 0
	.param .b32 param0;
	.param .b32 retval0;
	st.param.b32 [param0], %r4;
	call.uni (retval0), twice, (param0);
	ld.param.b32 %r5, [retval0];
	} // callseq 1
	mul.wide.u32 %rd2, %r1, 8;
	add.s64 %rd3, %rd1, %rd2;
	st.global.v2.u32 [%rd3], {%r3, %r5};
	ret;
}
.file 1 "/kernels.cu"
"""


def launch(text: str) -> torch.Tensor:
    gpu = Gpu()
    gpu.machine = b200.machine(gpu.memory)
    out = torch.zeros(64, dtype=torch.int32)
    gpu.launch(text, "calls", (1, 1, 1), (32, 1, 1), args=[out])
    assert gpu.launches[-1].findings == []
    return out.view(32, 2)


def test_a_call_of_a_call():
    """Lanes return from both places; a pair of words goes in and comes back."""
    thread = torch.arange(32, dtype=torch.int32)
    out = launch(TEXT)
    assert torch.equal(out[:, 0], torch.where(thread < 4, 0, 2 * thread))
    assert torch.equal(out[:, 1], 2 * (thread + 100))


def test_a_fault_in_a_function_has_its_line():
    bad = TEXT.replace("add.u32 %r2, %r1, %r1;", "ld.local.b32 %r2, [%r1+4096];")
    with pytest.raises(EmulatorError, match=r"^/kernels.cu:7: "):
        launch(bad)


def test_a_fat_binary_has_no_comments():
    """nvcc strips them from the PTX that it puts into a program."""
    thread = torch.arange(32, dtype=torch.int32)
    out = launch(re.sub(r"//[^\n]*", "", TEXT))
    assert torch.equal(out[:, 0], torch.where(thread < 4, 0, 2 * thread))
    assert torch.equal(out[:, 1], 2 * (thread + 100))


# As LLVM calls `table[thread % 2](thread)`; `negate` has another type, and is called by its name.
POINTERS = """.version 8.8
.target sm_100a
.address_size 64
.global .align 8 .u64 table[2] = {twice, thrice};
.func (.param .b32 func_retval0) twice(.param .b32 twice_param_0)
{
	.reg .b32 %r<3>;
	ld.param.b32 %r1, [twice_param_0];
	shl.b32 %r2, %r1, 1;
	st.param.b32 [func_retval0], %r2;
	ret;
}
.func (.param .b32 func_retval0) thrice(.param .b32 thrice_param_0)
{
	.reg .b32 %r<3>;
	ld.param.b32 %r1, [thrice_param_0];
	mul.lo.s32 %r2, %r1, 3;
	st.param.b32 [func_retval0], %r2;
	ret;
}
.visible .entry calls(.param .u64 out)
.reqntid 32
{
	.reg .pred %p<2>;
	.reg .b32 %r<9>;
	.reg .b64 %rd<9>;
	mov.u32 %r1, %tid.x;
	and.b32 %r2, %r1, 1;
	mul.wide.u32 %rd1, %r2, 8;
	mov.u64 %rd2, table;
	add.s64 %rd2, %rd2, %rd1;
	ld.global.u64 %rd3, [%rd2];
	mov.u64 %rd6, thrice;
	mov.b32 %r4, -1;
	{
	.param .b32 param0;
	.param .b32 retval0;
	st.param.b32 [param0], %r1;
	prototype_0 : .callprototype (.param .b32 _) _ (.param .b32 _);
	call (retval0), %rd3, (param0), prototype_0;
	ld.param.b32 %r3, [retval0];
	}
	setp.ne.u64 %p1, %rd3, %rd6;
	{
	.param .b32 param0;
	.param .b32 retval0;
	st.param.b32 [param0], %r3;
	st.param.b32 [retval0], %r4;
	@%p1 call.uni (retval0), thrice, (param0);
	ld.param.b32 %r4, [retval0];
	}
	ld.param.u64 %rd4, [out];
	mul.wide.u32 %rd5, %r1, 8;
	add.s64 %rd4, %rd4, %rd5;
	st.global.v2.u32 [%rd4], {%r3, %r4};
	ret;
}
"""


def test_calls_through_a_pointer_and_under_a_guard():
    thread = torch.arange(32, dtype=torch.int32)
    even = thread % 2 == 0
    out = launch(POINTERS)
    assert torch.equal(out[:, 0], torch.where(even, 2 * thread, 3 * thread))
    assert torch.equal(out[:, 1], torch.where(even, 6 * thread, -1))


def test_a_pointer_to_no_function_is_refused():
    with pytest.raises(EmulatorError, match="through a pointer that leads to no function"):
        launch(POINTERS.replace("{twice, thrice}", "{twice, 0}"))


def recursive(calls: int) -> str:
    """f(n) = 1 for n < 2, else the sum of `calls` times f(n - 1), plus n."""
    call = "{ .param .b32 p0; .param .b32 r0; st.param.b32 [p0], %r2; call.uni (r0), f, (p0);"
    call += " ld.param.b32 %r4, [r0]; } add.s32 %r3, %r3, %r4;"
    return f""".version 8.8
.target sm_100a
.address_size 64
.func (.param .b32 func_retval0) f(.param .b32 f_param_0)
{{
	.reg .pred %p<2>;
	.reg .b32 %r<9>;
	ld.param.b32 %r1, [f_param_0];
	mov.b32 %r3, 1;
	setp.lt.s32 %p1, %r1, 2;
	@%p1 bra $done;
	add.s32 %r2, %r1, -1;
	mov.b32 %r3, %r1;
	{call * calls}
$done:
	st.param.b32 [func_retval0], %r3;
	ret;
}}
.visible .entry calls(.param .u64 out)
.reqntid 32
{{
	.reg .b32 %r<9>;
	.reg .b64 %rd<9>;
	mov.u32 %r1, %tid.x;
	and.b32 %r1, %r1, 3;
	{{ .param .b32 p0; .param .b32 r0; st.param.b32 [p0], %r1; call.uni (r0), f, (p0);
	ld.param.b32 %r4, [r0]; }}
	ld.param.u64 %rd1, [out];
	mov.u32 %r1, %tid.x;
	mul.wide.u32 %rd2, %r1, 8;
	add.s64 %rd1, %rd1, %rd2;
	st.global.u32 [%rd1], %r4;
	ret;
}}
"""


@pytest.mark.parametrize("calls", [1, 3])
def test_a_function_that_calls_itself_a_few_times(calls):
    def f(n: int) -> int:
        return 1 if n < 2 else n + calls * f(n - 1)

    assert launch(recursive(calls))[:, 0].tolist() == [f(thread % 4) for thread in range(32)]


@pytest.mark.parametrize(
    "called, instead, said",
    [
        ("twice, (param0)", "cudaGraphSetConditional, (param0)", "conditional nodes of graphs"),
        ("\ttwice,\n", "\tswap,\n", "the call of swap .it calls itself"),
    ],
    ids=["of the system", "recursion"],
)
def test_other_calls_are_refused(called, instead, said):
    bad = TEXT.replace(called, instead)
    with pytest.raises(EmulatorError, match=said):
        launch(bad)
