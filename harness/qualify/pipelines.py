"""The kernel's load pipelines on a Hopper GPU, beside ordinary loads and beside the clock of an
H200: JSON lines, one a benchmark shape.

python -m harness.qualify.pipelines --submission submission.py --constants qualify/constants.json

What a Hopper GPU can time of a B200's kernel (hopper/pipeline.py), and what the clock of that
GPU says of it with its own constants and with those that were found (h200_clock.py). No times of a
B200.
"""

from __future__ import annotations

import json
import tempfile
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from b200.clock.overrides import read_file
from b200.command_line import Parser
from harness.evaluator import cases
from harness.evaluator.case import loading
from harness.evaluator.case.gpu_data import on_gpu
from harness.qualify import h200_clock
from harness.qualify.packing import Packer
from hopper import pipeline
from hopper.pack import load
from task import PROBLEMS, find_problem


def benchmarks(most: int | None) -> list[tuple[str, str, str]]:
    """(file name of its pack, problem, case) of each benchmark shape, `most` a problem."""
    return [
        (f"{problem.short}-benchmark-{i}", problem.name, case.text)
        for problem in PROBLEMS.values()
        for i, case in enumerate(cases.official(problem, "benchmark")[:most])
    ]


def pack(path: Path, submission: Path, problem: str, text: str) -> None:
    """Write the pack of a shape; a process of its own, since packing takes the DSL over."""
    packer = Packer()
    kernel = on_gpu(loading.load_kernel(submission))
    packer.pack(kernel, cases.make_case(find_problem(problem), cases.parse(text))).save(path)


def main(argv: list[str] | None = None) -> int:
    parser = Parser("python -m harness.qualify.pipelines", __doc__)
    parser.add_argument("--device", choices=("hopper",), default="hopper")
    parser.add_argument("--submission", type=Path, required=True)
    parser.add_argument("--constants", type=Path, required=True, help="those that were found")
    parser.add_argument("--shapes", type=int, help="benchmark shapes a problem; all by default")
    parser.add_argument("--jobs", type=int, default=4)
    options = parser.parse_args(argv)
    found = read_file(options.constants)
    shapes = benchmarks(options.shapes)
    with tempfile.TemporaryDirectory() as scratch:
        paths = []
        with ProcessPoolExecutor(options.jobs, get_context("spawn")) as pool:
            made = []
            for name, problem, text in shapes:
                paths.append(Path(scratch, f"{name}.npz"))
                submission = options.submission.resolve()
                made.append(pool.submit(pack, paths[-1], submission, problem, text))
            modelled = []
            for path, done in zip(paths, made):
                done.result()
                modelled += [pool.submit(h200_clock.model, path, each) for each in ({}, found)]
            copy = pipeline.copy_rate()
            rows = [measured(path, *shape[1:], copy) for path, shape in zip(paths, shapes)]
            for row, before, after in zip(rows, modelled[::2], modelled[1::2]):
                if before.result().us is None:
                    row["message"] += f"; not modelled: {before.result().message}"
                else:
                    row |= {"before_us": before.result().us, "after_us": after.result().us}
                print(json.dumps(row), flush=True)
    return 0


def measured(path: Path, problem: str, text: str, copy_gb_s: float) -> dict[str, Any]:
    """The row of a pack. copy_gb_s: of a copy from device to device."""
    m = pipeline.measure(load(path), path.stem, copy_gb_s)
    return {
        "problem": problem,
        "case": text,
        "mode": "pipeline",
        "status": "pass",
        "message": f"{m.ctas} CTAs in clusters of {m.cluster}, {m.input_bytes / 1e6:.1f} MB",
        "of": "load pipeline",
        "measured_us": m.us,
        "loads_us": m.read_us,
    }


if __name__ == "__main__":
    raise SystemExit(main())
