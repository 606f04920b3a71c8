"""Coefficients of the submission's own estimate, fitted to what was timed: JSON lines, the last one
with a line that can be pasted into the submission.

python -m harness.qualify.costs --state qualify/state.json --submission submission.py

The submission names its coefficients in a dataclass COSTS that `estimate` reads. They are fitted to
the logarithms of times, and held near where they were, each as far as the times say nothing of it.
What counts is the pick, so its loss stands beside: on the shapes fitted to, and on each shape with
coefficients that were fitted without it.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from b200.clock import Options
from b200.clock.devices import B200
from b200.clock.overrides import read_file
from b200.command_line import Parser
from harness.evaluator import cases
from harness.evaluator.case import timing
from harness.evaluator.case.configs import NoConfigs, problem_of
from harness.evaluator.case.loading import load_kernel
from harness.qualify.clock_error import Timed, timed
from harness.qualify.state import read
from reference import generate_input
from task import find_problem

TIME_NOISE = 0.03  # of a time against its estimate, as a logarithm: weighs times against PRIOR
PRIOR = 0.3  # of a coefficient against where it was, as a logarithm
STEPS, STEP = 12, 0.02  # Gauss-Newton steps; relative step of a derivative
Costs = dict[str, float]


@dataclass
class Shape:
    """A shape that was timed. problem: as `estimate` takes it; us: of each configuration, without
    what a call adds to its kernel.
    """

    name: str
    problem: Any
    configs: list[Any]
    us: list[float]

    def loss(self, estimates: Sequence[float]) -> float:
        """How much longer the configuration of the least estimate takes than the best."""
        pick = min(range(len(estimates)), key=estimates.__getitem__)
        return self.us[pick] / min(self.us) - 1


class Model:
    """The estimates of a submission under other coefficients. module: the submission."""

    def __init__(self, module: Any, ghz: float):
        self.module, self.ghz = module, ghz
        self.start: Costs = dataclasses.asdict(module.COSTS)
        self.names = list(self.start)

    def estimates(self, shape: Shape, costs: Mapping[str, float]) -> list[float]:
        """Microseconds of each configuration."""
        kept = self.module.COSTS
        self.module.COSTS = dataclasses.replace(kept, **costs)
        try:
            cycles = [self.module.estimate(c, shape.problem) for c in shape.configs]
        finally:
            self.module.COSTS = kept
        return [each / self.ghz / 1e3 for each in cycles]

    def residuals(self, shapes: Sequence[Shape], logs: np.ndarray) -> np.ndarray:
        """Residuals of times and prior, in standard deviations. logs: of costs over start."""
        costs = self.costs(logs)
        found = [np.log(self.estimates(s, costs)) - np.log(s.us) for s in shapes]
        return np.concatenate([np.concatenate(found) / TIME_NOISE, logs / PRIOR])

    def costs(self, logs: np.ndarray) -> Costs:
        return {name: self.start[name] * float(np.exp(x)) for name, x in zip(self.names, logs)}

    def fit(self, shapes: Sequence[Shape]) -> Costs:
        """Coefficients that explain the times best: Gauss-Newton, a step taken where it helps."""
        logs = np.zeros(len(self.names))
        now = self.residuals(shapes, logs)
        for _ in range(STEPS):
            columns = []
            for i in range(len(logs)):
                moved = logs.copy()
                moved[i] += STEP
                columns.append((self.residuals(shapes, moved) - now) / STEP)
            step = np.linalg.lstsq(np.stack(columns, 1), -now, rcond=None)[0]
            for shorter in (1.0, 0.5, 0.25, 0.1):
                trial = self.residuals(shapes, logs + shorter * step)
                if trial @ trial < now @ now:
                    break
            else:
                break
            gain = 1 - (trial @ trial) / (now @ now)
            logs, now = logs + shorter * step, trial
            if gain < 1e-4:
                break
        return self.costs(logs)


def shapes_of(
    module: Any, kernel: Callable[[Any], Any], items: Sequence[Timed], call_us: Callable
) -> list[Shape]:
    """Shapes with two or more configurations timed. call_us(problem): of a call, not its kernel."""
    found = []
    for problem, case in dict.fromkeys((item.problem, item.case) for item in items):
        trials = [i for i in items if (i.problem, i.case) == (problem, case) and i.config]
        if len(trials) < 2:
            continue
        args = cases.make_case(find_problem(problem), cases.parse(case)).args
        form = problem_of(module, kernel, generate_input(problem, **args))
        pick = module.pick(form)
        configs = [dataclasses.replace(pick, **dict(trial.config)) for trial in trials]
        us = [max(trial.us - call_us(problem), 0.1) for trial in trials]
        found.append(Shape(f"{problem} {case}", form, configs, us))
    return found


def call_overhead(constants: Mapping[str, float]) -> Callable[[str], float]:
    """Microseconds that a call takes beside its kernel, by the protocol of a problem's benchmark
    (b200/clock/call_time.py).
    """
    c = B200.constants("nominal", dict(constants))

    def of(problem: str) -> float:
        calls = timing.plan(problem, "benchmark").calls
        start = c.event_floor_us - c.cta_start_us
        return start if calls == 1 else c.launch_gap_us + start / calls

    return of


def line_of(model: Model, costs: Costs) -> str:
    """A statement that replaces COSTS."""
    fields = ", ".join(f"{name}={value:.3g}" for name, value in costs.items())
    return f"COSTS = {type(model.module.COSTS).__name__}({fields})"


def evaluate(model: Model, shapes: Sequence[Shape]) -> dict[str, Any]:
    """The fitted coefficients, and what they are worth."""
    costs = model.fit(shapes)
    before = [s.loss(model.estimates(s, model.start)) for s in shapes]
    after = [s.loss(model.estimates(s, costs)) for s in shapes]
    apart = []
    for shape in shapes if len(shapes) > 1 else ():
        without = model.fit([other for other in shapes if other is not shape])
        apart.append(shape.loss(model.estimates(shape, without)))
    untried = [shape.name for shape in shapes if _picks_untried(model, shape, costs)]
    return {
        "mode": "costs",
        "status": "pass",
        "message": "",
        "shapes": len(shapes),
        "loss_before": float(np.mean(before)),
        "loss_after": float(np.mean(after)),
        "loss_held_out": float(np.mean(apart)) if apart else None,
        "before": model.start,
        "costs": costs,
        "untried": untried,
        "paste": line_of(model, costs),
    }


def _picks_untried(model: Model, shape: Shape, costs: Costs) -> bool:
    """Whether the coefficients make the submission pick what was not timed."""
    legal = Shape(shape.name, shape.problem, model.module.legal_configs(shape.problem), [])
    estimates = model.estimates(legal, costs)
    return legal.configs[estimates.index(min(estimates))] not in shape.configs


def main(argv: list[str] | None = None) -> int:
    parser = Parser("python -m harness.qualify.costs", __doc__)
    parser.add_argument("--state", type=Path, required=True)
    parser.add_argument("--constants", type=Path, help="of the clock, those that were found")
    parser.add_argument("--submission", type=Path, required=True)
    options = parser.parse_args(argv)
    constants = read_file(options.constants) if options.constants else {}
    kernel = load_kernel(options.submission.resolve())
    module = sys.modules["submission"]
    items = list(timed([row for given in read(options.state).values() for row in given.rows]))
    row: dict[str, Any] = {"mode": "costs", "status": "skipped"}
    if not dataclasses.is_dataclass(getattr(module, "COSTS", None)):
        row["message"] = "the submission has no dataclass COSTS that `estimate` reads"
    else:
        try:
            shapes = shapes_of(module, kernel, items, call_overhead(constants))
        except NoConfigs as error:
            shapes, row["message"] = [], str(error)
        if shapes:
            row = evaluate(Model(module, Options().clock_ghz), shapes)
        else:
            row.setdefault("message", "no shape was timed with several configurations")
    print(json.dumps(row), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
