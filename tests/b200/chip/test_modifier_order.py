"""Modifiers in any order that ptxas takes mean what they mean in the grammar's order.

The forms are those of PTX ISA 9.7; that ptxas 13.0 takes them with one modifier moved was tried.
"""

from __future__ import annotations

import pytest
import torch

from b200.errors import EmulatorError
from b200.isa import grammar
from tests.b200.ptx_support import kernel, run

FORMS = """
cp.async.bulk.tensor 2d|shared::cluster|global|tile|mbarrier::complete_tx::bytes|multicast::cluster|cta_group::2|L2::cache_hint
cp.async.bulk.tensor 2d|global|shared::cta|tile|bulk_group|L2::cache_hint
cp.async.bulk shared::cluster|global|mbarrier::complete_tx::bytes|multicast::cluster|L2::cache_hint
cp.async.bulk global|shared::cta|bulk_group|L2::cache_hint
cp.reduce.async.bulk global|shared::cta|bulk_group|L2::cache_hint|add|noftz|f16
cp.async ca|shared|global|L2::128B
fence.proxy async|shared::cta
fence mbarrier_init|release|cluster
fence acq_rel|cta
fence.proxy tensormap::generic|acquire|gpu
fence.proxy async::generic|acquire|sync_restrict::shared::cluster|cluster
red.async relaxed|cluster|shared::cluster|mbarrier::complete_tx::bytes|add|u32
st.async weak|shared::cluster|mbarrier::complete_tx::bytes|v2|b32
tensormap.replace tile|global_address|global|b1024|b64
mma sync|aligned|m16n8k16|row|col|f32|f16|f16|f32
shfl sync|bfly|b32
vote sync|ballot|b32
match any|sync|b32
redux sync|add|s32
barrier cta|sync|aligned
cvt rn|satfinite|e4m3x2|f32
cvt rna|satfinite|tf32|f32
add cc|u32
prmt b32|f4e
""".strip().splitlines()
SPACES = ("global", "shared", "shared::cta", "shared::cluster")
ORDERED = (*SPACES, "row", "col", "f16", "f32", "e4m3x2", "tf32", "b64", "b1024")


def with_one_moved(parts: list[str]):
    """Each list with one part elsewhere, but for those that exchange two of one kind."""
    spaces = [part for part in parts if part in ORDERED]
    for i in range(len(parts)):
        for j in range(len(parts)):
            moved = [*parts[:i], *parts[i + 1 :]]
            moved.insert(j, parts[i])
            if [part for part in moved if part in ORDERED] == spaces:
                yield moved


def in_order(opcode: str) -> str:
    found = grammar.match(opcode)
    assert found is not None, opcode
    return found.name


@pytest.mark.parametrize("form", FORMS)
def test_a_moved_modifier_goes_back_to_its_place(form):
    head, _, modifiers = form.partition(" ")
    parts = modifiers.split("|")
    found = {in_order(".".join((head, *moved))) for moved in with_one_moved(parts)}
    assert found == {".".join((head, *parts))}


def test_what_stands_in_two_places_keeps_its_order():
    assert in_order("cp.async.bulk.global.bulk_group.shared::cta").startswith(
        "cp.async.bulk.global.shared::cta"
    )
    assert in_order("cvt.f32.rn.f64") == "cvt.rn.f32.f64"
    assert in_order("cvt.sat.f64.f16") == "cvt.sat.f64.f16"
    assert grammar.match("cvt.rn.f64.f32") is None  # rounding belongs to the narrower result


@pytest.mark.parametrize(
    "add, shuffle",
    [("add.cc.u32", "shfl.sync.bfly.b32"), ("add.u32.cc", "shfl.b32.sync.bfly")],
)
def test_results_are_the_same(add, shuffle):
    out = torch.zeros(32, dtype=torch.int32)
    body = f"""mov.u32 %r0, %tid.x; mov.u32 %r1, 0xFFFFFFFF; {add} %r2, %r1, %r0;
    addc.u32 %r3, 0, 0; {shuffle} %r4|%p1, %r3, 1, 31, -1;
    ld.param.u64 %rd1, [out]; mad.wide.u32 %rd1, %r0, 4, %rd1; st.global.u32 [%rd1], %r4;"""
    run(kernel(body, [".u64 out"]), out)
    assert out.tolist() == [1, 0] + [1] * 30  # only lane 0 does not carry; its neighbour gets that


@pytest.mark.parametrize(
    "statement, why",
    [
        ("add.sat.u32 %r1, %r2, %r3", "does not go with"),
        ("mul.wide.f32 %r1, %r2, %r3", "does not go with"),
        ("ld.banana.u32 %r1, [%rd1]", "ld has no modifier .banana"),
        ("exit.uni", "exit has no modifier .uni"),
        ("atom.exch.u32 %r1, [%rd1], %r2", ".u32 does not go with"),
        ("mbarrier.arrive.release.b64 _, [%rd1]", "one of .cluster, .cta is missing"),
        ("mul.u32 %r1, %r2, %r3", "one of .hi, .lo is missing"),
        ("cp.async.bulk.wait_group.sync_restrict::proxy::async 0", "(PTX 9.5), not modelled"),
        ("tcgen05.mma.cta_group::1.sp.kind::f16 [%r1], %rd1, %rd2, [%r3], %r2, %p1", "sparse A"),
        ("tcgen05.mma.kind::f16.cta_group::1.sp [%r1], %rd1, %rd2, [%r3], %r2, %p1", "sparse A"),
        ("frobnicate.u32 %r1, %r2", "instruction frobnicate is not modelled"),
    ],
)
def test_what_is_not_modelled_stops_the_launch_by_name_and_reason(statement, why):
    with pytest.raises(EmulatorError) as refused:
        run(kernel(f".loc 1 7 0\n{statement};", []))
    said = str(refused.value)
    assert said.startswith("kernel.py:7: ") and f"(PTX: {statement})" in said and why in said


@pytest.mark.parametrize("version, taken", [("8.8", False), ("9.1", False), ("9.2", True)])
def test_a_form_that_is_newer_than_the_module_is_refused(version, taken):
    """As ptxas 13.5 says: 'cvt.bf16x2.e4m3x2' requires PTX ISA .version 9.2 or later."""
    text = kernel("cvt.rn.bf16x2.e4m3x2 %r1, %rs1;", []).replace(
        ".version 8.8", f".version {version}"
    )
    if taken:
        run(text)
        return
    with pytest.raises(EmulatorError, match=f"of PTX 9.2, and the module's .version is {version}"):
        run(text)
