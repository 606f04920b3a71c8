"""Alike instructions that become one: the same bits as one after the other."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import torch

from b200.chip.gpu import Gpu
from b200.program import packing
from b200.program.translate import translate
from b200.program.writer import Writer
from tests.b200.ptx_support import HEADER, kernel, run

REGISTERS = 12
OPERATIONS = (
    "add.u32 {d}, {a}, {b};",
    "sub.u32 {d}, {a}, 7;",
    "xor.b32 {d}, {a}, {b};",
    "shl.b32 {d}, {a}, 3;",
    "mad.lo.u32 {d}, {a}, {b}, {c};",
    "fma.rn.f32 {d}, {a}, {b}, {c};",
    "max.f32 {d}, {a}, {b};",
    "ex2.approx.ftz.f32 {d}, {a};",
    "add.u32 {d}, {a}, %r90;",  # the same in all lanes
    "mov.b32 {d}, 0f3F800000;",
)


def in_order(monkeypatch):
    monkeypatch.setattr(Writer, "packs", False)


def rows(body: str, seed: int = 0) -> list[int]:
    """Registers %r0 to %r11 of 32 threads after `body`: at first they differ in all threads."""
    generator = torch.Generator().manual_seed(seed)
    given = torch.empty(REGISTERS * 32, dtype=torch.int32)
    given.random_(-(2**31), 2**31 - 1, generator=generator)
    place = [f"[%rd3+{128 * i}]" for i in range(REGISTERS)]
    head = [
        "ld.param.u64 %rd1, [out];",
        "ld.param.u64 %rd2, [given];",
        "mov.u32 %r91, %tid.x;",
        "mul.wide.u32 %rd9, %r91, 4;",
        "mov.u32 %r90, %ctaid.x;",
        "add.u64 %rd3, %rd2, %rd9;",
        *(f"ld.global.u32 %r{i}, {place[i]};" for i in range(REGISTERS)),
        "add.u64 %rd3, %rd1, %rd9;",
    ]
    tail = [f"st.global.u32 {place[i]}, %r{i};" for i in range(REGISTERS)]
    out = torch.zeros(REGISTERS * 32, dtype=torch.int32)
    text = kernel("\n".join([*head, body, *tail]), [".u64 out", ".u64 given"])
    run(text, out, given, gpu=Gpu())
    return out.tolist()


def random_block(rng: random.Random) -> str:
    """Runs of alike instructions, of which some need each other's results, with others among
    them.
    """
    lines = []
    for _ in range(8):
        operation = rng.choice(OPERATIONS)
        for _ in range(rng.randint(1, 9)):
            d, a, b, c = (f"%r{rng.randrange(REGISTERS)}" for _ in range(4))
            lines.append(operation.format(d=d, a=a, b=b, c=c))
            if rng.random() < 0.1:
                lines.append(f"@%p1 mov.b32 {d}, {a};")
    return "setp.gt.s32 %p1, %r0, 0;\n" + "\n".join(lines)


def test_random_blocks_give_the_same_bits(monkeypatch):
    rng = random.Random(36)
    blocks = [random_block(rng) for _ in range(40)]
    packs, pack = [], Writer._pack
    monkeypatch.setattr(
        Writer, "_pack", lambda self, group: (packs.append(len(group)), pack(self, group))
    )
    packed = [rows(block, i) for i, block in enumerate(blocks)]
    assert len(packs) > 40 and max(packs) >= 6
    in_order(monkeypatch)
    assert [rows(block, i) for i, block in enumerate(blocks)] == packed


def source_of(body: str) -> str:
    program = Gpu().load(f"{HEADER}\n" + kernel(body, []).removeprefix(HEADER))
    return translate(program, program.kernels["k"]).source


def test_chains_of_alike_instructions_are_a_call_each():
    """Eight registers, three steps each: three calls, the later ones on what the earlier leave, of
    which only the last is taken apart.
    """
    head = "mov.u32 %r50, %tid.x;\n"
    begin = "\n".join(f"add.u32 %r{i}, %r50, {i};" for i in range(8))  # other immediates: not alike
    chain = "\n".join(
        f"mul.f32 %r{i}, %r{i}, %r{i};\nex2.approx.f32 %r{i}, %r{i};\nadd.f32 %r{i}, %r{i}, %r50;"
        for i in range(8)
    )
    ends = "\n".join(f"st.shared.u32 [dyn+{4 * i}], %r{i};" for i in range(8))
    source = source_of(head + begin + chain + ends)
    assert source.count(".reshape(8, 32)") == 1
    assert source.count("np.concatenate") == 1 and source.count("np.tile") == 1


def test_loads_of_tensor_memory_are_taken_apart_only_where_a_register_is_read_by_itself():
    registers = [f"%r{i}" for i in range(8)]
    load = f"tcgen05.ld.sync.aligned.32x32b.x8.b32 {{{', '.join(registers)}}}, [%r50];\n"
    square = "\n".join(f"mul.f32 {r}, {r}, {r};" for r in registers) + "\n"
    ends = "\n".join(f"st.shared.u32 [dyn+{4 * i}], {r};" for i, r in enumerate(registers))
    whole = source_of("mov.u32 %r50, 0;\n" + load + square + ends)
    assert "np.concatenate" not in whole and whole.count(".reshape(-1)") == 2
    assert whole.count(", r2, ") == 1  # of the products alone
    alone = source_of("mov.u32 %r50, 0;\n" + load + "mov.b32 %r20, %r3;\n" + square + ends)
    assert "np.concatenate" not in alone and alone.count(", r2, ") == 2


def ops(*instructions: tuple[str, str]) -> list:
    """(registers written, registers read), as letters."""
    return [
        SimpleNamespace(
            name=f"{writes}={reads}",
            dsts=[SimpleNamespace(name=r) for r in writes],
            srcs=[SimpleNamespace(name=r) for r in reads],
        )
        for writes, reads in instructions
    ]


def arranged(given: list, kind, stays=lambda op: False) -> list[list[str]]:
    found: list[list[Any]] = packing.arrange(given, kind, stays)
    return [[op.name for op in group] for group in found]


def test_a_result_is_written_before_it_is_read_and_read_before_it_is_written_again():
    given = ops(("a", "x"), ("b", "x"), ("c", "x"), ("d", "x"), ("e", "a"), ("a", "y"), ("f", "a"))
    found = arranged(given, lambda op: "alike")
    assert found[0] == ["a=x", "b=x", "c=x", "d=x"]
    assert [name for (name,) in found[1:]] == ["e=a", "a=y", "f=a"]


def test_instructions_that_stay_keep_their_order():
    given = ops(("", "x"), ("a", "y"), ("", ""), ("b", "y"), ("", "a"))
    found = arranged(given, lambda op: None, stays=lambda op: op.name.startswith("="))
    names = [name for (name,) in found]
    assert [n for n in names if n.startswith("=")] == ["=x", "=", "=a"]
    assert names.index("a=y") < names.index("=a")
