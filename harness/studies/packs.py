"""The leaderboards' cases as packs for a Hopper GPU (b200/hopper/pack.py).

    python -m harness packs make gemm --mode test -o packs    with the DSL; needs no GPU
    python -m harness packs run packs/*.npz --repeat 10       torch, cuda-python and a Hopper GPU
    python -m harness packs pipeline packs/*.npz              the load pipeline alone, timed there

The inputs of a case are not in its pack: every machine draws the same on its CPU.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from b200.chip.placement import max_clusters
from b200.clock.devices import H200
from b200.command_line import Parser
from b200.hopper import pipeline, run_pack
from b200.hopper.pack import Recorder, record, to_gpu
from harness.evaluator import cases
from harness.evaluator.case import loading
from harness.evaluator.case.gpu_data import on_gpu
from harness.evaluator.cases import Case
from reference import check_implementation, generate_input
from task import DUAL, GROUP, PROBLEMS, Problem, find_problem


def results_of(data: Any) -> list:
    """The tensors c in the data of a case."""
    return [c for _, _, c in data[0]] if isinstance(data[0], list) else [data[-1]]


def make_data(case: dict[str, Any]) -> Any:
    """The data of a case on the CPU; what a call shall write is NaN, since what it starts as is not
    alike on all machines.
    """
    data = generate_input(**case)
    for c in results_of(data):
        c.fill_(float("nan"))
    return data


class OfficialCases:
    """Makes and checks the data of packs (b200.hopper.run_pack.Cases)."""

    def make(self, case: dict[str, Any]) -> Any:
        return to_gpu(make_data(case))

    def check(self, data: Any) -> str:
        results = results_of(data)
        return check_implementation(data, results if isinstance(data[0], list) else results[0])[1]


def bytes_read(case: dict[str, Any]) -> int:
    """Bytes that a call must read: codes and scales of every operand once (gemv: one row of b)."""
    if case["problem"] == GROUP.name:
        return sum((m + n) * k * 9 // 16 for m, n, k in zip(case["m"], case["n"], case["k"]))
    weights = 2 if case["problem"] == DUAL.name else 1
    rows = case["m"] + weights * case.get("n", 1)
    return rows * case["k"] * 9 // 16 * case["l"]


GPUS = {"h200": H200}


def fits_as_on(gpu: str) -> None:
    """Have submission.py, which is imported already, reckon with the clusters that fit on this GPU
    at a time. There it would ask the driver; here it would be told a B200's.
    """
    module: Any = sys.modules["submission"]
    if not hasattr(module, "clusters_at_once"):
        raise SystemExit(f"--gpu {gpu}: the submission has no function clusters_at_once(size)")
    chip = GPUS[gpu]
    module.clusters_at_once = lambda size: max_clusters(size, chip.gpcs, chip.strays)


def make(argv: list[str]) -> int:
    """Pack cases of a problem: official tests, benchmark shapes, or cases given as text."""
    parser = Parser(prog="python -m harness packs make", description=make.__doc__)
    parser.add_argument("problems", nargs="*", help="gemv, gemm, dual, group; all by default")
    parser.add_argument(
        "--mode",
        choices=("test", "benchmark"),
        default="test",
        help="whose official cases (default test)",
    )
    parser.add_argument(
        "--case",
        action="append",
        metavar="TEXT",
        help="a case of the one problem that is named; repeatable",
    )
    parser.add_argument(
        "--expected", action="store_true", help="also run in the emulator, and pack the result"
    )
    parser.add_argument(
        "--submission",
        default="submission.py",
        metavar="FILE",
        help="the file with custom_kernel (default: submission.py)",
    )
    parser.add_argument(
        "--gpu", choices=GPUS, help="choose for the clusters that fit on this GPU (default: a B200)"
    )
    parser.add_argument(
        "-o", "--out", default="packs", type=Path, metavar="FOLDER", help="where packs are written"
    )
    arguments = parser.parse_args(argv)
    chosen: list[tuple[Problem, list[Case]]] = []
    try:
        for problem in [find_problem(name) for name in arguments.problems] or PROBLEMS.values():
            given = [cases.make_case(problem, cases.parse(text)) for text in arguments.case or []]
            chosen.append((problem, given or cases.official(problem, arguments.mode)))
    except ValueError as error:
        parser.error(str(error))
    if not Path(arguments.submission).is_file():
        parser.error(f"no submission at {arguments.submission}")

    import b200

    recorder = Recorder(arguments.expected)
    b200.install(check=False, gpu=recorder)
    kernel = loading.load_kernel(Path(arguments.submission).resolve())
    if arguments.gpu:
        fits_as_on(arguments.gpu)
    arguments.out.mkdir(parents=True, exist_ok=True)
    for problem, listed in chosen:
        for i, case in enumerate(listed):
            recipe = {"problem": problem.name, **case.args}
            data = make_data(recipe)
            pack = record(recorder, on_gpu(kernel), data, recipe, bytes_read(recipe))
            if not pack.launches:
                print(f"{problem.short} {case.text}: launched no kernel to pack", file=sys.stderr)
                return 1
            path = arguments.out / f"{problem.short}-{arguments.mode}-{i}.npz"
            pack.save(path)
            print(f"{path}: {case.text}, {len(pack.launches)} launch(es)", flush=True)
    return 0


def main(argv: list[str]) -> int:
    commands = {
        "make": make,
        "run": lambda rest: run_pack.main(rest, OfficialCases()),
        "pipeline": pipeline.main,
    }
    if not argv or argv[0] not in commands:
        what = f"no command is called {argv[0]}" if argv else "a command is missing"
        known = ", ".join(commands)
        print(f"python -m harness packs: {what}: the commands are {known}", file=sys.stderr)
        return 2
    return commands[argv[0]](argv[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
