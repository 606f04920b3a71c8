"""Loads, stores, atomics, ldmatrix and stmatrix against byte arrays."""

from __future__ import annotations

import gc
import struct
import weakref
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from b200.chip.global_memory import GlobalMemory
from b200.chip.gpu import Gpu
from b200.chip.tensors import LiveTensors
from b200.errors import EmulatorError, Fault
from tests.b200.ptx_support import kernel, run

SETTINGS = settings(max_examples=25, deadline=None)
THREAD = "mov.u32 %r0, %tid.x;"
WORD = {8: "u8", 16: "u16", 32: "u32", 64: "u64", 128: "b128"}


def random_bytes(n: int, seed: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).integers(0, 256, n, dtype=np.uint8))


# --- global memory ----------------------------------------------------------------------------


@SETTINGS
@given(
    form=st.sampled_from([(b, n) for b in WORD for n in (1, 2, 4) if b * n <= 128]),
    stride=st.integers(0, 3),
    lanes=st.integers(1, 0xFFFFFFFF),
    generic=st.booleans(),
)
def test_vector_copy(form, stride, lanes, generic):
    """Lane t of a mask copies `count` elements from offset t * stride * size to its own place."""
    bits, count = form
    size = bits // 8 * count
    source = random_bytes(32 * 4 * 16, seed=bits + count)
    target = torch.zeros(32 * size, dtype=torch.uint8)
    prefix = {64: "%rd1", 128: "%rq"}.get(bits, "%r1")
    names = [f"{prefix}{i}" for i in range(count)]
    vector = f"{{{', '.join(names)}}}" if count > 1 else names[0]
    kind = f".v{count}.{WORD[bits]}" if count > 1 else f".{WORD[bits]}"
    space = "" if generic else ".global"
    body = f"""{THREAD}
    ld.param.u64 %rd1, [a]; ld.param.u64 %rd2, [b]; ld.param.u32 %r1, [m];
    shr.u32 %r2, %r1, %r0; and.b32 %r2, %r2, 1; setp.eq.u32 %p1, %r2, 0;
    mul.lo.u32 %r3, %r0, {stride * size}; cvt.u64.u32 %rd3, %r3; add.u64 %rd1, %rd1, %rd3;
    mul.lo.u32 %r4, %r0, {size}; cvt.u64.u32 %rd4, %r4; add.u64 %rd2, %rd2, %rd4;
    @%p1 bra DONE;
    ld{space}{kind} {vector}, [%rd1];
    st{space}{kind} [%rd2], {vector};
DONE:"""
    run(kernel(body, [".u64 a", ".u64 b", ".u32 m"]), source, target, lanes)
    for t in range(32):
        wanted = source[t * stride * size :][:size] if lanes >> t & 1 else torch.zeros(size)
        assert target[t * size : (t + 1) * size].tolist() == wanted.tolist()


@pytest.mark.parametrize(
    "kind, value", [("s8", -100), ("s16", -30000), ("u8", 200), ("u16", 60000)]
)
def test_narrow_loads_extend(kind, value):
    code = {"s8": "<b", "u8": "<B", "s16": "<h", "u16": "<H"}[kind]
    source = torch.frombuffer(bytearray(struct.pack(code, value)), dtype=torch.uint8)
    out = torch.zeros(64, dtype=torch.int32)
    body = f"""{THREAD} ld.param.u64 %rd1, [a]; ld.param.u64 %rd2, [b];
    mul.wide.u32 %rd3, %r0, 8; add.u64 %rd2, %rd2, %rd3;
    ld.global.{kind} %r1, [%rd1];
    and.b32 %r3, %r0, 0; cvt.u64.u32 %rd4, %r3; add.u64 %rd1, %rd1, %rd4;
    ld.global.{kind} %r2, [%rd1];
    st.global.v2.u32 [%rd2], {{%r1, %r2}};"""
    run(kernel(body, [".u64 a", ".u64 b"]), source, out)
    assert set(out.tolist()) == {value}


def test_highest_lane_wins_a_store():
    out = torch.zeros(1, dtype=torch.int32)
    body = f"{THREAD} ld.param.u64 %rd1, [a]; st.global.u32 [%rd1], %r0;"
    run(kernel(body, [".u64 a"]), out)
    assert out.item() == 31


