"""`eval.py tune`: is the pick of the kernel the best of the configurations that it ranks highest?

The submission says what there is to choose from: `legal_configs(problem)` lists configurations,
frozen dataclasses; `estimate(config, problem)` ranks them, the lowest first; `pick(problem)`
chooses, and custom_kernel calls it by that name for each new problem. Each configuration has a
process and a time limit of its own: one that hangs, faults or is wrong costs itself.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from b200 import pictures
from harness.evaluator.case.job import Job, Outcome
from harness.evaluator.cases import Case
from harness.evaluator.dask_cluster import Cluster
from harness.evaluator.devices import Device
from harness.evaluator.pool import Pool
from harness.evaluator.progress import Progress

Config = Mapping[str, Any]  # the fields of a configuration


@dataclasses.dataclass
class Trial:
    """One configuration of a shape. estimate: the kernel's own. us: modelled or measured, if it
    ran.
    """

    config: Config
    estimate: float
    outcome: Outcome | None = None

    @property
    def us(self) -> float | None:
        if self.outcome and self.outcome.modelled:
            return self.outcome.modelled["time_us"]
        return self.outcome.stats["mean"] / 1e3 if self.outcome and self.outcome.stats else None


def told(config: Config, others: Sequence[Config]) -> str:
    """The fields in which configurations differ."""
    differing = [k for k in config if any(other[k] != config[k] for other in others)]
    return " ".join(f"{name}={config[name]}" for name in differing) or "the only one"


class Tuned:
    """A shape and its trials, the pick first. failed: why there are none."""

    def __init__(self, case: Case, ranked: Outcome):
        self.case = case
        self.failed = ranked if ranked.status != "pass" else None
        self.trials = [Trial(*pair) for pair in ranked.ranked or ()]
        self.seconds = ranked.seconds

    @property
    def timed(self) -> list[Trial]:
        return [trial for trial in self.trials if trial.us is not None]

    @property
    def best(self) -> Trial:
        return min(self.timed, key=lambda trial: trial.us or 0.0)

    @property
    def loss(self) -> float | None:
        """How much longer the pick takes than the best, as a share of that."""
        pick = self.trials[0].us if self.trials else None
        return None if pick is None else pick / (self.best.us or 1.0) - 1

    def name(self, trial: Trial) -> str:
        return told(trial.config, [other.config for other in self.trials])

    @property
    def outcome(self) -> Outcome:
        """What became of the shape: that of the first trial which did not pass, if any."""
        outcomes = [self.failed, *(trial.outcome for trial in self.trials)]
        bad = [o for o in outcomes if o is not None and o.status != "pass"]
        return bad[0] if bad else Outcome("pass")

    def record(self, device: Device) -> dict[str, Any]:
        """The JSON object of the shape."""
        outcome = self.outcome
        fields: dict[str, Any] = {
            "problem": self.case.problem.name,
            "case": self.case.text,
            "device": device.name,
            "day": datetime.date.today().isoformat(),
            "mode": "tune",
            "status": outcome.status,
            "message": outcome.message,
            "seconds": round(self.seconds, 3),
        }
        if self.loss is not None:
            fields |= {
                "kind": "modelled" if self.trials[0].outcome.modelled else "measured",  # type: ignore[union-attr]
                "time_us": self.trials[0].us,
                "config": self.name(self.trials[0]),
                "best_us": self.best.us,
                "best": self.name(self.best),
                "loss": self.loss,
            }
        fields["tried"] = [
            {
                "config": dict(trial.config),
                "estimate": trial.estimate,
                "time_us": trial.us,
                "status": trial.outcome.status if trial.outcome else None,
            }
            for trial in self.trials
        ]
        return fields

    def lines(self, kind: str) -> Iterator[str]:
        """For a person: the trials, the fastest first."""
        shape = f"{self.case.problem.name} {self.case.text}"
        if self.failed or self.loss is None:
            yield f"{shape}: {self.outcome.status}: {self.outcome.message}"
            return
        yield f"{shape}: the pick loses {self.loss:.1%} to the best of {len(self.timed)}, {kind}"
        yield f"  {kind + ' us':>11}  over best  by estimate  configuration"
        places = {id(t): i for i, t in enumerate(sorted(self.trials, key=lambda t: t.estimate), 1)}
        for trial in sorted(self.trials, key=lambda t: t.us or float("inf")):
            if trial.us is None:
                message = trial.outcome.message if trial.outcome else "not run"
                first = message.split("\n")[0]
                yield f"  {'':11}  {'':9}  {places[id(trial)]:11}  {self.name(trial)}: {first}"
                continue
            over = f"{trial.us / (self.best.us or 1.0) - 1:+.1%}"
            mark = "  <- pick" if trial is self.trials[0] else ""
            rank = places[id(trial)]
            yield f"  {trial.us:11.2f}  {over:>9}  {rank:11}  {self.name(trial)}{mark}"


def tune(
    arguments: argparse.Namespace,
    jobs: Sequence[Job],
    chosen: Sequence[Case],
    device: Device,
    workers: int,
) -> list[Outcome]:
    """The command: each case's pick against other configurations, printed and drawn as the
    arguments say. jobs: one a case. Returns what became of each shape.
    """
    progress: list[Progress] = []

    def pool(names: Sequence[str]) -> Pool | Cluster:
        progress.append(Progress(names))
        if arguments.scheduler:
            return Cluster(arguments.scheduler, progress[-1].tick)
        return Pool(device.method, workers, progress[-1].tick)

    show_one = show(device, arguments.json)

    def report(tuned: Tuned) -> None:
        progress[-1].clear()
        show_one(tuned)

    try:
        found = run(jobs, chosen, arguments.configs, pool, report)
    finally:
        for shown in progress:
            shown.clear()
    if arguments.plot:
        draw(found, device, Path(arguments.plot).absolute())
    return [tuned.outcome for tuned in found]


def run(
    jobs: Sequence[Job],
    cases: Sequence[Case],
    count: int,
    pool: Callable[[Sequence[str]], Pool | Cluster],
    report: Callable[[Tuned], None],
) -> list[Tuned]:
    """Rank the configurations of each case, run the first `count` of each, report as they end.

    jobs: one a case, of mode "tune". pool(what): something with the `run` of pool.Pool,
    for jobs with these names.
    """
    asked = [dataclasses.replace(job, plot="", count=count) for job in jobs]
    ranked = pool([f"{case.problem.short} {case.text}" for case in cases]).run(asked)
    found = [Tuned(case, outcome) for outcome, case in zip(ranked, cases)]
    work = [
        (tuned, trial, dataclasses.replace(job, plot="", config=tuple(trial.config.items())))
        for job, tuned in zip(jobs, found)
        for trial in tuned.trials
    ]
    left = {id(tuned): len(tuned.trials) for tuned in found}
    for tuned in found:
        if not tuned.trials:
            report(tuned)
    names = [f"{t.case.problem.short} {t.case.text}: {t.name(trial)}" for t, trial, _ in work]
    outcomes = pool(names).run([job for _, _, job in work])
    for outcome, (tuned, trial, _) in zip(outcomes, work):
        trial.outcome = outcome
        tuned.seconds += outcome.seconds
        left[id(tuned)] -= 1
        if not left[id(tuned)]:
            report(tuned)
    return found


def show(device: Device, as_json: bool) -> Callable[[Tuned], None]:
    """A report of shapes on stdout."""

    def print_one(tuned: Tuned) -> None:
        if as_json:
            print(json.dumps(tuned.record(device)), flush=True)
        else:
            kind = "measured" if device.kind == "cuda" else "modelled"
            print("\n".join(tuned.lines(kind)) + "\n", flush=True)

    return print_one


def draw(found: Sequence[Tuned], device: Device, path: Path) -> None:
    """A panel a shape: time of each configuration in the order of the kernel's estimate."""
    shown = [tuned for tuned in found if tuned.loss is not None]
    if not shown:
        return
    kind = f"measured on {device.name}" if device.kind == "cuda" else "modelled"
    columns = min(2, len(shown))
    rows = -(-len(shown) // columns)
    figure = pictures.new(1 + 5 * columns, 3.8 * rows)
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    hints = {}
    for number, (axes, tuned) in enumerate(zip(panels, shown)):
        ordered = sorted(tuned.timed, key=lambda t: t.estimate)
        places = range(1, len(ordered) + 1)
        points = axes.scatter(places, [t.us for t in ordered], color="#466ebe", label="tried")
        points.set_gid(f"points-{number}")
        hints[f"points-{number}"] = [f"{t.us:.2f} us: {tuned.name(t)}" for t in ordered]
        at = 1 + ordered.index(tuned.trials[0])
        axes.scatter([at], [tuned.trials[0].us], s=120, facecolors="none", edgecolors="#c85a3c",
                     label="pick")  # fmt: skip
        axes.axhline(tuned.best.us, color="#888888", linestyle="--", label="best")
        title = f"{tuned.case.problem.short} {tuned.case.text}\nthe pick loses {tuned.loss:.1%}"
        axes.set_title(title, fontsize=9, loc="left", wrap=True)
        axes.set(xlabel="place by the kernel's estimate", ylabel=f"us, {kind}")
        axes.set_ylim(0, 1.15 * max(t.us or 0.0 for t in ordered))
        axes.set_xlim(0.5, len(ordered) + 0.5)
        axes.set_xticks(places)
        axes.grid(color="#dddddd", linewidth=0.5)
        axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
    for axes in panels[len(shown) :]:
        axes.set_visible(False)
    text = "\n\n".join("\n".join(tuned.lines(kind.split()[0])) for tuned in shown)
    pictures.save(figure, path, f"Configurations, {kind}", text, hints)
