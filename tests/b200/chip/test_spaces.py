"""Each width of load and store on each state space, by its own name and by a generic address."""

from __future__ import annotations

import pytest
import torch

from tests.b200.ptx_support import kernel, own_element, run

WIDTHS = {  # type of the access: (bytes of an element, elements)
    "b8": (1, 1),
    "b16": (2, 1),
    "b32": (4, 1),
    "b64": (8, 1),
    "v2.b16": (2, 2),
    "v2.b32": (4, 2),
    "v4.b32": (4, 4),
    "v2.b64": (8, 2),
}
BYTES = 16  # of each thread, in each space
SPACES = {  # how %rd7 gets the address of the thread's bytes there; %rd6: 16 times the thread
    "global": "ld.param.u64 %rd7, [other]; add.u64 %rd7, %rd7, %rd6;",
    "shared": "mov.u64 %rd7, cells; add.u64 %rd7, %rd7, %rd6;",
    "local": "mov.u64 %rd7, mine;",
}
PREFIX = {1: "%rs", 2: "%rs", 4: "%r", 8: "%rd"}


def registers(size: int, count: int) -> str:
    names = [f"{PREFIX[size]}{40 + i}" for i in range(count)]
    return names[0] if count == 1 else "{" + ", ".join(names) + "}"


def copy(width: str, space: str, generic: bool) -> str:
    """A thread's 16 bytes go from `given` to `space` and from there to `out`, piece by piece."""
    size, count = WIDTHS[width]
    held, piece = registers(size, count), size * count
    suffix = "" if generic else f".{space}"
    to_generic = f"cvta.{space}.u64 %rd7, %rd7;" if generic else ""
    there = "".join(
        f"ld.global.{width} {held}, [%rd5+{at}]; st{suffix}.{width} [%rd7+{at}], {held};\n"
        for at in range(0, BYTES, piece)
    )
    back = "".join(
        f"ld{suffix}.{width} {held}, [%rd7+{at}]; st.global.{width} [%rd3+{at}], {held};\n"
        for at in range(0, BYTES, piece)
    )
    return f""".local .align 16 .b8 mine[{BYTES}];
    {own_element(BYTES)} mov.u64 %rd6, %rd2;
    ld.param.u64 %rd5, [given]; add.u64 %rd5, %rd5, %rd6;
    {SPACES[space]} {to_generic} {there} bar.sync 0; {back}"""


@pytest.mark.parametrize("generic", [False, True], ids=["named", "generic"])
@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("width", WIDTHS)
def test_every_byte_comes_back(width, space, generic):
    threads = 64
    given = torch.randint(0, 256, (threads, BYTES), dtype=torch.uint8)
    other, out = torch.zeros_like(given), torch.zeros_like(given)
    text = kernel(
        copy(width, space, generic),
        [".u64 out", ".u64 given", ".u64 other"],
        f".shared .align 16 .b8 cells[{threads * BYTES}];",
        reqntid=threads,
    )
    run(text, out, given, other, block=(threads, 1, 1))
    assert (out == given).all()
    assert (other == given).all() if space == "global" else not other.any()


@pytest.mark.parametrize("bits", [8, 16, 32])
@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("space", ["global", "shared", "local"])
def test_what_is_narrow_is_extended(space, signed, bits):
    """ld.s8 into 32 bits repeats the sign bit, ld.u8 gives zeros (PTX ISA, ld); st cuts."""
    at = {"global": "[%rd3]", "shared": "[cells]", "local": "[mine]"}[space]
    target = "%rd9" if bits == 32 else "%r9"
    wide = "b64" if bits == 32 else "b32"
    body = f""".local .align 16 .b8 mine[16];
    {own_element(8)} ld.param.u64 %rd4, [value];
    mov.u64 %rd8, %rd4; cvt.u32.u64 %r8, %rd8; cvt.u16.u64 %rs8, %rd8;
    st.{space}.b{bits} {at}, {"%rs8" if bits < 32 else "%r8"};
    ld.{space}.{"s" if signed else "u"}{bits} {target}, {at};
    st.global.b64 [%rd3], 0; st.global.{wide} [%rd3], {target};"""
    text = kernel(body, [".u64 out", ".u64 value"], ".shared .b32 cells;", reqntid=1)
    for value in (0x7F7F7F7F, 0x80808080, 0xFFFFFFFE, 0x12345678):
        out = torch.zeros(1, dtype=torch.int64)
        run(text, out, value, block=(1, 1, 1))
        narrow = value % (1 << bits)
        if signed and narrow >> (bits - 1):
            narrow -= 1 << bits
        assert out.item() % (1 << 64) == narrow % (1 << 64 if bits == 32 else 1 << 32)


@pytest.mark.parametrize("one_address", [False, True])
@pytest.mark.parametrize("kind", ["s8", "u8", "s16", "u16", "s32", "u32"])
@pytest.mark.parametrize("space", ["global", "shared", "param"])
def test_what_is_narrow_is_a_pattern_of_its_register(space, kind, one_address):
    """A negative value that was loaded is no number below zero for an unsigned instruction."""
    bits, value = int(kind[1:]), 0xC4B5A697
    place = {"global": "[%rd5]", "shared": "[cells]", "param": "[value]"}[space]
    if not one_address and space != "param":  # another register for the same address in each lane
        place = "[%rd6]" if space == "global" else "[%r6]"
    body = f"""{own_element(16)}
    ld.param.u64 %rd5, [given]; ld.param.u32 %r8, [value];
    st.shared.u32 [cells], %r8; bar.sync 0;
    and.b32 %r7, %r1, 0; cvt.u64.u32 %rd7, %r7; add.u64 %rd6, %rd5, %rd7;
    mov.u32 %r6, cells; add.u32 %r6, %r6, %r7;
    ld.{space}.{kind} %r9, {place};
    shr.u32 %r10, %r9, 3; setp.gt.u32 %p1, %r9, 2147483647; selp.u32 %r11, 1, 0, %p1;
    cvt.u64.u32 %rd9, %r9; shr.u64 %rd9, %rd9, 3; cvt.u32.u64 %r12, %rd9;
    div.u32 %r13, %r9, 7;
    st.global.v4.b32 [%rd3], {{%r10, %r11, %r12, %r13}};"""
    params = [".u64 out", ".u64 given", ".u32 value"]
    text = kernel(body, params, ".shared .align 4 .b32 cells;")
    given = torch.tensor([value - (1 << 32)], dtype=torch.int32)
    out = torch.zeros((32, 4), dtype=torch.int32)
    run(text, out, given, value)
    narrow = value % (1 << bits)
    if kind[0] == "s" and narrow >> (bits - 1):
        narrow += (1 << 32) - (1 << bits)
    want = [narrow >> 3, narrow >> 31, narrow >> 3, narrow // 7]
    assert out.tolist() == [want] * 32
