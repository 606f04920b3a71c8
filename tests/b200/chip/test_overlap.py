"""The schedule "pdl": a dependent launch runs before the launch before has done anything."""

import pytest
import torch

import b200
from b200.chip.gpu import Gpu
from tests.b200.checker.test_dependent_launch import LET, _kernel, reader, writer


def _gpu(schedule: str | None) -> Gpu:
    gpu = Gpu()
    gpu.machine = b200.machine(gpu.memory, check=False, schedule=schedule)
    return gpu


def _launch(gpu: Gpu, body, options, tensors, dependent: bool):
    text = _kernel(body.__name__, lambda k: body(k, **options))
    shape = (2, 1, 1), (64, 1, 1), (1, 1, 1), 0x8000
    gpu.launch(text, None, *shape, list(tensors), dependent=dependent)


@pytest.mark.parametrize("wait, right", [("all", True), ("barrier", True), ("", False)])
def test_what_does_not_wait_comes_first(wait, right):
    x, y = torch.full((64,), -1, dtype=torch.int32), torch.zeros(64, dtype=torch.int32)
    gpu = _gpu("pdl")
    _launch(gpu, writer, {}, (x, y), False)
    _launch(gpu, reader, {"wait": wait}, (x, y), True)
    numbers = torch.arange(64, dtype=torch.int32)
    assert torch.equal(x, numbers)  # the launch before has happened
    assert torch.equal(y, numbers if right else torch.full_like(y, -1))


def passer(k):
    """As `reader`, and lets its dependents start at once."""
    k(LET)
    reader(k)


def test_the_launch_that_is_taken_back_finds_what_came_before_it():
    """A third launch takes back the second, which needs what the first has written."""
    numbers = torch.arange(64, dtype=torch.int32)
    x, y, z = numbers - 100, torch.zeros(64, dtype=torch.int32), torch.zeros(64, dtype=torch.int32)
    gpu = _gpu("pdl")
    _launch(gpu, writer, {}, (x, y), False)
    _launch(gpu, passer, {}, (x, y), True)
    _launch(gpu, reader, {"wait": "all"}, (y, z), True)
    assert torch.equal(y, numbers) and torch.equal(z, numbers)


@pytest.mark.parametrize("let, dependent", [(False, True), (True, False)])
def test_without_the_signal_or_the_attribute_nothing_overlaps(let, dependent):
    x, y = torch.full((64,), -1, dtype=torch.int32), torch.zeros(64, dtype=torch.int32)
    gpu = _gpu("pdl")
    _launch(gpu, writer, {"let": let}, (x, y), False)
    _launch(gpu, reader, {"wait": ""}, (x, y), dependent)
    assert torch.equal(y, torch.arange(64, dtype=torch.int32))


def test_what_the_host_changes_in_between_keeps_them_apart():
    x, y = torch.full((64,), -1, dtype=torch.int32), torch.zeros(64, dtype=torch.int32)
    gpu = _gpu("pdl")
    _launch(gpu, writer, {}, (x, y), False)
    x += 100
    _launch(gpu, reader, {"wait": ""}, (x, y), True)
    assert torch.equal(y, torch.arange(64, dtype=torch.int32) + 100)
