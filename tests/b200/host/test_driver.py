"""Host services: cuTensorMapEncodeTiled, printf and assert of a kernel."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import b200
from b200.chip.gpu import Gpu
from b200.chip.launch import Launch
from b200.errors import EmulatorError
from b200.host.tensor_map import tensor_map_encode_tiled
from b200.program.parse import parse
from tests.b200.ptx_support import kernel, run

# CUtensorMapDataType: (bits of an element, tensormap format code, rounded to tf32); CUDA driver API
DATA_TYPES = {
    0: (8, 0, 0),
    1: (16, 1, 0),
    2: (32, 2, 0),
    5: (64, 5, 0),
    6: (16, 6, 0),
    7: (32, 7, 0),
    8: (64, 9, 0),
    9: (16, 10, 0),
    10: (32, 8, 0),
    11: (32, 7, 1),
    13: (4, 11, 0),
}


def encode(data_type, address, dims, strides, box, steps, interleave=0, swizzle=0, fill=0) -> bytes:
    out = ctypes.create_string_buffer(128)
    arrays = (
        np.array(dims, np.uint64),
        np.array([*strides, 0], np.uint64),
        np.array(box, np.uint32),
        np.array(steps, np.uint32),
    )
    garbage = 0xABCD << 32  # the upper halves of 32-bit arguments are not defined
    tensor_map_encode_tiled(
        ctypes.addressof(out),
        garbage | data_type,
        garbage | len(dims),
        address,
        *(a.ctypes.data for a in arrays),
        garbage | interleave,
        garbage | swizzle,
        garbage | 2,
        garbage | fill,
    )
    return out.raw


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_fields(data):
    """Each field of the 128 bytes against the layout found on a driver (words of 64 bits)."""
    code = data.draw(st.sampled_from(sorted(DATA_TYPES)))
    bits, form, tf32 = DATA_TYPES[code]
    rank = data.draw(st.integers(1, 5))
    swizzle = data.draw(st.integers(0, 6))
    span = (256, 32, 64, 128, 128, 128, 128)[swizzle]
    rows = data.draw(st.lists(st.integers(1, 256), min_size=rank - 1, max_size=rank - 1))
    box = [data.draw(st.sampled_from([n for n in (16, 32, 64, 128) if n <= span])) * 8 // bits]
    box = [min(box[0], 256), *rows]
    dims = data.draw(st.lists(st.integers(1, 1 << 32), min_size=rank, max_size=rank))
    dims[0] += dims[0] % 2 if bits == 4 else 0
    strides = [16 * n for n in data.draw(st.lists(st.integers(1, 2**36 - 1), min_size=rank - 1))]
    strides = (strides * rank + [16] * rank)[: rank - 1]
    steps = data.draw(st.lists(st.integers(1, 8), min_size=rank, max_size=rank))
    fill = data.draw(st.integers(0, 1)) if form in (6, 7, 8, 9, 10) else 0
    address = 16 * data.draw(st.integers(1, 1 << 52))
    raw = encode(code, address, dims, strides, box, steps, swizzle=swizzle, fill=fill)
    w = [int.from_bytes(raw[8 * i : 8 * i + 8], "little") for i in range(8)]
    assert w[0] == address
    assert (w[1] >> 4 & 7, w[1] >> 7 & 15) == (rank - 1, form)
    mode, atomicity = ((0, 0), (1, 0), (2, 0), (3, 0), (3, 1), (3, 2), (3, 3))[swizzle]
    assert (w[1] >> 13 & 3, w[1] >> 19 & 3) == (mode, atomicity)
    assert (w[1] >> 15 & 1, w[1] >> 16 & 1) == (fill, tf32)
    low = [w[1] >> 32, w[2] & 0xFFFFFFFF, w[2] >> 32, w[3] & 0xFFFFFFFF]
    for i, stride in enumerate(strides):
        assert low[i] | (w[3] >> 32 + 4 * i & 15) << 32 == stride >> 4
    sizes = [w[4] & 0xFFFFFFFF, w[4] >> 32, w[5] & 0xFFFFFFFF, w[5] >> 32, w[6] & 0xFFFFFFFF]
    assert [n + 1 for n in sizes[:rank]] == dims
    assert [(w[6] >> 32 + 3 * i & 7) + 1 for i in range(rank)] == steps
    assert [n + 1 for n in (w[6] >> 56, *w[7].to_bytes(8, "little")[:4])][:rank] == box


@pytest.mark.parametrize(
    "change, words",
    [
        ({"data_type": 16}, "data type has code 16"),
        ({"swizzle": 7}, "swizzle has code 7"),
        ({"box": (64, 257)}, "box dimension of dim1 is 257"),
        ({"box": (4, 8)}, "multiple of 16"),
        ({"dims": (0, 8)}, "global dimension of dim0 is 0"),
        ({"steps": (1, 9)}, "element stride of dim1 is 9"),
        ({"strides": (100,)}, "multiple of 16"),
        ({"strides": (1 << 40,)}, "below 2\\^40"),
        ({"address": 8}, "global_address"),
        ({"dims": (8,) * 6, "strides": (16,) * 5, "box": (8,) * 6, "steps": (1,) * 6}, "rank is 6"),
    ],
)
def test_refusals(change, words):
    good = {"dims": (64, 64), "strides": (128,), "box": (64, 8), "steps": (1, 1)}
    arguments = {"data_type": 6, "address": 256, **good, **change}
    with pytest.raises(EmulatorError, match=words) as caught:
        encode(**arguments)
    assert caught.value.kind == "limit"


def call(name: str, *arguments: tuple[str, str], result: bool) -> str:
    """A call sequence as NVVM writes it."""
    declared = "".join(f".param .{kind} param{i};\n" for i, (kind, _) in enumerate(arguments))
    stored = "".join(
        f"st.param.{kind} [param{i}], {register};\n" for i, (kind, register) in enumerate(arguments)
    )
    passed = ", ".join(f"param{i}" for i in range(len(arguments)))
    returned = "(retval0), " if result else ""
    after = "ld.param.b32 %r9, [retval0];\n" if result else ""
    back = ".param .b32 retval0;\n" if result else ""
    return f"{{\n{declared}{back}{stored}call.uni {returned}{name}, ({passed});\n{after}}}\n"


def text_variable(name: str, text: str) -> str:
    data = text.encode() + b"\0"
    return f".global .align 1 .b8 {name}[{len(data)}] = {{{', '.join(map(str, data))}}};"


def test_printf(capsys):
    """Two calls in one kernel: arguments lie at multiples of their size; two lanes print."""
    form = "lane %d: %5.2f %#x %llu %c %s 100%%\n"
    body = f""".local .align 16 .b8 buffer[64];
    mov.u32 %r0, %tid.x; setp.gt.u32 %p1, %r0, 1; @%p1 bra DONE;
    mov.u64 %rd1, buffer; st.local.u32 [%rd1], %r0;
    mov.b64 %rd2, 0d400921FB54442D18; st.local.b64 [%rd1+8], %rd2;
    mov.u32 %r1, 255; st.local.u32 [%rd1+16], %r1;
    mov.u64 %rd3, 0xFFFFFFFFFFFFFFFF; st.local.b64 [%rd1+24], %rd3;
    mov.u32 %r2, 65; st.local.u32 [%rd1+32], %r2;
    mov.u64 %rd4, word; cvta.global.u64 %rd4, %rd4; st.local.b64 [%rd1+40], %rd4;
    cvta.local.u64 %rd5, %rd1; mov.u64 %rd6, form; cvta.global.u64 %rd6, %rd6;
    {call("vprintf", ("b64", "%rd6"), ("b64", "%rd5"), result=True)}
    ld.param.u64 %rd7, [a]; st.global.u32 [%rd7], %r9;
    mov.u64 %rd6, word; cvta.global.u64 %rd6, %rd6;
    {call("vprintf", ("b64", "%rd6"), ("b64", "%rd5"), result=True)}
