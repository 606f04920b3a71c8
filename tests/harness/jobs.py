"""Runs submissions given as text through harness.evaluator.pool, as eval.py does in the emulator:
`python -m tests.harness.jobs < specification.json > outcomes.json`. A process of its own, since
pytest's may have threads, which do not survive a fork.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

from harness.evaluator import devices, pool
from harness.evaluator.case.job import Job

SHAPE = {"m": 8, "n": 40, "k": 64, "l": 1, "seed": 1}
BEGIN = """\
import ctypes, os, signal, subprocess, sys, threading, time
import torch
import b200
from reference import ref_kernel

HEAD = '.version 8.8 .target sm_100a .address_size 64 '
EMPTY = HEAD + '.visible .entry k() { ret; }'
calls = 0

def launch(ptx=EMPTY, **shape):
    return b200.install().launch(ptx, None, **{'grid': (1, 1, 1), 'block': (32, 1, 1)} | shape)
"""
KERNEL = """
def custom_kernel(data):
    global calls
    calls += 1
    a, b, sfa, sfb, sfa_permuted, sfb_permuted, c = data
"""


def job(submission: Path, timeout: float) -> Job:
    return Job(
        mode="test",
        device="emulator",
        problem="nvfp4_gemm",
        args=SHAPE,
        inputs="official",
        submission=str(submission),
        timeout=timeout,
    )


def main() -> None:
    specification = json.load(sys.stdin)
    folder = Path(specification["folder"])
    jobs = []
    for name, body, whole, timeout in specification["submissions"]:
        text = body if whole else BEGIN + KERNEL + "".join(f"    {x}\n" for x in body.splitlines())
        path = folder / f"{name}.py"
        path.write_text(text)
        jobs.append(job(path, timeout))
    pool.GRACE = 2.0  # some do not end by themselves
    devices.start_emulator()
    outcomes = pool.Pool("fork", workers=3).run(jobs)
    json.dump([dataclasses.asdict(outcome) for outcome in outcomes], sys.stdout)


if __name__ == "__main__":
    main()
