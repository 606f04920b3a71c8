"""Configurations that between them have every pair of settings that a legal one has: is each right?
JSON lines, one a configuration.

python -m harness.qualify.covering --device emulator --submission submission.py

The configurations are those that the submission itself calls legal (`legal_configs`, see
harness/evaluator/trials.py) for some shapes of each problem.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from b200.command_line import Parser
from harness.evaluator import cases, devices, trials
from harness.evaluator.case.job import Job
from harness.evaluator.cases import Case
from harness.evaluator.pool import Pool
from task import PROBLEMS

EVERY = 100_000  # configurations: more than any submission has
SMALL = {  # with tiles that are not full, two of them in M and N; for the emulator
    "gemv": ("m: 330; k: 1024; l: 2",),
    "gemm": ("m: 70; n: 330; k: 1024; l: 1",),
    "dual": ("m: 70; n: 330; k: 1024; l: 1",),
    "group": ("m: [70, 20]; n: [330, 256]; k: [1024, 512]; g: 2",),
}
Settings = Mapping[str, Any]


def settings(problem: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """What pairs are made of: the fields of a configuration, and the problem."""
    return {"problem": problem, **config}


def pairs(chosen: Settings) -> set[tuple[Any, ...]]:
    return set(itertools.combinations(sorted(chosen.items()), 2))


def covering(candidates: Sequence[Settings]) -> Iterator[int]:
    """Indices of candidates that together have every pair of settings that any has; each is the
    first of those that add most.
    """
    left = [pairs(candidate) for candidate in candidates]
    seen: set[tuple[Any, ...]] = set()
    while True:
        gains = [len(found - seen) for found in left]
        best = max(range(len(gains)), key=gains.__getitem__, default=None)
        if best is None or not gains[best]:
            return
        seen |= left[best]
        yield best


def shapes(small: bool) -> Iterator[Case]:
    """The shapes whose configurations are looked at: the benchmarks, too, whose many tiles make
    more of them legal, unless they have to be small.
    """
    for problem in PROBLEMS.values():
        for text in SMALL[problem.short]:
            yield cases.make_case(problem, cases.parse(text))
        if not small:
            yield from cases.official(problem, "benchmark")


def report(case: Case, told: str, outcome: Any) -> dict[str, Any]:
    message = f"{outcome.message} [{told}]" if outcome.message else ""
    fields = {"problem": case.problem.name, "case": case.text, "mode": "covering"}
    return {**fields, "config": told, "status": outcome.status, "message": message}


def chosen_of(
    ranked: Iterable[tuple[Case, Any]], most: int | None
) -> list[tuple[Case, dict[str, Any]]]:
    """(case, configuration) of the covering set, the first `most` of it."""
    pool = [(case, config) for case, outcome in ranked for config, _ in outcome.ranked or ()]
    found = covering([settings(case.problem.short, config) for case, config in pool])
    return [pool[i] for i in itertools.islice(found, most)]


def main(argv: list[str] | None = None) -> int:
    parser = Parser("python -m harness.qualify.covering", __doc__)
    parser.add_argument("--device", choices=("cuda", "hopper", "emulator"), required=True)
    parser.add_argument("--submission", type=Path, required=True)
    parser.add_argument("--most", type=int, help="configurations, those that add most first")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds a configuration")
    parser.add_argument("--jobs", type=int, help="configurations at a time")
    parser.add_argument("--small", action="store_true", help="no benchmark shapes")
    options = parser.parse_args(argv)
    device = devices.resolve(options.device)
    if device.kind == "emulator":
        devices.start_emulator()
    workers, threads = devices.parallel_cases(device, "test", options.jobs)
    asked, of = list(shapes(options.small)), options.submission
    told = {"device": device.kind, "timeout": options.timeout, "threads": threads}
    told |= {"inputs": "quantized"}
    rank = [Job.of(case, of, mode="tune", count=EVERY, **told) for case in asked]
    ranked = list(zip(asked, Pool(device.method, workers).run(rank)))
    wrong = 0
    for case, outcome in ranked:
        if outcome.status != "pass":
            print(json.dumps(report(case, "no configurations", outcome)), flush=True)
            wrong += 1
    chosen = chosen_of(ranked, options.most)
    if not chosen and not wrong:
        print("covering: the submission has no configuration to run", file=sys.stderr)
        return 2
    configs = [config for _, config in chosen]
    work = [Job.of(c, of, mode="test", config=tuple(x.items()), **told) for c, x in chosen]
    for (case, config), outcome in zip(chosen, Pool(device.method, workers).run(work)):
        name = trials.told(config, configs)
        print(json.dumps(report(case, name, outcome)), flush=True)
        wrong += outcome.status != "pass"
    return 112 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
