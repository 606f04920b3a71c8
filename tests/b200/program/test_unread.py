"""An atomic whose result nobody reads is a reduction, as ptxas makes it (RED in SASS)."""

import pytest

import b200.chip.instruction_set  # noqa: F401
from b200.program.module import Instr
from b200.program.parse import parse
from tests.planted_bugs.case import HEADER

BODY = """.visible .entry k(.param .u64 p) {{
.reg .b32 %r<9>;
.reg .b64 %rd<9>;
.reg .pred %p<9>;
ld.param.u64 %rd1, [p];
{}
ret;
}}
"""


def returns(lines: str) -> list[bool]:
    body = parse(HEADER + BODY.format(lines)).kernels["k"].body
    atoms = [ins for ins in body if isinstance(ins, Instr) and ins.mods[0] in ("atom", "red")]
    return [ins.effect.returns for ins in atoms]


@pytest.mark.parametrize(
    "lines, told",
    [
        ("atom.global.add.u32 %r1, [%rd1], 1;", [False]),
        ("atom.global.add.u32 _, [%rd1], 1;", [False]),
        ("red.global.add.u32 [%rd1], 1;", [False]),
        ("atom.global.add.u32 %r1, [%rd1], 1; st.global.u32 [%rd1], %r1;", [True]),
        ("atom.global.add.u32 %r1, [%rd1], %r1;", [True]),
        (
            "atom.global.add.u32 %r1, [%rd1], 1; atom.global.add.u32 %r2, [%rd1], %r1;",
            [True, False],
        ),
        ("atom.global.exch.b32 %r1, [%rd1], 1; setp.eq.u32 %p1, %r1, 0; @%p1 ret;", [True]),
        (
            "{ .reg .b32 t; atom.global.add.u32 t, [%rd1], 1; } { .reg .b32 t; mov.u32 t, 1; }",
            [False],
        ),
        ("atom.global.v2.f32.add {%r1, %r2}, [%rd1], {%r3, %r4}; mov.b32 %r5, %r2;", [True]),
    ],
)
def test_whether_somebody_reads_what_an_atomic_gives(lines, told):
    assert returns(lines) == told