@pytest.mark.parametrize(
    "at, words",
    [
        (-4, "is in no tensor's allocation"),
        (4 * 97, "is in no tensor's allocation"),
        (2, "aligned"),
    ],
)
def test_wrong_addresses(at, words):
    """Each of 32 lanes reads 4 bytes at 4 * lane after `at` of a tensor of 124 words."""
    x, out = torch.zeros(124, dtype=torch.int32), torch.zeros(32, dtype=torch.int32)
    body = f"""{THREAD} ld.param.u64 %rd1, [a]; mul.wide.u32 %rd3, %r0, 4; add.s64 %rd1, %rd1, {at};
    add.u64 %rd1, %rd1, %rd3; ld.global.u32 %r1, [%rd1];
    ld.param.u64 %rd2, [b]; st.global.u32 [%rd2], %r1;"""
    with pytest.raises(EmulatorError, match=words):
        run(kernel(body, [".u64 a", ".u64 b"]), x, out)


@pytest.mark.parametrize("kind", ["global", "volatile.global", "relaxed.gpu"])
def test_a_load_in_the_rounding_of_an_allocation_reads_all_ones(kind):
    """PyTorch on a GPU hands out blocks of 512 bytes: 124 words are followed by four of them."""
    x, out = torch.arange(124, dtype=torch.int32), torch.zeros(32, dtype=torch.int32)
    body = f"""{THREAD} ld.param.u64 %rd1, [a]; mul.wide.u32 %rd3, %r0, 4; add.u64 %rd4, %rd1, %rd3;
    ld.{kind}.u32 %r1, [%rd4+384]; ld.{kind}.u32 %r2, [%rd1+496]; add.u32 %r3, %r2, 1;
    add.u32 %r1, %r1, %r3; ld.param.u64 %rd2, [b]; add.u64 %rd2, %rd2, %rd3;
    st.global.u32 [%rd2], %r1;"""
    run(kernel(body, [".u64 a", ".u64 b"]), x, out)
    assert out.tolist() == [*range(96, 124), -1, -1, -1, -1]


@pytest.mark.parametrize(
    "operation", ["st.global.u32 [%rd1+496], 1", "red.global.add.u32 [%rd1+496], 1"]
)
def test_a_store_in_the_rounding_faults(operation):
    x = torch.zeros(124, dtype=torch.int32)
    with pytest.raises(EmulatorError, match="is in no tensor's allocation"):
        run(kernel(f"ld.param.u64 %rd1, [a]; {operation};", [".u64 a"]), x)


def test_freed_tensors_are_no_longer_memory():
    gpu = Gpu()
    body = "ld.param.u64 %rd1, [a]; ld.global.u32 %r1, [%rd1]; st.global.u32 [%rd1], %r1;"
    text = kernel(body, [".u64 a"])
    x = torch.zeros(1 << 20, dtype=torch.int32)
    run(text, x, gpu=gpu)
    address = x.data_ptr()
    view = x[5:]
    del x
    run(text, address, gpu=gpu)  # a view keeps the storage
    del view
    with pytest.raises(EmulatorError, match="is in no tensor's allocation"):
        run(text, address, gpu=gpu)


def test_arguments_are_not_searched_for(monkeypatch):
    """Nor a view of one's storage outside of the view; what a kernel gets as a number is."""
    searches = []
    monkeypatch.setattr(LiveTensors, "find", lambda *_: searches.append(1))
    gpu, x = Gpu(), torch.arange(8, dtype=torch.int32)
    text = kernel("ld.param.u64 %rd1, [a]; st.global.u32 [%rd1 + 4], 9;", [".u64 a"])
    run(text, x[2:], gpu=gpu)
    assert x.tolist() == [0, 1, 2, 9, 4, 5, 6, 7] and not searches
    with pytest.raises(EmulatorError, match="is in no tensor's allocation"):
        run(text, torch.zeros(4, dtype=torch.int32).data_ptr(), gpu=Gpu())
    assert searches


def test_a_search_among_frozen_objects_keeps_no_garbage():
    gc.freeze()
    tensor = torch.zeros(8)
    tensor.itself = tensor  # only a garbage collection frees it
    kept = weakref.ref(tensor)
    del tensor
    LiveTensors().find(GlobalMemory(), 8)  # where no tensor is: frozen ones are looked at, too
    gc.collect()
    assert kept() is None


