"""Modules that were compiled to be linked: names of their own, lines, what one has for the other."""

from __future__ import annotations

import torch

from b200.chip.gpu import Gpu
from b200.program.linking import linked
from b200.program.parse import parse

# nvcc's form; both have an own `$str` and `own`, and the first calls a function of the second.
HEAD = ".version 9.0\n.target sm_100a\n.address_size 64\n"
FIRST = f"""{HEAD}
.extern .func  (.param .b32 func_retval0) other
(
	.param .b32 other_param_0
)
;
.extern .global .align 4 .u32 factor;
.global .align 1 .b8 $str[4] = {{110, 111, 10}};
.weak .global .align 4 .u32 shared_by_both = 5;
.func  (.param .b32 func_retval0) own(
	.param .b32 own_param_0
)
{{
	.reg .b32 	%r<3>;
	.loc	1 7 3
	ld.param.u32 	%r1, [own_param_0];
	add.s32 	%r2, %r1, 1;
	st.param.b32 	[func_retval0], %r2;
	ret;
}}
	// .globl	k
.visible .entry k(
	.param .u64 k_param_0
)
{{
	.reg .b32 	%r<9>;
	.reg .b64 	%rd<5>;
	.loc	1 12 3
	ld.param.u64 	%rd1, [k_param_0];
	ld.global.u32 	%r1, [%rd1];
	{{ // callseq 0, 0
	.param .b32 param0;
	st.param.b32 	[param0], %r1;
	.param .b32 retval0;
	call.uni (retval0), other, (param0);
	ld.param.b32 	%r2, [retval0];
	}} // callseq 0
	{{ // callseq 1, 0
	.param .b32 param0;
	st.param.b32 	[param0], %r2;
	.param .b32 retval0;
	call.uni (retval0), own, (param0);
	ld.param.b32 	%r3, [retval0];
	}} // callseq 1
	ld.global.u32 	%r4, [factor];
	ld.global.u32 	%r5, [shared_by_both];
	ld.global.u8 	%r6, [$str];
	st.global.v4.u32 	[%rd1], {{%r3, %r4, %r5, %r6}};
	ret;
}}
	.file	1 "/first.cu"
"""
SECOND = f"""{HEAD}
.visible .global .align 4 .u32 factor = 3;
.weak .global .align 4 .u32 shared_by_both = 6;
.global .align 1 .b8 $str[4] = {{7, 111, 10}};
.global .align 8 .u64 table[2] = {{generic($str), own}};
.func  (.param .b32 func_retval0) own(
	.param .b32 own_param_0
)
{{
	.reg .b32 	%r<4>;
	ld.param.u32 	%r1, [own_param_0];
	ld.global.u32 	%r2, [factor];
	mul.lo.s32 	%r3, %r1, %r2;
	st.param.b32 	[func_retval0], %r3;
	ret;
}}
.visible .func  (.param .b32 func_retval0) other(
	.param .b32 other_param_0
)
{{
	.reg .b32 	%r<3>;
	.loc	1 40 3
	ld.param.u32 	%r1, [other_param_0];
	{{ // callseq 0, 0
	.param .b32 param0;
	st.param.b32 	[param0], %r1;
	.param .b32 retval0;
	call.uni (retval0), own, (param0);
	ld.param.b32 	%r2, [retval0];
	}} // callseq 0
	st.param.b32 	[func_retval0], %r2;
	ret;
}}
	.file	1 "/second.cu"
"""


def test_two_modules_are_one():
    out = torch.tensor([20, 0, 0, 0], dtype=torch.int32)
    Gpu().launch(linked([FIRST, SECOND]), "k", (1, 1, 1), (1, 1, 1), args=[out])
    assert out.tolist() == [61, 3, 5, 110]  # own(other(20)); the first of the weak ones; "n"


def test_lines_are_of_their_own_file():
    body = parse(linked([FIRST, SECOND])).kernels["k"].body
    places = {str(item.loc) for item in body if getattr(item, "loc", None)}
    assert {"/first.cu:12", "/first.cu:7", "/second.cu:40"} <= places


def test_a_module_alone_stays_as_it_is():
    assert linked([FIRST]) is FIRST


def test_what_nobody_defines_stays_declared():
    text = linked([FIRST, HEAD])
    assert ".extern .func" in text and ".extern .global .align 4 .u32 factor" in text
