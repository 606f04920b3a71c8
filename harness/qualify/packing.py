"""A case of a leaderboard as a pack for a Hopper GPU (hopper/pack.py).

The inputs of a case are not in its pack: every machine draws the same on its CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import b200
from harness.evaluator.cases import Case
from hopper.pack import Pack, Recorder, record
from reference import generate_input
from task import DUAL, GROUP
from utils import outputs_of


class NoLaunch(Exception):
    """A call launched no kernel to pack; str() is the case."""


class Packer:
    """Packs calls. From now on what the DSL launches in this process is recorded. emulate: the
    emulator also runs it, and the pack has the result.
    """

    def __init__(self, emulate: bool = False):
        self.recorder = Recorder(emulate)
        b200.install(check=False, gpu=self.recorder)

    def pack(self, kernel: Callable[[Any], Any], case: Case) -> Pack:
        """A call of a kernel, which takes data on the CPU. Raises NoLaunch."""
        recipe = {"problem": case.problem.name, **case.args}
        found = record(self.recorder, kernel, make_data(recipe), recipe, bytes_read(recipe))
        if not found.launches:
            raise NoLaunch(f"{case.problem.short} {case.text}: launched no kernel to pack")
        return found


def make_data(case: dict[str, Any]) -> Any:
    """The data of a case on the CPU; what a call shall write is NaN, since what it starts as is not
    alike on all machines.
    """
    data = generate_input(**case)
    for c in outputs_of(data):
        c.fill_(float("nan"))
    return data


def bytes_read(case: dict[str, Any]) -> int:
    """Bytes that a call must read: codes and scales of every operand once (gemv: one row of b)."""
    if case["problem"] == GROUP.name:
        return sum((m + n) * k * 9 // 16 for m, n, k in zip(case["m"], case["n"], case["k"]))
    weights = 2 if case["problem"] == DUAL.name else 1
    rows = case["m"] + weights * case.get("n", 1)
    return rows * case["k"] * 9 // 16 * case["l"]
