"""The text that two programs are compared by on a Hopper GPU: loads of a pair, wide stores, what is
left out.
"""

from __future__ import annotations

import re
import struct

import pytest
import torch

import b200
from b200.chip.copies.tensormap import ELEMENT_TYPES, TensorMap
from b200.chip.gpu import Gpu
from b200.program.parse import parse
from hopper import HopperError
from hopper.byte_tensormaps import LaunchFacts
from hopper.rewrite import loads_and_epilogue, only
from hopper.run import carried_over, facts_of, places_of
from tests.b200.ptx_support import kernel

NIBBLES = next(i for i, e in enumerate(ELEMENT_TYPES) if e.name == "b4x16")
STUB = ".version 8.8\n"
GATHER = (
    "cp.async.bulk.tensor.2d.shared::cta.global.tile::gather4.mbarrier::complete_tx::bytes"
    " [%r1], [%rd1, {%r2, %r3, %r4, %r5, %r6}], [%r7];"
)


def measured(text: str, params: bytes, name: str = "k", cluster: int = 1):
    """The rewritten module of a launch."""
    facts = facts_of(text, name, (cluster, 1, 1), params)
    return loads_and_epilogue(text, STUB, name, facts, cluster)


# --- loads of a pair ----------------------------------------------------------------------------

ROWS, ROW = 8, 128  # of a box, bytes
BOX = ROWS * ROW
PAIR = f"""
ld.param.u64 %rd1, [out];
mov.b64 %rd2, maps;
cvta.param.u64 %rd3, %rd2;
mov.u32 %r1, %tid.x;
mov.u32 %r2, %cluster_ctarank;
mov.b32 %r3, dyn;
add.u32 %r4, %r3, {4 * BOX};
setp.ne.u32 %p1, %r1, 0;
@%p1 bra READY;
mbarrier.init.shared.b64 [%r4], 2;
fence.mbarrier_init.release.cluster;
READY:
barrier.cluster.arrive;
barrier.cluster.wait;
@%p1 bra LOADED;
mov.b32 %r5, %r4;
cvt.u64.u32 %rd4, %r4;
mapa.shared::cluster.u32 %r5, %r4, 0;
setp.ne.u32 %p3, %r2, 0;
mul.wide.u32 %rd5, %r2, 128;
add.u64 %rd5, %rd3, %rd5;
mbarrier.arrive.expect_tx.release.cluster.shared::cluster.b64 _, [%r5], {{BYTES}};
{{LOADS}}
LOADED:
setp.ne.u32 %p4, %r2, 0;
@%p4 bra BEHIND;
WAIT:
mbarrier.try_wait.parity.shared.b64 %p5, [%r4], 0;
@!%p5 bra WAIT;
BEHIND:
barrier.cluster.arrive;
barrier.cluster.wait;
mul.lo.u32 %r6, %r2, {4 * BOX};
mov.b32 %r7, %r1;
COPY:
add.u32 %r8, %r3, %r7;
ld.shared.u8 %r9, [%r8];
add.u32 %r10, %r6, %r7;
cvt.u64.u32 %rd7, %r10;
add.u64 %rd7, %rd7, %rd1;
st.global.u8 [%rd7], %r9;
add.u32 %r7, %r7, 32;
setp.lt.u32 %p6, %r7, {4 * BOX};
@%p6 bra COPY;
"""
TMA = (
    "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes{mod}.cta_group::2"
    " [{to}], [{map}, {{0, {y}}}], [%r5]{rest};"
)


def pair_kernel(multicast: bool) -> tuple[str, list[tuple[int, int]]]:
    """(PTX, what lies where): each CTA of a pair loads its own map to its shared memory, 4-bit
    values and bytes, and tells the even CTA's barrier; with multicast each loads its map to both.
    """
    if multicast:
        loads = "".join(
            f"setp.ne.u32 %p7, %r2, {rank}; mov.b16 %rs1, 3; add.u32 %r11, %r3, {rank * BOX}; @!%p7 "
            + TMA.format(mod=".multicast::cluster", to="%r11", map="%rd5", y=0, rest=", %rs1")
            for rank in (0, 1)
        )
        nbytes, lies = 2 * BOX, [(0, 0), (1, BOX), (0, 4 * BOX), (1, 5 * BOX)]
    else:
        loads = TMA.format(mod="", to="%r3", map="%rd5", y=0, rest="")
        nbytes, lies = BOX, [(0, 0), (1, 4 * BOX)]
    body = PAIR.replace("{BYTES}", str(nbytes)).replace("{LOADS}", loads)
    return kernel(body, [".u64 out", ".align 64 .b8 maps[256]"]), lies