DONE:"""
    out = torch.zeros(1, dtype=torch.int32)
    variables = text_variable("form", form) + "\n" + text_variable("word", "five")
    run(kernel(body, [".u64 a"], smem=variables), out)
    line = "lane {}:  3.14 0xff 18446744073709551615 A five 100%\n"
    assert capsys.readouterr().out == line.format(0) + line.format(1) + "fivefive"
    assert out.item() == 6


def test_assert_ends_the_launch():
    texts = {"what": "x > 0", "where": "a.cu", "who": "f(int)"}
    loads = "".join(
        f"mov.u64 %rd{i}, {n}; cvta.global.u64 %rd{i}, %rd{i};\n" for i, n in enumerate(texts, 1)
    )
    body = f"""{loads} mov.u32 %r1, 17; mov.u64 %rd4, 1;
    {
        call(
            "__assertfail",
            ("b64", "%rd1"),
            ("b64", "%rd2"),
            ("b32", "%r1"),
            ("b64", "%rd3"),
            ("b64", "%rd4"),
            result=False,
        )
    }"""
    variables = "\n".join(text_variable(n, t) for n, t in texts.items())
    with pytest.raises(EmulatorError, match=r"a.cu:17: f\(int\): assertion `x > 0` failed"):
        run(kernel(body, [".u64 a"], smem=variables), 0)


# Lane i < 4 asks for 16 (i + 1) bytes, writes its last word, and leaves the address at a[i].
MALLOC = """.reg .b64 %size, %at, %out; .reg .pred %p;
    mov.u32 %r0, %tid.x; setp.gt.u32 %p, %r0, 3; @%p bra DONE;
    add.u32 %r1, %r0, 1; mul.wide.u32 %size, %r1, 16;
    { .param .b64 param0; st.param.b64 [param0], %size; .param .b64 retval0;
      call.uni (retval0), malloc, (param0); ld.param.b64 %at, [retval0]; }
    ld.param.u64 %out, [a]; mul.wide.u32 %rd1, %r0, 8; add.u64 %out, %out, %rd1;
    st.global.u64 [%out], %at; add.u64 %size, %size, %at; st.u32 [%size+-4], %r1;
