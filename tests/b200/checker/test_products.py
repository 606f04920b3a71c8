"""What an MMA is given: where its scale factors lie, how its operands were loaded."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from b200.checker.operations.core_operations import CoreOperations
from b200.checker.products.products import Products
from b200.chip.copies.tensormap import TensorMap
from b200.chip.tensor.descriptors import decode_matrix
from b200.chip.tensor.mma_operands import ScaleFactors
from tests.b200.chip.tensor_support import matrix

COLUMNS = 64


class Rules(Products):
    """The rules, with nothing around them: `said` is what they note. old: what has written the
    first bytes of shared memory.
    """

    def __init__(self, old=None):
        self.said: list[str] = []
        records = [None, old]
        self.observer = SimpleNamespace(state=lambda cta: SimpleNamespace(records=records))

    def note(self, diagnosis, *details, **about):
        self.said.append(diagnosis)


@pytest.mark.parametrize("b", range(20))
@pytest.mark.parametrize("columns_a, columns_b", [(4, 4), (4, 1), (1, 8)])
def test_scale_factors_that_share_a_column_are_noted(b, columns_a, columns_b):
    a, rules = 8, Rules()
    shadow = SimpleNamespace(written=np.zeros((8, COLUMNS), int))
    tensor = SimpleNamespace(shadow=shadow, place=str)
    op = SimpleNamespace(
        sfa=SimpleNamespace(column=a, columns=columns_a, first=0),
        sfb=SimpleNamespace(column=b, columns=columns_b, first=2),
    )
    record = SimpleNamespace(ins=None, text="", agent=None, parts=())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("b200.checker.words.act", lambda record: "")
        found = rules._scales(record, tensor, op)
    assert found == ((a, 0, 0), (b, 2, 0))
    shared = set(range(a, a + columns_a)) & set(range(b, b + columns_b))
    assert bool(rules.said) == bool(shared)


SPAN_OF_MODE = {
    0: 0,
    1: 128,
    2: 128,
    4: 64,
    6: 32,
}  # matrix descriptor (PTX ISA, table of swizzles)
SPAN_OF_TMA = {0: 0, 1: 32, 2: 64, 3: 128}  # tensormap


@pytest.mark.parametrize("mode", SPAN_OF_MODE)
@pytest.mark.parametrize("swizzle", SPAN_OF_TMA)
def test_an_operand_is_read_with_the_swizzle_it_was_loaded_with(swizzle, mode):
    box = TensorMap(0, 1, (512, 64), (1024,), (16, 8), (1, 1), swizzle=swizzle)
    rules = Rules(SimpleNamespace(box=box, ins=None))
    shared = SimpleNamespace(shadow=SimpleNamespace(written=np.ones(64, int)))
    operand = SimpleNamespace(name="A", matrix=decode_matrix(matrix(0, mode=mode)), mn_major=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("b200.checker.words.act", lambda record: "")
        rules._layout(SimpleNamespace(), SimpleNamespace(index=(0, 0, 0)), shared, operand)
    said = {0: "no swizzle", **{n: f"{n}-byte swizzle" for n in (32, 64, 128)}}
    if SPAN_OF_TMA[swizzle] == SPAN_OF_MODE[mode]:
        assert rules.said == []
    else:
        (diagnosis,) = rules.said
        assert f"with {said[SPAN_OF_MODE[mode]]}, and was loaded" in diagnosis


@pytest.mark.parametrize("mn_major", [False, True])
@pytest.mark.parametrize("rows", [8, 16, 64])
@pytest.mark.parametrize("swizzle, mode", [(1, 6), (2, 4), (3, 2)])
def test_groups_of_rows_are_read_where_they_were_loaded(swizzle, mode, rows, mn_major):
    """K-major, 8 rows of a swizzle's span lie behind each other; one group has no distance."""
    span = SPAN_OF_MODE[mode]
    for sbo in (4 * span, 8 * span, 16 * span):
        box = TensorMap(0, 1, (512, 64), (1024,), (span // 2, rows), (1, 1), swizzle=swizzle)
        rules = Rules(SimpleNamespace(box=box, ins=None))
        shared = SimpleNamespace(shadow=SimpleNamespace(written=np.ones(64, int)))
        read = decode_matrix(matrix(0, sbo=sbo, mode=mode))
        operand = SimpleNamespace(name="B", matrix=read, mn_major=mn_major)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("b200.checker.words.act", lambda record: "")
            rules._layout(SimpleNamespace(), SimpleNamespace(index=(0, 0, 0)), shared, operand)
        wrong = sbo != 8 * span and rows >= 16 and not mn_major
        assert [f"with {sbo} bytes between" in said for said in rules.said] == [True] * wrong


@pytest.mark.parametrize("copies", [2, 4])
@pytest.mark.parametrize("rows", range(8, 129, 8))
def test_scale_factors_of_the_rows_that_there_are(rows, copies):
    """Row r's are in lane r % 32 of column r // 32, in each quarter (PTX ISA 9.7.16.10.7); with two
    copies, the second half of the rows is in other quarters.
    """
    cells = set()

    class Tensor:
        def read(self, record, halves, columns):
            cells.update((h, c) for h in range(8)[halves] for c in range(64)[columns])

    factors = ScaleFactors("A", 20, rows, 0, 4, copies)
    CoreOperations._read_scales(SimpleNamespace(), Tensor(), factors)
    if copies == 4:
        want = {(2 * q + r % 32 // 16, 20 + r // 32) for r in range(rows) for q in range(4)}
    else:
        want = {(h, 20 + c) for h in range(8) for c in range(-(-rows // 64))}
    assert cells == want
