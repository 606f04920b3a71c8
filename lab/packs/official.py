"""The leaderboards' cases as packs: `python -m lab packs make`, and what runs them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from b200.chip.placement import max_clusters
from b200.command_line import Parser
from harness.evaluator import cases
from harness.evaluator.case import loading
from harness.evaluator.case.gpu_data import on_gpu
from harness.evaluator.cases import Case
from harness.qualify.packing import NoLaunch, Packer, make_data
from hopper.h200 import H200
from hopper.pack import to_gpu
from reference import check_implementation
from task import PROBLEMS, Problem, find_problem
from utils import outputs_of


class OfficialCases:
    """Makes and checks the data of packs (hopper.run_pack.Cases)."""

    def make(self, case: dict[str, Any]) -> Any:
        return to_gpu(make_data(case))

    def check(self, data: Any) -> str:
        results = outputs_of(data)
        return check_implementation(data, results if isinstance(data[0], list) else results[0])[1]


GPUS = {"h200": H200}


def out_option(parser: Parser) -> None:
    help_ = "where packs are written"
    parser.add_argument("-o", "--out", default="packs", type=Path, metavar="FOLDER", help=help_)


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
    parser = Parser("python -m lab packs make", make.__doc__)
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
    out_option(parser)
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

    packer = Packer(arguments.expected)
    kernel = on_gpu(loading.load_kernel(Path(arguments.submission).resolve()))
    if arguments.gpu:
        fits_as_on(arguments.gpu)
    arguments.out.mkdir(parents=True, exist_ok=True)
    for problem, listed in chosen:
        for i, case in enumerate(listed):
            try:
                pack = packer.pack(kernel, case)
            except NoLaunch as error:
                print(error, file=sys.stderr)
                return 1
            path = arguments.out / f"{problem.short}-{arguments.mode}-{i}.npz"
            pack.save(path)
            print(f"{path}: {case.text}, {len(pack.launches)} launch(es)", flush=True)
    return 0
