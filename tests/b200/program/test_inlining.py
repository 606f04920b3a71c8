"""Device functions, written out where they are called."""

from __future__ import annotations

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


@pytest.mark.parametrize(
    "called, instead, said",
    [
        ("twice, (param0)", "malloc, (param0)", "malloc in a kernel is not in the software B200"),
        ("\ttwice,\n", "\tswap,\n", "the call of swap .it calls itself"),
    ],
    ids=["of the system", "recursion"],
)
def test_other_calls_are_refused(called, instead, said):
    bad = TEXT.replace(called, instead)
    with pytest.raises(EmulatorError, match=said):
        launch(bad)
