"""Planted bugs in numbers: wrong results with no wrong access. Quantisation to NVFP4, FP8 products."""

from __future__ import annotations

from functools import partial

import torch

from tests.planted_bugs.case import PlantedBug, Source

BLOCK, THREADS = 16, 32  # values of a block, blocks


def of_x_and_out(x_bytes: int, out_bytes: int) -> Source:
    """A kernel whose thread has x_bytes of x, at %rd2, and out_bytes of out, at %rd3."""
    k = Source(".param .u64 x, .param .u64 out", THREADS)
    k("mov.u32 %r0, %tid.x;")
    for i, (name, nbytes) in enumerate((("x", x_bytes), ("out", out_bytes))):
        k(f"ld.param.u64 %rd{i}, [{name}];")
        k(f"mul.wide.u32 %rd{2 + i}, %r0, {nbytes};")
        k(f"add.u64 %rd{2 + i}, %rd{2 + i}, %rd{i};")
    return k


def quantise(bug: bool, stochastic: bool = False) -> Source:
    """Each thread quantises a block of 16 floats to e2m1 with a scale in e4m3; out: for each block
    8 bytes of codes, the scale, and nothing. stochastic: by cvt.rs, with random bits of 0.
    """
    k = of_x_and_out(4 * BLOCK, 16)
    for i in range(0, BLOCK, 4):
        four = ", ".join(f"%f{i + j}" for j in range(4))
        k(f"ld.global.v4.f32 {{{four}}}, [%rd2+{4 * i}];")
    k("mov.f32 %f20, 0f00000000;")
    for i in range(BLOCK):
        k(f"abs.f32 %f21, %f{i};")
        k("max.f32 %f20, %f20, %f21;")
    k("mul.f32 %f22, %f20, 0f3E2AAAAB;")  # 1 / 6: the largest value becomes the largest code
    k("mov.f32 %f23, 0f00000000;")
    k("cvt.rn.satfinite.e4m3x2.f32 %h1, %f23, %f22;", "round the scale")
    k("cvt.rn.f16x2.e4m3x2 %r5, %h1;")
    k("mov.b32 {%h2, %h3}, %r5;")
    k("cvt.f32.f16 %f24, %h2;")
    divisor = "%f22" if bug else "%f24"
    for i in range(BLOCK):
        k(f"div.rn.f32 %f{i}, %f{i}, {divisor};")
    for word in range(2):
        values = [f"%f{8 * word + i}" for i in range(8)]
        if stochastic:
            fours = (", ".join(reversed(values[i : i + 4])) for i in (0, 4))
            k("{ .reg .b16 h<2>; .reg .b32 none; mov.b32 none, 0; " + " ".join(
                f"cvt.rs.satfinite.e2m1x4.f32 h{i}, {{{four}}}, none;"
                for i, four in enumerate(fours)
            ) + f" mov.b32 %r{6 + word}, {{h0, h1}}; }}", "quantise")  # fmt: skip
            continue
        pairs = (
            f"cvt.rn.satfinite.e2m1x2.f32 b{i}, {values[2 * i + 1]}, {values[2 * i]};"
            for i in range(4)
        )
        k("{ .reg .b8 b<4>; " + " ".join(pairs) + f" mov.b32 %r{6 + word}, {{b0, b1, b2, b3}}; }}",
          "quantise")  # fmt: skip
    k("cvt.u32.u16 %r8, %h1;")
    k("mov.u32 %r9, 0;")
    k("st.global.v4.b32 [%rd3], {%r6, %r7, %r8, %r9};")
    return k


def _arguments() -> list:
    x = torch.randn(THREADS, BLOCK, generator=torch.Generator().manual_seed(3)) * 5
    return [x, torch.zeros(THREADS, 4, dtype=torch.int32)]


def _quantised(args: list, stochastic: bool = False) -> torch.Tensor:
    """By the definition of the formats: the nearest of the 8 magnitudes, ties to the even code.
    stochastic: the next one towards zero, since no random bit is set.
    """
    x = args[0]
    sixth = torch.tensor(0x3E2AAAAB, dtype=torch.int32).view(torch.float32)
    scale = (x.abs().amax(1) * sixth).to(torch.float8_e4m3fn)
    y = x / scale.float()[:, None]
    magnitudes = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    order = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7])  # of two codes equally near, the even one first
    nearest = (y.abs()[..., None] - magnitudes[order]).abs().argmin(-1)
    codes = order[nearest]
    if stochastic:
        codes = torch.searchsorted(magnitudes, y.abs().contiguous(), right=True) - 1
    codes = codes | (torch.signbit(y).long() << 3)
    words = (codes.reshape(THREADS, 2, 8) << torch.arange(0, 32, 4)).sum(-1)
    parts = [words, scale.view(torch.uint8).long()[:, None], torch.zeros(THREADS, 1).long()]
    packed = torch.cat(parts, 1)
    return torch.where(packed >= 1 << 31, packed - (1 << 32), packed).int()