def pair_operands() -> tuple[list[torch.Tensor], torch.Tensor, bytes]:
    """(what the maps are of, out, parameters) of a `pair_kernel`."""
    sources = [torch.randint(1, 255, (BOX,), dtype=torch.uint8) for _ in range(2)]
    maps = [
        TensorMap(sources[0].data_ptr(), NIBBLES, (256, ROWS), (128,), (256, ROWS), (1, 1)),
        TensorMap(sources[1].data_ptr(), 0, (128, ROWS), (128,), (128, ROWS), (1, 1)),
    ]
    out = torch.zeros(8 * BOX, dtype=torch.uint8)
    params = struct.pack("<Q", out.data_ptr()).ljust(64, b"\0")
    return sources, out, params + b"".join(t.encode() for t in maps)


@pytest.mark.parametrize("multicast", [False, True])
def test_loads_of_a_pair_land_and_are_counted(multicast):
    """The even CTA's barrier completes, and all lands, as in the program before."""
    text, lies = pair_kernel(multicast)
    sources, out, params = pair_operands()
    found = measured(text, params, cluster=2)
    assert found.private_bytes == 256 and "cta_group" not in found.text
    assert "tensor.2d" in found.text and "hopper_pair" not in found.text
    for program, given, smem in (
        (text, params, 4 * BOX + 64),
        (found.text, carried_over(params, places_of(text, "k"), found), 4 * BOX + 64 + 256),
    ):
        out.zero_()
        Gpu().launch(parse(program), "k", (2, 1, 1), (32, 1, 1), (2, 1, 1), smem, given)
        for source, at in lies:
            assert torch.equal(out[at : at + BOX], sources[source]), (program is text, source, at)


# Two pairs of two warps, of which the second ends at once. CTA r loads 4-bit values for itself and
# the CTA on its side of the other pair, to box r / 2; the even CTAs wait for both boxes.
TWO_PAIRS = f"""
mov.u32 %r1, %tid.x;
mov.u32 %r2, %cluster_ctarank;
setp.ge.u32 %p1, %r1, 32;
@%p1 bra OVER;
and.b32 %r6, %r2, 1;
mov.b32 %r3, dyn;
add.u32 %r4, %r3, {2 * BOX};
setp.ne.u32 %p2, %r1, 0;
@%p2 bra READY;
mbarrier.init.shared.b64 [%r4], 2;
fence.mbarrier_init.release.cluster;
READY:
barrier.cluster.arrive.relaxed;
barrier.cluster.wait;
@%p2 bra WAIT;
mov.b64 %rd2, maps;
cvta.param.u64 %rd3, %rd2;
and.b32 %r5, %r4, 0xFEFFFFFF;
mbarrier.arrive.expect_tx.release.cluster.shared::cluster.b64 _, [%r5], {2 * BOX};
shr.u32 %r7, %r2, 1;
shl.b32 %r8, 5, %r6;
cvt.u16.u32 %rs1, %r8;
mad.lo.u32 %r9, %r7, {BOX}, %r3;
{TMA.format(mod=".multicast::cluster", to="%r9", map="%rd3", y=0, rest=", %rs1")}
WAIT:
setp.ne.u32 %p3, %r6, 0;
@%p3 bra TOLD;
FULL:
mbarrier.try_wait.parity.shared.b64 %p5, [%r4], 0;
@!%p5 bra FULL;
TOLD:
barrier.cluster.arrive.relaxed;
barrier.cluster.wait;
OVER:
"""


@pytest.mark.parametrize("both_sides", [False, True])
def test_no_cta_leaves_before_what_a_multicast_brings_it_has_landed(both_sides):
    """What nobody waits for where MMAs are left out; what lands in a CTA that has left is a launch
    failure. A mask of one side of the pairs, and of both."""
    *_kept, params = pair_operands()
    if both_sides:
        text, ctas, threads, smem = pair_kernel(True)[0], 2, 32, 4 * BOX + 64
    else:
        text = kernel(TWO_PAIRS, [".u64 out", ".align 64 .b8 maps[256]"], reqntid=64)
        ctas, threads, smem = 4, 64, 2 * BOX + 64
    found = measured(text, params, cluster=ctas)
    for program, given, dynamic in (
        (text, params, smem),
        (found.text, carried_over(params, places_of(text, "k"), found), found.smem(smem)),
    ):
        gpu = Gpu()
        gpu.machine = b200.machine(gpu.memory)
        shape = (ctas, 1, 1), (threads, 1, 1), (ctas, 1, 1)
        launch = gpu.launch(parse(program), "k", *shape, dynamic, given)
        assert launch.findings is not None
        wrong = [str(f) for f in launch.findings if f.kind == "lifetime"]
        assert not wrong, (program is text, wrong)


