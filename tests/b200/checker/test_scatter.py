"""tile::scatter4 with a row that it names twice (PTX ISA 9.7.9.25.5.2, 8.7): either of two different
rows may stay. Equal rows, rows outside of the tensor and reductions do no harm.
"""

import pytest
import torch

import b200
from b200.chip.copies.tensormap import TensorMap
from b200.chip.gpu import Gpu
from tests.b200.checker.checks_page import unexplained
from tests.planted_bugs.case import Source

TWICE = "one tile::scatter4 stores different values to a row twice"


def errors(
    rows: str, value: str = "%r0", grid: int = 1, first_row: str = "0", column: int = 0
) -> list[str]:
    """What is said of a store of four rows of 32 integers; a thread fills each with `value`. column: of the first
    integer, in a tensor of 64.
    """
    words = torch.zeros(64 * 16, dtype=torch.int32)
    place = TensorMap(
        address=words.data_ptr(), format=2, dims=(64, 16), strides=(256,), box=(32, 1)
    )
    k = Source(".param .align 64 .b8 map[128], .param .u64 out", 128)
    k("mov.u32 %r0, %tid.x; mov.u32 %r1, dyn; mov.u32 %r8, %ctaid.x;")
    k("mov.b64 %rd1, map; cvta.param.u64 %rd1, %rd1;")
    k("shl.b32 %r3, %r0, 2; add.u32 %r3, %r3, %r1;")
    k("and.b32 %r5, %r0, 31;")
    k(f"st.shared.u32 [%r3], {value};")
    k("fence.proxy.async.shared::cta;")
    k("bar.sync 0;")
    k(f"mov.u32 %r6, {first_row};")

    def store():
        where = f"[%rd1, {{{column}, {rows}}}], [%r1];"
        k(f"cp.async.bulk.tensor.2d.global.shared::cta.tile::scatter4.bulk_group {where}")
        k("cp.async.bulk.commit_group;")
        k("cp.async.bulk.wait_group 0;")

    k.only(0, store)
    gpu = Gpu()
    gpu.machine = b200.machine(gpu.memory)
    sizes = (grid, 1, 1), (128, 1, 1), (1, 1, 1), 0x8000
    launch = gpu.launch(k.text("k"), None, *sizes, (place.encode(), words))
    found = [f for f in launch.findings or () if f.severity != "note"]
    assert not unexplained(found)
    return [f.diagnosis for f in found]


@pytest.mark.parametrize(
    "rows, value, wanted",
    [
        ("0, 3, 3, 7", "%r0", [TWICE]),
        ("9, 3, 5, 9", "%r0", [TWICE]),
        ("0, 3, 5, 7", "%r0", []),
        ("0, 3, 3, 7", "%r5", []),
        ("0, 3, 99, 99", "%r0", []),
    ],
)
def test_a_row_that_is_named_twice(rows, value, wanted):
    assert errors(rows, value) == wanted


def test_a_cta_that_names_a_row_twice_where_another_does_not():
    """CTA 1 takes the steps of CTA 0, with other rows: 4, 5, 6 and 5."""
    rows = "%r6, 5, 6, %r9"
    assert TWICE in errors(rows, grid=2, first_row="%r8; mad.lo.u32 %r9, %r8, -2, 7")


@pytest.mark.parametrize("value, wanted", [("%r7", []), ("%r0", [TWICE])])
def test_what_lies_outside_of_the_tensor_may_differ(value, wanted):
    """The last 16 integers of each row, which are dropped, are others in each row (%r7)."""
    rows = "0, 3, 3, 7"
    differ = "shr.u32 %r4, %r5, 4; mul.lo.u32 %r7, %r0, %r4;"
    assert errors(rows, f"0; {differ} st.shared.u32 [%r3], {value}", column=48) == wanted
