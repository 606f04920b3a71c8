"""What the checker calls an error in a launch."""

from __future__ import annotations

import torch

import b200
from b200.checker.finding import ERROR, Finding
from b200.chip.gpu import Gpu
from tests.planted_bugs.case import Source

SMEM = 0x8000  # bytes


def errors_of(k: Source, ctas: int, words: int, schedule: str | None = None) -> list[Finding]:
    """The errors of CTAs that execute `k`; its parameter is the address of so many words of zeros."""
    gpu = Gpu()
    gpu.machine = b200.machine(gpu.memory, schedule=schedule)
    memory = torch.zeros(words, dtype=torch.int32)
    block = (k.threads, 1, 1)
    launch = gpu.launch(k.text("k"), None, (ctas, 1, 1), block, (1, 1, 1), SMEM, (memory,))
    return [finding for finding in launch.findings or () if finding.severity == ERROR]
