"""Bulk stores with a mask of bytes write those alone (PTX ISA 9.7.9.25.4.1), and a bulk reduction is
relaxed at GPU scope, so that an atomic beside it needs that scope, too (9.7.9.25.4.2, 8.7).
"""

import pytest

from tests.b200.checker.launched import errors_of
from tests.planted_bugs.cta import start

TWICE = "cp.async.bulk.global writes global memory that cp.async.bulk.global of the same warp may"
FAR = "strong accesses of two CTAs meet, and the scope of one does not reach the other CTA"


def group(k, text: str, mark: str):
    k(text, mark)
    k("cp.async.bulk.commit_group;")


def filled(k):
    k("st.shared.u32 [%r3], %r0;")
    k("st.shared.u32 [%r3+128], %r0;")
    k("fence.proxy.async.shared::cta;")
    k("bar.sync 0;")


@pytest.mark.parametrize(
    "first, second, right",
    [(0x00FF, 0xFF00, True), (0x5555, 0xAAAA, True), (0x00FF, 0xFF80, True), (0x00FF, 0xFFC0, False),
     (0, 0xFFFF, True), (0xFFFF, 0x0003, False)],
)  # fmt: skip
def test_masks_that_meet(first, second, right):
    """The shadow has an entry for two bytes: one byte in common is missed (memory-order.md)."""

    def store(mask: int, at: int):
        k(f"mov.b16 %h1, {mask};")
        where = f"[%rd0], [%r1+{at}], 64, %h1;"
        group(k, f"cp.async.bulk.global.shared::cta.bulk_group.cp_mask {where}", f"{at}")

    k = start(32)
    filled(k)
    k.only(0, lambda: (store(first, 0), store(second, 64), k("cp.async.bulk.wait_group 0;")))
    found = [f.diagnosis for f in errors_of(k, 1, 64)]
    assert [TWICE in diagnosis for diagnosis in found] == [True] * (not right)


@pytest.mark.parametrize("scope", ["gpu", "cta", "cluster"])
def test_a_reduction_beside_an_atomic(scope):
    """CTA 0 adds with a bulk reduction, CTA 1 with red."""
    k = start(32)
    filled(k)
    k("mov.u32 %r9, %ctaid.x;")
    k("setp.ne.u32 %p4, %r9, 0;")
    k("@%p4 bra OTHER;")
    where = "add.u32 [%rd0], [%r1], 128;"
    add = f"cp.reduce.async.bulk.global.shared::cta.bulk_group.{where}"
    k.only(0, lambda: (group(k, add, "bulk"), k("cp.async.bulk.wait_group 0;")))
    k("bra END;")
    k("OTHER: mul.wide.u32 %rd8, %r0, 4;")
    k("add.u64 %rd9, %rd0, %rd8;")
    k(f"red.relaxed.{scope}.global.add.u32 [%rd9], %r9;")
    k("END: mov.u32 %r9, 0;")
    found = [f.diagnosis for f in errors_of(k, 2, 64)]
    assert found == ([] if scope == "gpu" else [FAR])