def test_what_is_known_of_tensormaps_is_told_by_their_address():
    facts = LaunchFacts("p", 2, ((64, True, 512), (192, True, 1024), (320, False, 1024)))
    assert facts.steps(1) == [(64, 1), (320, 0)] and facts.steps(2) == [(64, 512), (192, 1024)]
    one = LaunchFacts("p", 1, ((0, True, 512), (128, True, 512)))
    load = (
        "cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes "
        "[%r1], [%rd1, {%r2, %r3}], [%r4];"
    )
    text = loads_and_epilogue(kernel(load, [".u64 p"]), STUB, "k", one, 1).text
    assert ", 1;" in text.partition("shr.s32")[2] and "setp.ge" not in text and "ld." not in text
    text = loads_and_epilogue(kernel(load, [".u64 p"]), STUB, "k", facts, 1).text
    assert text.count("setp.ge.u32") == 1 and "+124]" not in text


# --- the epilogue -------------------------------------------------------------------------------

STORES = {
    "b32": "st.global.L1::no_allocate.L2::evict_last.v8.b32 [%rd3+32], {VALUES};",
    "f32": "st.global.v8.f32 [%rd3+32], {VALUES};",
    "b64": "st.global.v4.b64 [%rd3+32], {VALUES};",
}


@pytest.mark.parametrize("kind", STORES)
@pytest.mark.parametrize("lanes", [32, 21])
def test_wide_stores_write_what_they_wrote(kind, lanes):
    """By all lanes of a warp, sector by sector, or by some of them, in halves."""
    names = {"b32": "r", "f32": "f", "b64": "rd"}[kind]
    count = 4 if kind == "b64" else 8
    values = [f"%{names}{i + 20}" for i in range(count)]
    sets = "".join(
        f"mad.lo.u32 %r10, %r1, 100, {i + 7}; "
        + {"b32": "mov.b32 {0}, %r10;", "f32": "cvt.rn.f32.u32 {0}, %r10;"}.get(
            kind, "mul.wide.u32 {0}, %r10, 70001;"
        ).format(value)
        for i, value in enumerate(values)
    )
    body = f"""
    .reg .f32 %f<40>;
    ld.param.u64 %rd1, [out];
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %rd2, %r1, 32;
    add.u64 %rd3, %rd1, %rd2;
    setp.ge.u32 %p1, %r1, {lanes};
    @%p1 bra OVER;
    {sets}
    {STORES[kind].replace("VALUES", ", ".join(values))}
    OVER:
    """
    text = kernel(body, [".u64 out"])
    changed = loads_and_epilogue(text, STUB, "k", None, 1).text
    assert not re.search(r"\.v8|v4\.b64|evict_last", changed) and "shfl.sync.idx" in changed
    outs = []
    for program in (text, changed):
        out = torch.zeros(34 * 32, dtype=torch.uint8)
        Gpu().launch(program, "k", (1, 1, 1), (32, 1, 1), args=[out])
        outs.append(out)
    assert torch.equal(*outs) and outs[0][: 32 * (lanes + 1)].any()


def test_an_epilogue_works_on_values_that_are_not_known():
    load = "tcgen05.ld.sync.aligned.32x32b.x4.b32 {%r1, %r2, %r3, %r4}, [%r5];"
    text = loads_and_epilogue(kernel(load, [".u64 p"]), STUB, "k", None, 1).text
    assert re.findall(r"xor\.b32 %r(\d), \w+, (\d)", text) == [*zip("1234", "0123")]


def test_other_kernels_of_a_module_are_left_out():
    """What Hopper cannot run of them is not refused."""
    entry = kernel("mov.b32 %r1, 7;", [".u64 p"]).partition(".visible")[2]
    both = kernel(GATHER, [".u64 p"], name="other") + ".visible" + entry
    assert list(parse(both).kernels) == ["other", "k"]
    kept = only(both, "k")
    assert list(parse(kept).kernels) == ["k"] and ".loc" not in kept
    loads_and_epilogue(both, STUB, "k", None, 1)
    with pytest.raises(HopperError, match="gather4"):
        loads_and_epilogue(both, STUB, "other", None, 1)
