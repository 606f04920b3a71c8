"""What the checker costs a launch: CPU seconds without and with it, and their ratio.

python -m tests.b200.checker.cost
"""

from __future__ import annotations

import time

import torch

import b200
import submission
from lab.kernel_cases import dual, gemm, inputs

RUNS = 5
CASES = {
    "gemm": (gemm(256, 64, 2304), submission.Config()),
    "K split": (gemm(128, 128, 4096), submission.Config(tile_n=128, split_k=2)),
    "dual, persistent": (dual(128, 64, 1536, 4), submission.Config(persistent=True)),
    "CTA pair": (gemm(256, 64, 1024, 2), submission.Config(cta_group=2)),
}


def seconds(problem, config, check: bool) -> float:
    """Of the fastest of some launches, the first of which compiles."""
    b200.install(check=check)
    groups, _ = submission.unpack(data := inputs(problem, 7))
    times = []
    for _ in range(1 + RUNS):
        begin = time.process_time()
        submission.launch(submission.problem_of(data, groups), groups, config)
        times.append(time.process_time() - begin)
    return min(times[1:])


def main():
    torch.set_num_threads(1)
    for name, case in CASES.items():
        plain, checked = seconds(*case, check=False), seconds(*case, check=True)
        print(f"{name:18} {plain:.3f} s -> {checked:.3f} s, {checked / plain:.2f} x", flush=True)


if __name__ == "__main__":
    main()
