"""CUDA graphs of compiled programs: made node by node, captured, changed, launched."""

from __future__ import annotations

import pytest
import torch

import b200
from tests.b200.host.cuda.support import caller, needs_nvcc
from tests.b200.host.cuda.test_programs import program

pytestmark = needs_nvcc


@pytest.fixture(scope="module")
def library():
    b200.install()
    return program()


@pytest.fixture
def call(library):
    b200.install()
    return caller(library)


def integers(value: int) -> torch.Tensor:
    return torch.full((4,), value, dtype=torch.int32)


def test_a_graph_made_node_by_node(call):
    facts, out = integers(0), integers(0)
    assert call("by_hand", facts.data_ptr(), out.data_ptr()) == ""
    ones = 0x01010101
    assert facts.tolist() == [5, 1, 2, 2 * (ones + 100)]
    assert out.tolist() == [2 * (ones + 3)] * 4  # the child has the graph's own parameters


def test_a_captured_graph(call):
    x, out = integers(7), integers(0)
    assert call("captured", x.data_ptr(), out.data_ptr()) == ""
    assert out.tolist() == [10] * 4


def test_memory_under_capture_belongs_to_the_graph(call):
    """Before a capture it is memory like any other."""
    x, out = integers(0), integers(0)
    assert call("memory_under_capture", x.data_ptr(), out.data_ptr()) == ""
    assert x[0] == 1 and out.tolist() == [0x05050505] * 4


def test_what_cuda_refuses_of_a_graph_is_a_number(call):
    circle, unknown = integers(0), integers(0)
    assert call("in_a_circle", circle.data_ptr(), unknown.data_ptr()) == ""
    assert circle[0] == unknown[0] == 1  # cudaErrorInvalidValue


def test_a_graph_of_the_driver(call):
    x, out = integers(0), integers(0)
    assert call("by_the_driver", x.data_ptr(), out.data_ptr()) == ""
    assert x[0] == out[0] == 42
