"""Results of instructions as the registers of translated code hold them."""

import numpy as np
import pytest

from b200.program import calls
from b200.program.operands import to_uniform, to_varying


@pytest.mark.parametrize("lowest", range(32))
def test_a_value_for_all_lanes_is_that_of_the_lowest_active_one(lowest):
    """The others have not executed the instruction, or have the same value."""
    values = np.arange(100, 132, dtype=np.uint32)
    for mask in (1 << lowest, (1 << 32) - (1 << lowest)):
        assert to_uniform(values, mask) == 100 + lowest
    assert to_uniform(7, 1 << lowest) == 7


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32, np.uint64])
def test_a_value_a_lane_has_the_type_of_its_register(dtype):
    for value in (5, np.full(32, 5, np.uint8), np.full(32, 5, dtype)):
        found = to_varying(value, dtype)
        assert found.dtype == dtype and found.tolist() == [5] * 32


def test_chains_of_calls_without_a_number_left_have_none(monkeypatch):
    monkeypatch.setattr(calls, "_chains", [()])
    monkeypatch.setattr(calls, "_numbers", {})
    monkeypatch.setattr(calls, "LAST", 2)
    chains = [(calls.Call("k.py", line, "f"),) for line in range(4)]
    numbers = [calls.number(chain) for chain in chains]
    assert numbers == [1, 2, 0, 0]
    assert [calls.number(chain) for chain in chains] == numbers