DONE:"""
# Frees what is at a[0].
FREE = """ld.param.u64 %rd1, [a]; ld.global.u64 %rd2, [%rd1];
    { .param .b64 param0; st.param.b64 [param0], %rd2; call.uni free, (param0); }"""
READ = """ld.param.u64 %rd1, [a]; ld.global.u64 %rd2, [%rd1]; ld.u32 %r1, [%rd2+12];
    st.global.u32 [%rd1+8], %r1;"""


def heap_program() -> tuple[Gpu, Callable[..., Launch], torch.Tensor]:
    """A GPU with a checker, what launches a body of one thread or 32, and 4 zeros for `a`."""
    gpu, a = Gpu(), torch.zeros(4, dtype=torch.int64)
    gpu.machine = b200.machine(gpu.memory, check=True)

    def go(body: str, threads: int = 1) -> Launch:
        text = kernel(body, [".u64 a"], reqntid=threads)
        return run(text, a, block=(threads, 1, 1), gpu=gpu)

    return gpu, go, a


def test_what_a_kernel_allocates_is_memory_of_the_next_one():
    _, go, a = heap_program()
    assert not go(MALLOC, 32).findings
    addresses = a.tolist()
    assert len(set(addresses)) == 4 and all(x and x % 16 == 0 for x in addresses)
    go(READ)
    assert a[1].item() & 0xFFFFFFFF == 1  # what lane 0 had written behind its 16 bytes
    go(FREE)
    (found,) = go(READ).findings or ()
    assert found.severity == "error" and "malloc in a kernel, which were freed" in found.diagnosis


def test_a_full_heap_gives_a_null_pointer(monkeypatch):
    gpu, go, a = heap_program()
    monkeypatch.setattr(gpu.memory.heap, "limit", 40)
    with pytest.raises(EmulatorError, match="0x1c"):  # lane 1 writes behind 32 bytes at 0
        go(MALLOC, 32)
    assert a[0].item() and not a[1].item()


def test_free_of_what_malloc_has_not_returned():
    _, go, a = heap_program()
    a[0] = a.data_ptr()
    with pytest.raises(EmulatorError, match="which malloc in a kernel has not returned"):
        go(FREE)


def test_other_functions_are_named():
    what = r"conditional nodes of graphs \(cudaGraphSetConditional\) is not in the software B200"
    with pytest.raises(Exception, match=what):
        run(kernel(call("cudaGraphSetConditional", ("b64", "%rd1"), result=True), [".u64 a"]), 0)


def test_modules_have_their_own_variables(capsys):
    """Two modules with a variable of one name, launched in turns."""
    gpu = Gpu()
    body = f"""mov.u32 %r0, %tid.x; setp.ne.u32 %p1, %r0, 0; @%p1 bra DONE;
    mov.u64 %rd1, word; cvta.global.u64 %rd1, %rd1;
    {call("vprintf", ("b64", "%rd1"), ("b64", "%rd1"), result=True)}
DONE:"""
    modules = [parse(kernel(body, [], smem=text_variable("word", t))) for t in ("one ", "two ")]
    for module in (*modules, *modules):
        gpu.launch(module, "k", (1, 1, 1), (32, 1, 1), (1, 1, 1), 0, b"")
    assert capsys.readouterr().out == "one two one two "
