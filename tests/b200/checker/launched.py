"""What the checker finds in a launch."""

from __future__ import annotations

import torch

import b200
from b200.checker.finding import ERROR, Finding
from b200.chip.gpu import Gpu
from tests.planted_bugs.case import Source

SMEM = 0x8000  # bytes


def errors_of(k: Source, ctas: int, words: int, schedule: str | None = None) -> list[Finding]:
    """The errors among the findings."""
    found = findings_of(k, ctas, words, schedule)
    return [finding for finding in found if finding.severity == ERROR]


def findings_of(
    k: Source, ctas: int = 1, words: int = 64, schedule: str | None = None
) -> list[Finding]:
    """The findings of CTAs that execute `k`; its parameter is the address of so many words of
    zeros.
    """
    gpu = Gpu()
    gpu.machine = b200.machine(gpu.memory, schedule=schedule)
    memory = torch.zeros(words, dtype=torch.int32)
    block = (k.threads, 1, 1)
    launch = gpu.launch(k.text("k"), None, (ctas, 1, 1), block, (1, 1, 1), SMEM, (memory,))
    return list(launch.findings or ())