def fp8_product(bug: bool) -> Source:
    """D = A * B + C of one mma.sync; C is 5 everywhere, in one register or in those of D."""
    k = Source(".param .u64 out", THREADS)
    k("mov.u32 %r0, %tid.x;")
    k("ld.param.u64 %rd0, [out];")
    k("mul.wide.u32 %rd2, %r0, 8;")
    k("add.u64 %rd2, %rd2, %rd0;")
    k("mov.u32 %r1, 0x38383838;")  # four ones in e4m3
    k("mov.u32 %r2, 0x45004500;")  # two fives in f16
    k("mov.u32 %r3, %r2;")
    c = "%r2, %r2" if bug else "%r2, %r3"
    k(f"mma.sync.aligned.m16n8k32.row.col.f16.e4m3.e4m3.f16 {{%r2, %r3}}, "
      f"{{%r1, %r1, %r1, %r1}}, {{%r1, %r1}}, {{{c}}};", "product")  # fmt: skip
    k("st.global.v2.b32 [%rd2], {%r2, %r3};")
    return k


def _fives_and_products(args: list) -> torch.Tensor:
    return torch.full_like(args[0], 32 + 5)


def halves(bug: bool) -> Source:
    """out = x as f16, two at a time; the sums do not fit, and the twin scales them."""
    k = of_x_and_out(8, 4)
    k("ld.global.v2.f32 {%f0, %f1}, [%rd2];")
    for i in range(2):
        k(f"mul.f32 %f{i}, %f{i}, {'0f3F800000' if bug else '0f3D800000'};")  # 1, or 1 / 16
    k("cvt.rn.f16x2.f32 %r1, %f1, %f0;", "narrow")
    k("st.global.b32 [%rd3], %r1;")
    return k


def _large() -> list:
    x = torch.arange(2 * THREADS, dtype=torch.float32).reshape(THREADS, 2) * 2000
    return [x, torch.zeros(THREADS, 2, dtype=torch.float16)]


def doubled(bug: bool) -> Source:
    """out = 2 x; the twin takes 0 for what is NaN."""
    k = of_x_and_out(4, 4)
    k("ld.global.f32 %f0, [%rd2];", "read")
    if not bug:
        k("setp.nan.f32 %p0, %f0, %f0;")
        k("selp.f32 %f0, 0f00000000, %f0, %p0;")
    k("add.f32 %f0, %f0, %f0;")
    k("st.global.f32 [%rd3], %f0;")
    return k


def _with_nan() -> list:
    x = torch.arange(THREADS, dtype=torch.float32)
    x[5] = float("nan")
    return [x, torch.zeros(THREADS)]


PLANTED = [
    PlantedBug(
        "finite_sum_becomes_infinite_as_f16",
        "numbers above 65504 are converted to f16 without a scale",
        halves,
        "numerics",
        ("makes infinity of a finite value", "31 value(s)", "66000, by warp 0", "65504"),
        ("narrow",),
        _large,
        lambda args: (args[0] / 16).half(),
    ),
    PlantedBug(
        "nan_of_an_input_comes_out",
        "a NaN of the input is added up like a number",
        doubled,
        "numerics",
        ("NaN of ", " comes out in ", "[5] is NaN, the first of 1 of 32 elements"),
        ("read",),
        _with_nan,
        lambda args: 2 * args[0].nan_to_num(0.0),
    ),
    PlantedBug(
        "registers_of_c_overlap_those_of_d",
        "both registers of C are the first of D, which ptxas writes before it reads it again",
        fp8_product,
        "numerics",
        ("ptxas writes a register of D", "registers: %r2"),
        ("product",),
        lambda: [torch.zeros(THREADS, 4, dtype=torch.float16)],
        _fives_and_products,
    ),
    PlantedBug(
        "unrounded_block_scale",
        "values are divided by the block's scale as it was before its rounding to e4m3",
        quantise,
        "numerics",
        ("block scale before its rounding", "the scale converted back"),
        ("quantise", "round the scale"),
        _arguments,
        _quantised,
    ),
    PlantedBug(
        "unrounded_block_scale_of_four_values",
        "as unrounded_block_scale, where cvt.rs makes four values of e2m1",
        partial(quantise, stochastic=True),
        "numerics",
        ("block scale before its rounding", "the scale converted back"),
        ("quantise", "round the scale"),
        _arguments,
        partial(_quantised, stochastic=True),
    ),
]
