"""The contract between the instruction set and its observers: every operation has a rule in the
checker and in the clock, and one without is refused by its name.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

import b200
from b200.checker.operations import asynchronous
from b200.chip import operations
from b200.chip.gpu import Gpu
from b200.chip.operations import BulkPrefetch, Operation, TensorCoreOperation
from b200.clock import units
from tests.b200.ptx_support import kernel, run

PREFETCH = kernel(
    "ld.param.u64 %rd1, [a];\ncp.async.bulk.prefetch.L2.global [%rd1], 16;", [".u64 a"], reqntid=1
)
CLASSES = {
    c for c in vars(operations).values() if isinstance(c, type) and issubclass(c, Operation)
} - {Operation, TensorCoreOperation}


def launch(**options):
    gpu = Gpu()
    gpu.machine = b200.machine(gpu.memory, **options)
    return run(PREFETCH, torch.zeros(16, dtype=torch.uint8), block=(1, 1, 1), gpu=gpu)


@pytest.mark.parametrize("rules", [asynchronous.RULES, units.RULES], ids=["checker", "clock"])
def test_every_operation_has_a_rule(rules):
    assert len(CLASSES) > 15 and set(rules) == CLASSES


@pytest.mark.parametrize(
    "options, who", [({"check": True}, "checker"), ({"timing": True}, "clock")]
)
def test_an_operation_without_a_rule_is_refused_by_name(monkeypatch, options, who):
    @dataclass(frozen=True, slots=True)
    class Teleport(Operation):
        nbytes: int
        source: int

    launch(**options)
    monkeypatch.setattr(operations, "BulkPrefetch", Teleport)
    with pytest.raises(
        b200.EmulatorError, match=f"the {who} has no rule for the operation Teleport"
    ):
        launch(**options)


def test_a_subclass_does_not_take_the_rule_of_its_base(monkeypatch):
    class Farther(BulkPrefetch):
        pass

    monkeypatch.setattr(operations, "BulkPrefetch", Farther)
    with pytest.raises(b200.EmulatorError, match="no rule for the operation Farther"):
        launch(check=True)
    assert launch(check=False).counters  # the plain machine carries out whatever it is handed
