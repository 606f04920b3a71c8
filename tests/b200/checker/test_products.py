"""What an MMA is given: where its scale factors lie, how its operands were loaded."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from b200.checker.products import Products
from b200.chip.copies.tensormap import TensorMap
from b200.chip.tensor.descriptors import decode_matrix
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

    def note(self, diagnosis, *args):
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
        patch.setattr("b200.checker.naming.act", lambda record: "")
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
        patch.setattr("b200.checker.naming.act", lambda record: "")
        rules._layout(SimpleNamespace(), SimpleNamespace(index=(0, 0, 0)), shared, operand)
    said = {0: "no swizzle", **{n: f"{n}-byte swizzle" for n in (32, 64, 128)}}
    if SPAN_OF_TMA[swizzle] == SPAN_OF_MODE[mode]:
        assert rules.said == []
    else:
        (diagnosis,) = rules.said
        assert f"with {said[SPAN_OF_MODE[mode]]}, and was loaded" in diagnosis
