"""The source lines of a PTX text."""

from __future__ import annotations

from b200.program.parse import parse

TEXT = """.version 8.8
.target sm_100a
.address_size 64
.visible .entry lines()
{
	.reg .b32 %r<9>;
	.loc	1 22 14
	mov.u32 %r1, %tid.x;
	// begin inline asm
	.loc	1 22 23
	mov.u32 %r2, 0x0;
	.loc	1 23 23
	mov.u32 %r3, 0x0;
	// end inline asm
	.loc	1 30 1
	mov.u32 %r4, 0x0;
	// begin inline asm
	mov.u32 %r5, 0x0;
	// end inline asm
	ret;
}
.file 1 "/kernels.py"
"""


def test_lines_of_inline_assembly_are_those_of_its_statement():
    """Triton's LLVM numbers the lines of the assembly on: 23 is the line below the statement's."""
    body = parse(TEXT).kernels["lines"].body
    assert [item.loc.line for item in body] == [22, 22, 22, 30, 30, 30]
