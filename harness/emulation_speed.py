"""Seconds and megabytes that the emulation takes: `python -m harness.emulation_speed`.

Wall-clock seconds of this machine's CPU, never a time of the kernel. Three parts, each against its
target: one small dual GEMM with its compile; all official test cases; each benchmark shape at full
size.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from harness import cases, devices
from harness.pool import Pool
from harness.worker import Job, Outcome
from task import PROBLEMS

SMALL = "m: 256; n: 512; k: 256; l: 1; seed: 1111"
SMALL_TARGET_S, TESTS_TARGET_S, SHAPE_TARGET_S, SHAPE_TARGET_MB = 2.0, 480.0, 120.0, 6144.0


def run(chosen: Sequence[cases.Case], workers: int) -> list[Outcome]:
    """Each case in its own process, forked from this one, as eval.py does it."""
    threads = max(1, len(os.sched_getaffinity(0)) // workers)
    submission = str(Path(__file__).parents[1] / "submission.py")
    jobs = [
        Job(
            mode="test",
            device="emulator",
            problem=c.problem.name,
            args=dict(c.args),
            inputs="official",
            submission=submission,
            timeout=900.0,
            threads=threads,
        )
        for c in chosen
    ]
    return list(Pool("fork", workers).run(jobs))


def line(what: str, value: float, target: float, unit: str) -> str:
    return (
        f"{what:58} {value:8.1f} {unit:3} target {target:6.0f} {unit:3} ratio {value / target:5.2f}"
    )


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=("small", "tests", "shapes"), help="one of the parts")
    arguments = parser.parse_args(argv)
    devices.start_emulator()
    dual = PROBLEMS["nvfp4_dual_gemm"]
    bad = 0
    if arguments.only in (None, "small"):
        (outcome,) = run([cases.make_case(dual, cases.parse(SMALL))], workers=1)
        bad += outcome.status != "pass"
        print(line(f"dual {SMALL}: {outcome.status}", outcome.seconds, SMALL_TARGET_S, "s"))
    if arguments.only in (None, "tests"):
        chosen = [c for p in PROBLEMS.values() for c in cases.official(p, "test")]
        begin = time.perf_counter()
        outcomes = run(chosen, workers=len(os.sched_getaffinity(0)))
        passed = sum(o.status == "pass" for o in outcomes)
        bad += passed != len(outcomes)
        seconds = time.perf_counter() - begin
        print(
            line(f"{passed} of {len(outcomes)} official tests pass", seconds, TESTS_TARGET_S, "s")
        )
    if arguments.only in (None, "shapes"):
        for problem in PROBLEMS.values():
            for case in cases.official(problem, "benchmark"):
                (outcome,) = run([case], workers=1)
                bad += outcome.status != "pass"
                what = f"{problem.short} {case.text}"[:47] + f": {outcome.status}"
                print(line(what, outcome.seconds, SHAPE_TARGET_S, "s"), flush=True)
                print(line("  peak memory", outcome.peak_mb, SHAPE_TARGET_MB, "MB"), flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
