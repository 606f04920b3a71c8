"""The order of a block is that of ptxas, not of the source.

Expected orders and counts are from SASS of ptxas 13.0 for sm_100a, of the same sources.
"""

from __future__ import annotations

import pytest
import torch

from b200.clock.writer import TimedWriter
from b200.program.module import Instr
from b200.program.parse import parse
from b200.program.translate import translate
from tests.b200.clock.test_timing import timed
from tests.b200.ptx_support import run

HEAD = ".version 8.8\n.target sm_100a\n.address_size 64\n"
LOADS = 16


def source(body: str, bounds: str = "", registers: int = 700) -> str:
    return f"""{HEAD}
.visible .entry k(.param .u64 data, .param .u64 out) {bounds} {{
.reg .b32 %r<20>; .reg .b64 %rd<20>; .reg .f32 %f<{registers}>; .reg .pred %p<4>;
.shared .align 16 .b8 own[16384];
ld.param.u64 %rd1, [data]; ld.param.u64 %rd2, [out];
mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mad.lo.u32 %r4, %r2, %r3, %r1;
mul.wide.u32 %rd3, %r4, 4; add.u64 %rd4, %rd1, %rd3; add.u64 %rd5, %rd2, %rd3;
mov.u32 %r5, own; shl.b32 %r6, %r1, 2; add.u32 %r7, %r5, %r6; mov.f32 %f0, 0f00000000;
{body}
ret; }}
"""


def taken(text: str) -> list[list[str]]:
    """First words of the accesses, sums, divisions and shuffles of each block, in the order of the
    clock.
    """
    program = parse(text)
    found: list[list[Instr]] = []

    class Noting(TimedWriter):
        def _groups(self, body):
            groups = super()._groups(body)
            found.append([g[0].ins for g in groups])
            return groups

    translate(program, next(iter(program.kernels.values())), Noting)
    words = ("ld", "st", "add", "fma", "shfl", "atom", "bar", "rcp", "sqrt", "div")
    return [
        [i.mods[0] for i in block if i.mods[0] in words and not i.has("param", "u32", "u64")]
        for block in found
    ]


def sums(kind: str, first: str, stride: int, count: int, batched: bool) -> str:
    """`count` loads, each with its sum: by turns, or all loads first."""
    loads = [f"ld.{kind}.f32 %f{i + 1}, [{first}+{i * stride}];" for i in range(count)]
    adds = [f"fma.rn.f32 %f0, %f{i + 1}, 0f3FC00000, %f0;" for i in range(count)]
    turns = [line for pair in zip(loads, adds, strict=True) for line in pair]
    return "\n".join(loads + adds if batched else turns)