FROZEN = """
import gc
import torch
from b200.chip.global_memory import GlobalMemory
from b200.chip.tensors import LiveTensors

listings, unfreeze = [], gc.unfreeze
gc.unfreeze = lambda: (listings.append(1), unfreeze())


def found(tensor):
    memory = GlobalMemory(LiveTensors().find)
    return any(region.base == tensor.data_ptr() for region in memory.allocations())


first = torch.zeros(8)
gc.freeze()
assert found(first) and found(first) and len(listings) == 1
second = torch.zeros(8)
assert found(second) and found(first) and len(listings) == 1
gc.freeze()
assert found(second) and found(first) and len(listings) == 2
unfreeze()
assert found(second) and found(first) and len(listings) == 2
moved = torch.zeros(16)
first.set_(moved.untyped_storage(), 0, (16,))
del moved
assert found(first) and len(listings) == 2
"""


def test_frozen_tensors_are_found_whoever_freezes_when(fork_server):
    """All objects are listed for the first search after a freeze only. In a process of its own:
    this one has ten times the objects.
    """
    done = fork_server.run("-c", FROZEN)
    assert done.returncode == 0, done.stderr


# --- atomics ----------------------------------------------------------------------------------


def rounded_sum(values, flush: bool) -> float:
    """f32 sums one after the other, each rounded from exact arithmetic."""

    def f32(x: Fraction) -> np.float32:
        wide = np.float64(x.numerator) / np.float64(x.denominator)  # exact for these values
        out = np.float32(wide)
        return np.float32(0) if flush and abs(out) < np.finfo(np.float32).tiny else out

    total = np.float32(0)
    for v in values:
        total = f32(Fraction(float(total)) + Fraction(float(f32(Fraction(float(v))))))
    return float(total)


@pytest.mark.parametrize("space", ["global", "shared"])
@pytest.mark.parametrize("scale", [1.0, 2.0**-149])
def test_float_add(space, scale):
    """32 lanes add (lane + 1) * scale to one cell; of subnormals global memory keeps none."""
    x = (torch.arange(1, 33, dtype=torch.float64) * scale).float()
    out = torch.zeros(1)
    cell = "%rd2" if space == "global" else "%r5"
    body = f"""{THREAD} ld.param.u64 %rd1, [a]; ld.param.u64 %rd2, [b]; mov.u32 %r5, dyn;
    mul.wide.u32 %rd3, %r0, 4; add.u64 %rd1, %rd1, %rd3; ld.global.b32 %r1, [%rd1];
    mov.b32 %r2, 0; st.shared.b32 [%r5], %r2; bar.sync 0;
    red.{space}.add.f32 [{cell}], %r1; bar.sync 0;
    setp.ne.u32 %p1, %r0, 0; @%p1 bra DONE;
    ld.{space}.b32 %r3, [{cell}]; st.global.b32 [%rd2], %r3;
DONE:"""
    run(kernel(body, [".u64 a", ".u64 b"]), x, out, smem=16)
    assert out.item() == rounded_sum(x.tolist(), flush=space == "global")


def test_generic_atomic_on_shared_memory_keeps_subnormals():
    out = torch.zeros(1, dtype=torch.int32)
    body = """ld.param.u64 %rd1, [a]; mov.u32 %r5, dyn; cvt.u64.u32 %rd2, %r5;
    cvta.shared.u64 %rd2, %rd2; mov.b32 %r1, 3; st.shared.b32 [%r5], %r1;
    mov.u32 %r0, %tid.x; setp.ne.u32 %p1, %r0, 0; @%p1 bra DONE;
    atom.add.f32 %r2, [%rd2], %r1; ld.shared.b32 %r3, [%r5]; st.global.b32 [%rd1], %r3;
DONE:"""
    run(kernel(body, [".u64 a"]), out, smem=16)
    assert out.item() == 6


@pytest.mark.parametrize("op", ["cas", "exch", "inc", "dec", "min", "max"])
def test_atomics_in_lane_order(op):
    """Old values of 32 lanes on one cell against a loop over Python ints."""
    start, old, out = 7, torch.zeros(32, dtype=torch.int32), torch.tensor([7], dtype=torch.int32)
    kind = "b32" if op in ("cas", "exch") else "u32"
    operands = "%r0, 77" if op == "cas" else "%r0"
    body = f"""{THREAD} ld.param.u64 %rd1, [a]; ld.param.u64 %rd2, [b];
    atom.global.{op}.{kind} %r1, [%rd2], {operands};
    mul.wide.u32 %rd3, %r0, 4; add.u64 %rd1, %rd1, %rd3; st.global.u32 [%rd1], %r1;"""
    run(kernel(body, [".u64 a", ".u64 b"]), old, out)
    step = {
        "cas": lambda now, t: 77 if now == t else now,
        "exch": lambda now, t: t,
        "inc": lambda now, t: 0 if now >= t else now + 1,
        "dec": lambda now, t: t if now == 0 or now > t else now - 1,
        "min": min,
        "max": max,
    }[op]
    seen = []
    for t in range(32):
        seen.append(start)
        start = step(start, t)
    assert old.tolist() == seen and out.item() == start


