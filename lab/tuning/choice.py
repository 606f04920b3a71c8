"""What the first call for a problem does on a B200, watched: which configurations submission.py
tries, what it times them at, which one it keeps, and the seconds of it.

python -m lab choice [--device auto|cuda|hopper|emulator] [--mode benchmark|test] [PROBLEM ...]

A JSON object a shape. On a B200 times are measured. On a Hopper GPU they are measured, too, but
with the tensor core in software, so they say nothing of a B200; seconds and the way through the
code are real. In the emulator times are modelled. `of_pick`: the choice's time over the pick's.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import b200
import submission
from b200.command_line import Parser
from harness.evaluator import cases, devices
from lab.tuning.study import told
from reference import check_implementation, generate_input
from task import PROBLEMS, find_problem

KIND = {"cuda": "measured", "hopper": "measured, tensor core in software", "emulator": "modelled"}


def connect(kind: str) -> None:
    """What `submission` launches on, from now on."""
    if kind == "emulator":
        b200.install(check=False, timing=True)
        # Emulation takes longer than a budget of seconds on a GPU.
        submission.PROBLEM_SECONDS = submission.PROCESS_SECONDS = float("inf")
        submission.CHOICES.seconds_left = float("inf")
        submission.CALLS = submission.GROUP_CALLS = 1
        submission.ROUNDS, submission.MAX_CLEARS = 2, 1
    elif kind == "hopper":
        from b200.hopper.backend import HopperGpu

        b200.install(gpu=HopperGpu())
    submission.is_b200 = lambda groups: True


def data_on(kind: str, case: cases.Case) -> Any:
    data = generate_input(case.problem.name, **case.args)
    if kind == "hopper":
        from b200.hopper.pack import to_gpu

        return to_gpu(data)
    return data


def watch(case: cases.Case, kind: str, device: str) -> dict[str, Any]:
    """The first call for a case, and whether its result is right."""
    trials: list[submission.Trial] = []
    measure = submission.measure

    def measured(given: list[submission.Trial], end: float) -> None:
        measure(given, end)
        trials.extend(given)

    data = data_on(kind, case)
    groups, _ = submission.unpack(data)
    problem = submission.problem_of(data, groups)
    submission.measure = measured
    start = time.monotonic()
    try:
        result = submission.custom_kernel(data)
    finally:
        submission.measure = measure
    seconds = time.monotonic() - start
    right, message = check_implementation(data, result)
    times = {trial.config: 1e3 * trial.time for trial in trials}
    chosen = submission.CHOICES.configs[problem]
    pick = submission.pick(problem)
    both = chosen in times and pick in times
    return {
        "problem": case.problem.name,
        "case": case.text,
        "device": device,
        "kind": KIND[kind],
        "status": "pass" if right else "fail",
        "message": message,
        "seconds": round(seconds, 2),
        "pick": told(pick),
        "chosen": told(chosen),
        "of_pick": round(times[chosen] / times[pick], 4) if both else None,
        "tried": [
            {"config": told(t.config), "us": round(times[t.config], 3), "rounds": len(t.times)}
            for t in trials
        ],
    }


def main(argv: list[str] | None = None) -> int:
    parser = Parser(prog="python -m lab choice", description=__doc__)
    parser.add_argument("problems", nargs="*", help="gemv, gemm, dual, group; all by default")
    parser.add_argument("--device", choices=devices.CHOICES, default="auto")
    parser.add_argument("--mode", choices=("benchmark", "test"), default="benchmark")
    parser.add_argument("--case", action="append", help="a case as text, of the one problem named")
    options = parser.parse_args(argv)
    try:
        device = devices.resolve(options.device)
        named = [find_problem(name) for name in options.problems] or list(PROBLEMS.values())
        if options.case:
            asked = [cases.make_case(named[0], cases.parse(text)) for text in options.case]
        else:
            asked = [case for p in named for case in cases.official(p, options.mode)]
    except (devices.SetupError, ValueError) as error:
        print(f"python -m lab choice: {error}", file=sys.stderr)
        return 2
    connect(device.kind)
    wrong = 0
    for case in asked:
        row = watch(case, device.kind, device.name)
        print(json.dumps(row), flush=True)
        wrong += row["status"] != "pass"
    return 112 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