@pytest.mark.parametrize("kind, at", [("global", "%rd4"), ("shared", "%r7")])
def test_loads_and_uses_by_turns_take_as_long_as_all_loads_first(kind, at):
    """Two sources with the same SASS: 16 LDG or LDS, then 16 FFMA."""
    stride = 4 * 256 * 8 if kind == "global" else 512
    times = []
    for batched in (False, True):
        body = sums(kind, at, stride, LOADS, batched) + "\nst.global.f32 [%rd5], %f0;"
        data, out = torch.ones(stride * LOADS // 4 + 2048), torch.zeros(8 * 128)
        launch = run(source(body), data, out, grid=(8, 1, 1), block=(128, 1, 1), gpu=timed())
        times.append(launch.time.time_us)
        if kind == "global":
            assert (out == LOADS * 1.5).all()
    assert times[0] == pytest.approx(times[1], rel=0.03)


# --- what a load passes ---------------------------------------------------------------------------
def by_turns(load: str, store: str) -> list[str]:
    """Accesses of two rounds of load, sum, store."""
    rounds = [
        f"{load.format(0)}; fma.rn.f32 %f3, %f1, %f1, %f1; {store.format(0)};",
        f"{load.format(1).replace('%f1', '%f2')}; fma.rn.f32 %f4, %f2, %f2, %f2;"
        f"{store.format(1).replace('%f3', '%f4')};",
    ]
    return [w for w in taken(source("\n".join(rounds)))[0] if w in ("ld", "st")]


BY_TURNS, LOADS_FIRST = ["ld", "st", "ld", "st"], ["ld", "ld", "st", "st"]


@pytest.mark.parametrize(
    "load, store, expected",
    [
        ("ld.global.f32 %f1, [%rd4+{}]", "st.global.f32 [%rd5+{}], %f3", BY_TURNS),
        ("ld.global.nc.f32 %f1, [%rd4+{}]", "st.global.f32 [%rd5+{}], %f3", LOADS_FIRST),
        ("ld.global.f32 %f1, [%rd4+{}]", "st.shared.f32 [%r7+{}], %f3", LOADS_FIRST),
        ("ld.shared.f32 %f1, [%r7+{}024]", "st.shared.f32 [%r7+{}048], %f3", LOADS_FIRST),
        ("ld.shared.f32 %f1, [%r7+{}024]", "st.shared.f32 [%r5+{}048], %f3", BY_TURNS),
        ("ld.volatile.global.f32 %f1, [%rd4+{}]", "st.shared.f32 [%r7+{}], %f3", BY_TURNS),
    ],
    ids=["other base", "nc", "other space", "other offset", "other register", "volatile"],
)
def test_a_load_passes_a_store_that_it_cannot_meet(load, store, expected):
    assert by_turns(load, store) == expected


def test_nothing_passes_a_barrier():
    body = (
        "ld.global.f32 %f1, [%rd4]; fma.rn.f32 %f3, %f1, %f1, %f1; bar.arrive 1, 64;"
        "ld.global.f32 %f2, [%rd4+4]; fma.rn.f32 %f4, %f2, %f2, %f3; st.global.f32 [%rd5], %f4;"
    )
    assert taken(source(body))[0] == ["ld", "fma", "bar", "ld", "fma", "st"]


@pytest.mark.parametrize(
    "division, sass",
    [
        ("rcp.rn.f32 {}, {}", "LDG CALL LDG STG CALL STG"),
        ("rcp.rn.ftz.f32 {}, {}", "LDG CALL LDG STG CALL STG"),
        ("sqrt.rn.f32 {}, {}", "LDG CALL LDG STG CALL STG"),
        ("div.rn.f32 {}, {}, %f9", "LDG CALL LDG STG CALL STG"),
        ("rcp.approx.ftz.f32 {}, {}", "LDG LDG STG STG"),
        ("sqrt.approx.f32 {}, {}", "LDG LDG STG STG"),
        ("div.full.f32 {}, {}, %f9", "LDG LDG STG STG"),
    ],
)
def test_a_load_passes_a_division_unless_it_has_a_slow_path(division, sass):
    body = (
        f"ld.global.f32 %f1, [%rd4]; {division.format('%f3', '%f1')}; st.global.f32 [%rd5], %f3;"
        f"ld.global.nc.f32 %f2, [%rd4+4096]; {division.format('%f4', '%f2')};"
        "st.global.f32 [%rd5+4096], %f4;"
    )
    name = division.split(".")[0]
    order = taken(source(f"mov.f32 %f9, %f0; {body}"))[0]
    if "CALL" not in sass:
        order = [word for word in order if word != name]
    assert order == [{"LDG": "ld", "STG": "st", "CALL": name}[word] for word in sass.split()]


def test_independent_shuffles_go_by_turns():
    """Two reductions one after the other in the source: SHFL, SHFL, FADD, FADD in SASS."""
    body = ""
    for value in ("%f1", "%f2"):
        for lane in (16, 8):
            body += f"shfl.sync.bfly.b32 %f3{lane}, {value}, {lane}, 31, -1;".replace("%f3", value)
            body += f"add.f32 {value}, {value}, {value}{lane};"
    body += "add.f32 %f5, %f1, %f2; st.global.f32 [%rd5], %f5;"
    order = taken(source("mov.f32 %f1, %f0; mov.f32 %f2, %f0;" + body))[0]
    assert order[:2] == ["shfl", "shfl"]


# --- registers ------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "bounds, sass",
    [
        ("", 24),
        (".maxntid 128", 24),
        (".maxntid 256 .minnctapersm 8", 24),
        (".maxntid 256 .minnctapersm 4", 54),
        (".maxntid 1024 .minnctapersm 1", 54),
    ],
)
def test_loads_go_ahead_while_registers_last(bounds, sass):
    """128 loads, each with its sum: how many LDG stand in front of the first FFMA."""
    body = sums("global", "%rd4", 4096, 128, batched=False) + "st.global.f32 [%rd5], %f0;"
    assert taken(source(body, bounds))[0].index("fma") == pytest.approx(sass, rel=0.05)


def test_a_batch_that_does_not_fit_is_taken_apart():
    """64 loads, then 64 sums: SASS has 23 LDG, then sums and loads by turns."""
    body = sums("global", "%rd4", 4096, 64, batched=True) + "st.global.f32 [%rd5], %f0;"
    assert taken(source(body))[0].index("fma") == pytest.approx(23, abs=2)