# --- matrices ---------------------------------------------------------------------------------
# Written from the figures of PTX ISA 9.7.14.5.15 and 9.7.14.5.16: (matrix, row, byte of the row)
# of byte j of register r of lane t.

LAYOUTS = {
    "m8n8.{n}.shared.b16": lambda r, t, j: (r, t // 4, 4 * (t % 4) + j),
    "m8n8.{n}.trans.shared.b16": lambda r, t, j: (r, 2 * (t % 4) + j // 2, t // 4 * 2 + j % 2),
    "m16n16.{n}.trans.shared.b8": lambda r, t, j: (r // 2, 4 * (t % 4) + j, t // 4 + 8 * (r % 2)),
    "m8n16.{n}.shared.b8x16.b4x16_p64": lambda r, t, j: (r, t // 4, 4 * (t % 4) + j),
    "m8n16.{n}.shared.b8x16.b6x16_p32": lambda r, t, j: (r, t // 4, 4 * (t % 4) + j),
    "m16n16.{n}.trans.shared.b8x16.b6x16_p32": lambda r, t, j: (
        r // 2,
        4 * (t % 4) + j,
        t // 4 + 8 * (r % 2),
    ),
}


def element(row: bytes, index: int, form: str) -> int:
    """Byte `index` of a row as ldmatrix delivers it."""
    bits = 4 if "b4x16" in form else 6 if "b6x16" in form else 8
    whole = int.from_bytes(row, "little")
    return whole >> bits * index & ((1 << bits) - 1)


def matrix_body(instruction: str, registers: int, load: bool) -> str:
    """Rows of 16 bytes are at 16 * (31 - lane) in shared memory, so that lanes matter."""
    names = [f"%r{20 + i}" for i in range(registers)]
    vector = "{" + ", ".join(names) + "}"
    move = f"{instruction} {vector}, [%r6];" if load else f"{instruction} [%r6], {vector};"
    fetch = "".join(f"ld.global.u32 {n}, [%rd5+{128 * i}];\n" for i, n in enumerate(names))
    keep = "".join(f"st.global.u32 [%rd5+{128 * i}], {n};\n" for i, n in enumerate(names))
    return f"""{THREAD} ld.param.u64 %rd1, [a]; ld.param.u64 %rd2, [b]; mov.u32 %r5, dyn;
    sub.u32 %r7, 31, %r0; shl.b32 %r7, %r7, 4; add.u32 %r6, %r5, %r7;
    mul.wide.u32 %rd3, %r0, 16; add.u64 %rd4, %rd1, %rd3;
    mul.wide.u32 %rd6, %r0, 4; add.u64 %rd5, %rd2, %rd6;
    ld.global.v4.u32 {{%r10, %r11, %r12, %r13}}, [%rd4];
    st.shared.v4.u32 [%r6], {{%r10, %r11, %r12, %r13}};
    {"" if load else fetch} bar.warp.sync -1;
    {move}
    {keep if load else ""} bar.warp.sync -1;
    ld.shared.v4.u32 {{%r10, %r11, %r12, %r13}}, [%r6];
    st.global.v4.u32 [%rd4], {{%r10, %r11, %r12, %r13}};"""


@pytest.mark.parametrize(
    "form, count",
    [(form, n) for form in LAYOUTS for n in ((1, 2) if "m16n16" in form else (1, 2, 4))],
)
def test_ldmatrix(form, count):
    wide = 2 if "m16n16" in form else 1
    rows, out = random_bytes(512, seed=9), torch.zeros(wide * count * 32, dtype=torch.int32)
    text = "ldmatrix.sync.aligned." + form.format(n=f"x{count}")
    run(kernel(matrix_body(text, wide * count, True), [".u64 a", ".u64 b"]), rows, out, smem=512)
    got = out.numpy().view(np.uint8).reshape(wide * count, 32, 4)
    for r in range(wide * count):
        for t in range(32):
            for j in range(4):
                matrix, row, byte = LAYOUTS[form](r, t, j)
                at = 16 * (matrix * 8 * wide + row)
                assert got[r, t, j] == element(rows[at : at + 16].numpy().tobytes(), byte, form)


@pytest.mark.parametrize("form", ["m8n8.{n}.shared.b16", "m8n8.{n}.trans.shared.b16", "b8"])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_stmatrix(form, count):
    """m16n8.b8 stores what mma.m16n8 accumulates: (m, n) = (t // 4 + 8 (j // 2), 2 (t % 4) + j % 2)
    at byte m of row n."""
    rows, values = random_bytes(512, seed=10), random_bytes(count * 128, seed=11)
    before, given = rows.clone(), values.numpy().reshape(count, 32, 4)
    layout = LAYOUTS.get(form, lambda r, t, j: (r, 2 * (t % 4) + j % 2, t // 4 + 8 * (j // 2)))
    name = form if form in LAYOUTS else "m16n8.{n}.trans.shared.b8"
    text = "stmatrix.sync.aligned." + name.format(n=f"x{count}")
    run(kernel(matrix_body(text, count, False), [".u64 a", ".u64 b"]), rows, values, smem=512)
    for r in range(count):
        for t in range(32):
            for j in range(4):
                matrix, row, byte = layout(r, t, j)
                assert rows[16 * (8 * matrix + row) + byte] == given[r, t, j]
    assert torch.equal(rows[128 * count :], before[128 * count :])


def test_movmatrix():
    """Lane t has elements (t // 4, 2 (t % 4) + 0 and 1) of a matrix, and gets those of the transposed
    one (PTX ISA 9.7.14.5.17).
    """
    held = np.arange(64, dtype=np.uint16).reshape(8, 8)
    x = torch.from_numpy(held.copy().view(np.uint8).reshape(-1))
    body = """mov.u32 %r0, %tid.x; mul.wide.u32 %rd2, %r0, 4; ld.param.u64 %rd1, [a];
    add.u64 %rd1, %rd1, %rd2; ld.global.u32 %r1, [%rd1];
    movmatrix.sync.aligned.m8n8.trans.b16 %r2, %r1; st.global.u32 [%rd1], %r2;"""
    run(kernel(body, [".u64 a"]), x)
    assert (x.numpy().view(np.uint16).reshape(8, 8) == held.T).all()


@pytest.mark.parametrize(
    "operation",
    [
        "atom.shared.add.u32 %r9, [%rd21], 1;",
        "mbarrier.init.shared::cta.b64 [%rd21], 1;",
        "cp.async.ca.shared.global [%rd21], [%rd1], 16;",
        "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%rd21], 32;"
        " tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r0, 32;",
    ],
)
def test_a_generic_address_of_shared_memory_is_a_shared_one(operation):
    """By its low 32 bits; another address of 64 bits is a fault that says what is missing."""
    body = f"""mov.u32 %r0, 0; mov.u32 %r5, dyn; cvt.u64.u32 %rd20, %r5; ld.param.u64 %rd1, [a];
    cvta.shared.u64 %rd21, %rd20; {operation}"""
    x = torch.zeros(64, dtype=torch.int32)
    run(kernel(body, [".u64 a"]), x, smem=64)
    another = "mov.u64 %rd22, 0x7f0012345680;"  # as of global memory, wherever numpy puts its own
    wrong = another + body.replace("%rd21]", "%rd22]")
    with pytest.raises(EmulatorError, match="a shared address has 32 bits"):
        run(kernel(wrong, [".u64 a"]), x, smem=64)


def test_matrices_at_an_address_of_32_bits():
    """CuTe DSL names no space and gives an address of shared memory (ptxas: LDSM, STSM)."""
    rows, values = random_bytes(512, seed=12), random_bytes(128, seed=13)
    text = "stmatrix.sync.aligned.m8n8.x1.b16"
    run(kernel(matrix_body(text, 1, False), [".u64 a", ".u64 b"]), rows, values, smem=512)
    assert torch.equal(rows[:128], values)
    out = torch.zeros(128, dtype=torch.uint8)
    text = "ldmatrix.sync.aligned.m8n8.x1.b16"
    run(kernel(matrix_body(text, 1, True), [".u64 a", ".u64 b"]), rows, out, smem=512)
    assert torch.equal(out, values)


@pytest.mark.parametrize(
    "text",
    [
        "ldmatrix.sync.aligned.m16n16.x2.shared.b8 {%r20, %r21, %r22, %r23}, [%r6];",
        "ldmatrix.sync.aligned.m8n16.x1.trans.shared.b8x16.b4x16_p64 {%r20}, [%r6];",
        "stmatrix.sync.aligned.m16n8.x1.shared.b8 [%r6], {%r20};",
    ],
)
def test_forms_that_ptx_does_not_have(text):
    with pytest.raises(EmulatorError, match="matrix") as caught:
        run(kernel(f"mov.u32 %r6, dyn; mov.u32 %r20, 0; {text}", [".u64 a"]), 0, smem=512)
    assert caught.value.kind == "unsupported"


@pytest.mark.parametrize("away, said", [(-(1 << 32), "plus"), (1 << 32, "minus")])
def test_an_offset_computed_in_32_bits_is_told(away, said):
    memory, words = GlobalMemory(), torch.zeros(16, dtype=torch.int32)
    memory.register(words.data_ptr(), 64, "x")
    with pytest.raises(Fault, match=rf"; {said} 2\^32 it is byte 8 of x: perhaps its offset"):
        memory.region(words.data_ptr() + 8 + away, 4)
    with pytest.raises(Fault, match="in no tensor's allocation$|nearest below, x"):
        memory.region(words.data_ptr() + 64 + away, 4)


def test_the_nearest_allocation_may_be_one_that_no_kernel_has_used():
    """An address just behind it names it, not what happens to be registered far below."""
    far, near = np.zeros(64, np.uint8), np.zeros(1 << 20, np.uint8)
    low, high = sorted((far, near), key=lambda array: array.ctypes.data)
    memory, start = GlobalMemory(), high.ctypes.data

    def search(memory: GlobalMemory, address: int) -> None:
        if start <= address < start + high.nbytes:
            memory.register(start, high.nbytes, "high")

    memory.also_search(search)
    memory.register(low.ctypes.data, low.nbytes, "low")
    with pytest.raises(Fault, match="8 bytes behind the end of the nearest below, high, "):
        memory.region(start + high.nbytes + 8, 4)


def test_what_is_known_is_not_searched_for():
    """A search for tensors goes through all objects: not for what a table has."""
    data, searches = np.zeros(64, np.uint8), []
    start = data.ctypes.data

    def known(memory: GlobalMemory, address: int) -> None:
        if start <= address < start + data.nbytes:
            memory.register(start, data.nbytes, "of the driver")

    memory = GlobalMemory(lambda memory, address: searches.append(address))
    memory.search_first(known)
    assert memory.region(start + 8, 4).name == "of the driver" and not searches
    with pytest.raises(Fault):
        memory.region(start + 64, 4)
    assert searches == [start + 64]


def test_a_store_to_a_peer_without_cluster_is_told_what_it_needs():
    body = """mapa.shared::cluster.u32 %r2, %r1, 1;
    st.shared.u32 [%r2], %r1;"""
    text = kernel(f"{THREAD} mov.u32 %r1, dyn; {body}", [".u64 out"])
    with pytest.raises(EmulatorError, match="an address of CTA rank 1.*shared::cluster reaches it"):
        run(text, torch.zeros(1), grid=(2, 1, 1), cluster=(2, 1, 1), smem=64)


def test_allocations_that_touch_stay_side_by_side():
    """Registering one drops those that it overlaps, by a byte or wholly, and no neighbour."""
    memory, buffer = GlobalMemory(), np.zeros(4096, np.uint8)
    base = buffer.ctypes.data

    def names() -> list[str]:
        found = (memory.find(base + at, 1) for at in range(0, 4096, 64))
        return [region.name if region else "" for region in found]

    memory.register(base + 1024, 1024, "middle")
    memory.register(base, 1024, "before")
    memory.register(base + 2048, 1024, "after")
    assert names() == ["before"] * 16 + ["middle"] * 16 + ["after"] * 16 + [""] * 16
    memory.register(base + 1023, 2, "over")
    assert memory.find(base, 1) is memory.find(base + 1025, 1) is None
    assert [memory.find(base + at, 1).name for at in (1023, 1024, 2048)] == [
        "over",
        "over",
        "after",
    ]
