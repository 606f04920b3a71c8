"""PTX for sm_100a -> sm_90a.

What is rewritten without device functions computes the same in the emulator; the rest is assembled
where ptxas and nvcc are there.
"""

from __future__ import annotations

import re
import shutil
import subprocess

import numpy as np
import pytest
import torch

from b200.chip.copies.tensormap import ELEMENT_TYPES, TensorMap
from hopper import HopperError, toolchain
from hopper.byte_tensormaps import MARK, MARK_OFFSET, four_bit_maps, maps_in, to_hopper
from hopper.rewrite import retarget, without_releases, without_tensor_core
from hopper.statements import Block
from hopper.tmem_text import register_cells
from tests.b200.ptx_support import kernel, run

DEVICE = ".version 9.0\n.target sm_90a\n.address_size 64\n.visible .func stub() { ret; }\n"
FOUR_BIT = next(i for i, e in enumerate(ELEMENT_TYPES) if e.name == "b4x16")
MMA = "tcgen05.mma.cta_group::1.kind::mxf4nvf4.block_scale.block16.collector::a::discard "
LOAD = "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
REPLACED = [
    "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r2], 128;",
    "tcgen05.alloc.cta_group::2.sync.aligned.b32 [%rd2], %r1;",
    "tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r1, 128;",
    "tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;",
    "tcgen05.cp.cta_group::1.32x128b.warpx4 [%r1+16], %rd2;",
    "tcgen05.cp.cta_group::2.64x128b.warpx2::01_23 [%r1], %rd2;",
    MMA + "[%r1], %rd1, %rd2, %r3, [%r4], [%r5], %p1;",
    MMA.replace("::1", "::2").replace("block16", "block32")
    + "[%r1+64], %rd1, %rd2, %r3, [%r4+4], [%r5], !%p1;",
    MMA + "[%r1], [%r2], %rd2, %r3, [%r4], [%r5], %p1;",
    "@%p1 tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r1+8];",
    "tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 "
    "[%r1], %rs1;",
    "tcgen05.ld.sync.aligned.32x32b.x4.b32 {%r1, %r2, %r3, %r4}, [%r5];",
    "tcgen05.ld.sync.aligned.16x256b.x1.pack::16b.b32 {%r1, %r2, %r3, %r4}, [%r5+8];",
    "tcgen05.ld.sync.aligned.16x32bx2.x2.b32 {%r1, %r2}, [%r5], 2;",
    "tcgen05.st.sync.aligned.32x32b.x2.unpack::16b.b32 [%r5], {%r1, %r2};",
    "tcgen05.st.sync.aligned.16x64b.x1.b32 [%r5], {%r1};",
    "tcgen05.wait::ld.sync.aligned;",
    "@!%p1 tcgen05.fence::after_thread_sync;",
    f"{LOAD}.multicast::cluster.L2::cache_hint.cta_group::2 "
    "[%r1+1024], [%rd1, {%r2, %r3}], [%r4], %rs1, %rd2;",
    f"{LOAD}.cta_group::1 [%r1], [%rd1, {{%r2, 4}}], [%r4];",
    "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%rd1, {%r2, %r3}], [%r4];",
    "setmaxnreg.inc.sync.aligned.u32 168;",
    "clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 "
    "[%r1], [%r2];",
    "tcgen05.st.sync.aligned.32x32b.x1.b32 [%r5+-16], {%r1};",
]
ONLY_BLACKWELL = re.compile(r"tcgen05|cta_group|setmaxnreg|clusterlaunchcontrol")


def program(body: str) -> str:
    return kernel(body, [".u64 out"])


@pytest.fixture(scope="module")
def functions() -> str:
    if shutil.which("nvcc") is None or shutil.which("ptxas") is None:
        pytest.skip("no nvcc or ptxas")
    return toolchain.with_nvcc(toolchain.source())


@pytest.mark.parametrize("instruction", REPLACED)
def test_nothing_of_blackwell_is_left(instruction):
    text = retarget(program(instruction), DEVICE).text
    assert not ONLY_BLACKWELL.search(text)
    assert ".target sm_90a" in text and "sm_100a" not in text
    if instruction.startswith("@%p1"):
        assert re.search(r"@!%p1 bra (HOPPER_SKIP_\d+);.*\1:", text, re.S)


