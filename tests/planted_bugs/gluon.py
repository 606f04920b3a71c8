"""Planted bugs in Gluon: what is said of them names lines of Python source."""

from __future__ import annotations

from dataclasses import dataclass

import torch

import b200
from b200 import EmulatorError
from tests.planted_bugs.case import Outcome
from tests.planted_bugs.listing import Listing

FILE = "gluon_kernels.py"


@dataclass(frozen=True)
class GluonPlantedBug:
    """A PlantedBug (case.py) whose kernel is that of gluon_kernels.py with a bug of a name."""

    name: str
    title: str
    bug: str
    kind: str
    words: tuple[str, ...]
    marks: tuple[str, ...]
    schedule: str | None = None
    file: str = FILE

    def run(self, bug: bool, schedule: str | None = None) -> tuple[Listing, Outcome]:
        gpu = b200.install(check=True, schedule=schedule or self.schedule)
        from tests.planted_bugs import gluon_kernels

        try:
            return Listing(gluon_kernels.__file__), self._run(gpu, bug)
        finally:
            b200.install(check=True)

    def _run(self, gpu, bug: bool) -> Outcome:
        from tests.planted_bugs import gluon_kernels

        generator = torch.Generator().manual_seed(1)
        a, b = (torch.randint(-4, 5, (n, 256), generator=generator).half() for n in (128, 64))
        c = torch.full((128, 64), -1.0, dtype=torch.float16).cuda()
        try:
            gluon_kernels.run(a.cuda(), b.cuda(), c, self.bug if bug else "")
        except EmulatorError as error:
            return Outcome(list(error.findings), str(error), error.kind)
        right = torch.equal(c.cpu().double(), (a.double() @ b.double().T).half().double())
        return Outcome(list(gpu.launches[-1].findings), right=right)


PLANTED = [
    GluonPlantedBug(
        "gluon_no_full_wait",
        "the MMA partition does not wait for the loads",
        "no_full_wait",
        "race",
        ("reads shared memory before the TMA load", "MMA warp"),
        ("mma", "load a"),
    ),
    GluonPlantedBug(
        "gluon_phase_off",
        "the MMA partition waits for the phase before",
        "phase_off",
        "race",
        ("reads shared memory before the TMA load", "phase off", "full[0]"),
        ("mma", "load a", "wrong phase"),
        schedule="late",
    ),
    GluonPlantedBug(
        "gluon_no_fence",
        "the result is stored by TMA without fence_async_shared",
        "no_fence",
        "proxy",
        ("with no fence.proxy.async in between",),
        ("store shared", "store"),
    ),
    GluonPlantedBug(
        "gluon_too_many_bytes",
        "mbarrier.expect announces more bytes than the loads bring",
        "too_many_bytes",
        "deadlock",
        ("16384 bytes", "full[0]"),
        ("too many", "wait full"),
    ),
    GluonPlantedBug(
        "gluon_too_few_bytes",
        "mbarrier.expect announces one of two loads",
        "too_few_bytes",
        "race",
        ("full[0]",),
        ("too few",),
    ),
    GluonPlantedBug(
        "gluon_early_reuse",
        "a buffer is filled again before the MMA has read it",
        "no_empty_wait",
        "race",
        ("the TMA load", "load warp"),
        ("load a",),
    ),
    GluonPlantedBug(
        "gluon_no_commit",
        "the last MMA is not committed to the barrier that the epilogue waits for",
        "no_commit",
        "deadlock",
        ("no warp can proceed", "done"),
        ("wait done",),
    ),
    GluonPlantedBug(
        "gluon_no_done_wait",
        "the epilogue reads the accumulator before the MMAs are complete",
        "no_done_wait",
        "race",
        ("tensor memory",),
        ("store shared", "mma"),
    ),
]
