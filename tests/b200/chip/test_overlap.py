"""The schedule "pdl": a dependent launch runs before the launch before has done anything."""

import pytest
import torch

import b200
from b200.chip.gpu import Gpu
from tests.b200.checker.test_dependent_launch import _kernel, reader, writer


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