@pytest.mark.parametrize("rewrite", [retarget, without_tensor_core])
def test_all_of_it_assembles(functions, tmp_path, rewrite):
    file = tmp_path / "all.ptx"
    file.write_text(rewrite(program("\n".join(REPLACED)), functions).text)
    command = ["ptxas", "-arch=sm_90a", str(file), "-o", str(tmp_path / "all.cubin")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_arrives_of_the_load_pipeline():
    """A left-out commit arrives without release; the kernel's own arrives release, or do not."""
    commit = "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r1];"
    own = "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r2];"
    text = program(f"{commit}\n{own}")
    kept, relaxed = (f(text, DEVICE).text for f in (without_tensor_core, without_releases))
    assert kept.count("mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _,") == 1
    assert kept.count(own) == 1
    assert relaxed == kept.replace(own, own.replace("release", "relaxed"))


COPY_OF_B = "mov.b64 %rd4, b; cvta.param.u64 %rd5, %rd4;\n"


@pytest.mark.parametrize(
    ("before", "four_bit", "marks", "halved"),
    [
        ("", {}, 1, 1),
        ("", {"a": True}, 0, 1),
        ("", {"a": False}, 0, 0),
        (COPY_OF_B + "selp.b64 %rd1, %rd5, %rd3, %p1;", {"a": True, "b": True}, 0, 1),
        (COPY_OF_B + "selp.b64 %rd1, %rd5, %rd3, %p1;", {"a": False, "b": False}, 0, 0),
        (COPY_OF_B + "@%p1 mov.b64 %rd1, %rd5;", {"a": True, "b": False}, 1, 1),
        (COPY_OF_B + "@%p1 mov.b64 %rd1, %rd5;", {"a": True}, 1, 1),
        ("add.s64 %rd1, %rd1, 128;", {"a": True}, 1, 1),
        ("ld.global.v2.b64 {%rd9, %rd1}, [%rd7];", {"a": True}, 1, 1),
    ],
)
def test_marks_are_looked_for_where_the_kind_of_map_is_not_known(before, four_bit, marks, halved):
    load = (
        "mov.b64 %rd2, a;\ncvta.param.u64 %rd3, %rd2;\nmov.b64 %rd1, %rd3;\n"
        f"{before}\n"
        "cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes "
        "[%r1], [%rd1, {%r2, %r3}], [%r4];"
    )
    text = without_tensor_core(program(load), DEVICE, four_bit).text
    assert text.count(f"+{MARK_OFFSET}]") == marks and text.count("shr.s32") == halved


def test_a_commit_arrives_at_the_ctas_of_its_cluster():
    commit = (
        "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 "
        "[%r1], %rs1;"
    )
    for ctas in (2, 4, 16):
        text = without_tensor_core(program(commit), DEVICE, cluster=ctas).text
        assert text.count("mbarrier.arrive.relaxed.cluster") == text.count("mapa.") == ctas


def test_the_kinds_of_maps_among_parameters():
    bytes_, nibbles = (
        TensorMap(1 << 20, i, (256, 64), (stride,), (128, 8), (1, 1)).encode()
        for i, stride in ((0, 256), (FOUR_BIT, 128))
    )
    text = """.version 8.8
.target sm_100a
.address_size 64
.visible .entry k(.param .u64 n, .param .align 64 .b8 a[128], .param .align 64 .b8 b[128])
{ ret; }
"""
    params = bytes(64) + nibbles + bytes_
    assert four_bit_maps(params, text, "k") == {"a": True, "b": False}
    assert four_bit_maps(bytes(320), text, "k") == {}


def test_what_a_module_needs():
    plain = retarget(program("add.s32 %r1, %r1, 1;"), DEVICE)
    assert not plain.tmem and not plain.private_bytes and "stub" not in plain.text
    assert ".version 8.8" in plain.text
    calls = retarget(program(REPLACED[0]), DEVICE)
    assert (
        calls.tmem
        and not calls.private_bytes
        and calls.text.index("stub") < calls.text.index("entry")
    )
    assert ".version 9.0" in calls.text
    pair = retarget(program(REPLACED[18]), DEVICE)
    assert pair.tmem and pair.private_bytes == 256


@pytest.mark.parametrize(
    "body, words",
    [
        ("tcgen05.shift.cta_group::1.down [%r1];", "not carried over"),
        ("tcgen05.mma.cta_group::1.kind::f16 [%r1], %rd1, %rd2, %r3, %p1;", "mxf4nvf4"),
        (
            f"{LOAD.replace('tile', 'tile::gather4')} [%r1], [%rd1, {{%r2, %r2, %r2, %r2, %r2}}], [%r4];",
            "gather4",
        ),
    ],
)
def test_what_is_not_carried_over_is_named(body, words):
    with pytest.raises(HopperError, match=words) as error:
        retarget(program(body), DEVICE)
    assert error.value.kind == "unsupported"


def test_other_targets_are_refused():
    with pytest.raises(HopperError, match="sm_90a: expected sm_100a"):
        retarget(program("").replace("sm_100a", "sm_90a"), DEVICE)


ARITHMETIC = """
ld.param.u64 %rd1, [out];
mov.u32 %r1, %tid.x;
mul.wide.u32 %rd2, %r1, 32;
add.u64 %rd1, %rd1, %rd2;
ld.global.L1::no_allocate.v8.b32 {%r2, %r3, %r4, %r5, %r6, %r7, %r8, %r9}, [%rd1];
mov.b64 %rd3, {%r2, %r3};
mov.b64 %rd4, {%r4, %r5};
mov.b64 %rd5, {%r6, %r7};
fma.rn.f32x2 %rd6, %rd3, %rd4, %rd5;
add.rz.ftz.f32x2 %rd7, %rd6, %rd3;
mul.rn.f32x2 %rd8, %rd5, %rd4;
sub.rn.f32x2 %rd9, %rd3, %rd5;
max.f32 %r8, %r2, %r3, %r4;
min.NaN.f32 %r9, %r5, %r6, %r7;
mov.b64 %rd10, {%r8, %r9};
add.rn.f32x2 %rd9, %rd9, %rd10;
st.global.v4.b64 [%rd1], {%rd6, %rd7, %rd8, %rd9};
"""


def test_arithmetic_and_wide_accesses_compute_the_same():
    values = torch.from_numpy(np.random.default_rng(4).normal(size=(32, 8)).astype(np.float32))
    before, after = values.clone(), values.clone()
    text = program(ARITHMETIC)
    changed = retarget(text, DEVICE).text
    assert not re.search(r"f32x2|\.v8|v4\.b64", changed)
    run(text, before)
    run(changed, after)
    assert torch.equal(before.view(torch.int32), after.view(torch.int32))
    assert not torch.equal(before, values)


TMA = f"""
ld.param.u64 %rd1, [out];
mov.b64 %rd2, map;
cvta.param.u64 %rd3, %rd2;
mov.u32 %r1, %tid.x;
mov.u32 %r2, dyn;
add.u32 %r3, %r2, 4096;
setp.ne.u32 %p1, %r1, 0;
@%p1 bra WAIT;
mbarrier.init.shared.b64 [%r3], 1;
mbarrier.arrive.expect_tx.shared.b64 _, [%r3], 2048;
mov.b32 %r4, X;
{LOAD} [%r2], [%rd3, {{%r4, 5}}], [%r3];
WAIT:
bar.warp.sync -1;
LOOP:
mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r3], 0;
@!%p2 bra LOOP;
shl.b32 %r5, %r1, 6;
add.u32 %r6, %r2, %r5;
cvt.u64.u32 %rd4, %r5;
add.u64 %rd4, %rd4, %rd1;
""" + "".join(
    f"ld.shared.v4.b32 {{%r7, %r8, %r9, %r10}}, [%r6+{i}];\n"
    f"st.global.v4.b32 [%rd4+{i}], {{%r7, %r8, %r9, %r10}};\n"
    for i in range(0, 64, 16)
)


@pytest.mark.parametrize("x", [0, 96, -32, 352])
def test_tensormaps_of_4_bits_become_bytes(x):
    source = torch.randint(0, 256, (40 * 208,), dtype=torch.uint8)
    t = TensorMap(source.data_ptr(), FOUR_BIT, (400, 40), (208,), (256, 16), (1, 1), swizzle=3)
    text = kernel(TMA.replace("X;", f"{x};"), [".u64 out", ".align 64 .b8 map[128]"])
    outs = []
    for program_text, raw in (
        (text, t.encode()),
        (retarget(text, DEVICE).text, to_hopper(t.encode())),
    ):
        out = torch.zeros(2048, dtype=torch.uint8)
        launch(program_text, out, raw)
        outs.append(out)
    assert torch.equal(*outs) and outs[0].any()


def launch(text: str, out: torch.Tensor, raw: bytes) -> None:
    from b200.chip.gpu import Gpu
    from b200.program.parse import parse

    params = out.data_ptr().to_bytes(8, "little").ljust(64, b"\0") + raw
    Gpu().launch(parse(text), "k", (1, 1, 1), (32, 1, 1), (1, 1, 1), 4096 + 16, params)


def test_a_tensormap_for_hopper():
    """Half the extent and the box of dimension 0, the same bytes; Blackwell's hints are cleared, promotion is kept."""
    t = TensorMap(0x1000, FOUR_BIT, (512, 64, 3), (256, 16384), (256, 128, 1), (1, 1, 1), swizzle=3)
    raw = bytearray(t.encode())
    raw[8] |= 2  # a hint of Blackwell's encoder
    raw[10] |= 0x04 | 0x20  # L2 promotion of 128 bytes; another hint
    raw[64:] = bytes(range(64))  # what the DSL leaves undefined
    words = np.frombuffer(to_hopper(bytes(raw)), np.uint64)
    assert words[0] == 0x1000 and words[1] & 0xFFFFFFFF == 2 << 4 | 0 << 7 | 3 << 13 | 2 << 17
    assert words[4] & 0xFFFFFFFF == 255 and words[6] >> 56 == 127 and words[7] & 0xFF == 127
    assert not words[8:15].any() and int(words[15]) >> 32 == MARK and MARK_OFFSET == 124
    bytes_map = TensorMap(0x1000, 0, (256, 64), (256,), (128, 8), (1, 1))
    assert to_hopper(bytes_map.encode()) == bytes_map.encode()


@pytest.mark.parametrize(
    "changes", [dict(format=12, dims=(512, 64), box=(128, 8)), dict(swizzle=3, atomicity=1)]
)
def test_tensormaps_that_hopper_cannot_have(changes):
    fields = dict(
        address=0x1000, format=0, dims=(256, 64), strides=(256,), box=(128, 8), steps=(1, 1)
    )
    with pytest.raises(HopperError, match="Hopper"):
        to_hopper(TensorMap(**{**fields, **changes}).encode())


def test_tensormaps_are_found_among_parameters():
    t = TensorMap(0x1000, FOUR_BIT, (512, 64), (256,), (256, 128), (1, 1), swizzle=3).encode()
    not_one = b"\xff" * 128
    params = bytes(64) + t + not_one + t
    assert maps_in(params, [(0, 64, 8), (64, 128, 64), (192, 128, 64), (320, 128, 4)]) == [64]


@pytest.mark.parametrize(
    "shape, registers, cells",
    [
        ("32x32b", 3, [(0, 0), (0, 1), (0, 2)]),
        ("16x64b", 2, [(0, 0), (0, 2)]),
        ("16x128b", 4, [(0, 0), (8, 0), (0, 4), (8, 4)]),
        ("16x256b", 8, [(0, 0), (0, 1), (8, 0), (8, 1), (0, 8), (0, 9), (8, 8), (8, 9)]),
    ],
)
def test_registers_of_tcgen05_ld(shape, registers, cells):
    """(lane, column) from register 0 (PTX ISA 9.7.16.2.3)."""
    assert register_cells(shape, registers) == cells


@pytest.mark.parametrize("token", ["[%r1+-16]", "[%r1-16]", "[ %r1 + -16 ]"])
def test_an_address_before_its_base(token):
    """Both ways in which compilers write it (PTX ISA 6.4.1); the DSL's has a plus."""
    block = Block()
    assert block.address(token) == "hopper_b32_0"
    assert block.lines == ["add.s32 hopper_b32_0, %r1, -16;"]
