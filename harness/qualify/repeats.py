"""The same call many times: are its bits the same? JSON lines, one a problem.

python -m harness.qualify.repeats --device emulator --times 10

In the emulator every repeat takes another random order of warps and completions.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import b200
from b200.command_line import Parser
from harness.evaluator import cases
from harness.evaluator.case import loading
from reference import generate_input
from task import PROBLEMS, find_problem
from utils import tensors_of


def digest(output: Any) -> str:
    """SHA-256 of the bits of a result."""
    parts = [t.detach().cpu().contiguous().numpy().tobytes() for t in tensors_of(output)]
    return hashlib.sha256(b"".join(parts)).hexdigest()


def main(argv: list[str] | None = None) -> int:
    parser = Parser("python -m harness.qualify.repeats", __doc__)
    parser.add_argument("--device", choices=("cuda", "hopper", "emulator"), required=True)
    parser.add_argument("--submission", type=Path, required=True)
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--problems", nargs="+", default=[p.short for p in PROBLEMS.values()])
    options = parser.parse_args(argv)
    gpu: Any = None  # what counts launches, which a B200 does not
    if options.device == "emulator":
        gpu = b200.install(check=False)
    elif options.device == "hopper":
        from hopper.backend import HopperGpu

        gpu = b200.install(gpu=HopperGpu())
    where = "cpu" if options.device == "emulator" else "cuda"
    kernel = loading.load_kernel(options.submission)
    wrong = 0
    for problem in map(find_problem, options.problems):
        case = min(cases.official(problem, "test"), key=cases.bytes_needed)
        found, launched = set(), len(gpu.launches) if gpu else 0
        for i in range(options.times):
            if where == "cpu":
                b200.install(check=False, schedule=f"random:{i}")
            data = generate_input(problem.name, device=where, **case.args)
            found.add(digest(kernel(data)))
        message = "" if len(found) == 1 else f"{len(found)} different results in {options.times}"
        if gpu and len(gpu.launches) == launched:
            message = "launched no kernel, so no bits of one are compared"
        status = "fail" if message else "pass"
        wrong += status == "fail"
        row = {"problem": problem.name, "case": case.text, "mode": "repeats", "status": status}
        print(json.dumps({**row, "message": message}), flush=True)
    return 112 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
