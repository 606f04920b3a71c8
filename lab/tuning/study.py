"""Which configuration is fast, modelled: `python -m lab tuning TABLE`.

floors: for each benchmark shape what no kernel can beat in the model, and what the pick takes.
ablation: the pick with one lever switched off at a time.
sweep: modelled time over its floor, for shapes around and between the benchmarks; --plot FILE.
losses: what the pick loses to the best of the next ones by its own estimate, for --random N shapes
and those named; a JSON object a shape, with the time of each configuration tried, on stdout and in
--out FILE. What that has is not run again: a pick that has changed since is judged by its times.

Times are modelled microseconds of the kernel and what it writes back, without the gap or the
events around it, at the constants of b200/clock/constants.toml (--end: of their ranges). `eval.py
benchmark` adds the protocol. Which DRAM channels a tensor's lines lie on moves a time by some
percent, so each is a mean of --placements N places of the tensors. --jobs N: processes.
"""

from __future__ import annotations

import concurrent.futures
import functools
import json
import math
import multiprocessing
import os
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

os.environ.setdefault("CUTE_DSL_ARCH", "sm_100a")

import torch

import b200
import submission
from b200 import pictures, records
from b200.clock import Constants, Options
from b200.clock.write_back import behind_memset, write_back_us
from b200.command_line import Parser
from b200.hardware import SM_COUNT
from b200.host import own_gpu
from harness import digest
from harness.evaluator.quantities import KERNEL_ALONE
from lab.kernel_cases import legal
from lab.survey.table import name as told
from lab.tables import tuning
from lab.tuning.shapes import SEED, benchmarks, random_shapes, sweep_shapes
from submission import Config, Problem, Shape

CONSTANTS = Constants.make()
GHZ = Options().clock_ghz
APART = 2 << 20  # bytes that a tensor lies further on in its allocation, for another placement

Data = list[dict[str, torch.Tensor]]  # the tensors of each group


def operands(problem: Problem, placement: int = 0) -> Data:
    """Zeros for each group: times do not depend on values. placement: where they lie."""
    return [
        {key: zeros(group[key], placement) for key in sorted(group, key=scales_last)}
        for group in submission.forms_of(problem)
    ]


def scales_last(key: str) -> tuple[bool, str]:
    return key.startswith("sf"), key


def zeros(form: torch.Tensor, placement: int) -> torch.Tensor:
    stored = torch.int16 if form.dtype == torch.float16 else torch.uint8
    before = placement * APART // stored.itemsize
    flat = torch.zeros(before + math.prod(form.shape), dtype=stored).view(form.dtype)
    return flat.as_strided(form.shape, form.stride(), before)


@dataclass(frozen=True)
class Ruler:
    """How a time is modelled: the mean of `placements` places of the tensors, with the clock's
    constants at this end of their ranges (`Constants.make`).
    """

    placements: int = 1
    end: str = "nominal"

    @property
    def constants(self) -> Constants:
        return Constants.make(self.end)

    def times(self, problem: Problem, configs: list[Config]) -> dict[Config, float]:
        """Modelled us of one launch on cold inputs, by configuration: for gemv after a write that
        fills the L2, else with what calls back to back write back.
        """
        torch.set_num_threads(1)
        placed = [operands(problem, place) for place in range(self.placements if configs else 0)]
        return {
            config: statistics.fmean(self.launch_us(problem, config, data) for data in placed)
            for config in configs
        }

    def us(self, problem: Problem, config: Config) -> float:
        return self.times(problem, [config])[config]

    def launch_us(self, problem: Problem, config: Config, data: Data) -> float:
        dirty, constants = problem.is_gemv, self.constants
        timing = Options(arithmetic=False, dirty_l2=dirty, constants=vars(constants))
        gpu = b200.install(timing=timing)
        submission.launch(problem, data, config)
        record = gpu.launches[-1].time
        if dirty:
            return record.time_us
        return record.time_us + write_back_us(record.chip.moved, record.time_us, constants)


@dataclass(frozen=True)
class Floor:
    """Microseconds: of DRAM traffic, of the tensor cores, and of start, latency and drain."""

    dram: float
    mma: float
    fixed: float

    @property
    def total(self) -> float:
        return max(self.dram, self.mma) + self.fixed

    @property
    def binds(self) -> str:
        return "DRAM" if self.dram >= self.mma else "MMA"


def floor(problem: Problem) -> Floor:
    """What the constants of the model allow at best.

    dram: operands once, and what the L2 must write back for a gemv. mma: N/2 clk for 128 rows and
    64 of K, all SMs alike. fixed: CTA start, descriptor, first bytes, last store.
    """
    c, moved, clk = CONSTANTS, 0.0, 0.0
    for p in problem.groups:
        rows_of_b = problem.num_products * p.own
        moved += p.l * (0.5625 * p.k * (rows_of_b + p.shared) + 2 * p.own * p.shared)
        clk += p.l * p.k / 64 * rows_of_b / 128 * max(8, p.shared) / 2
    if problem.is_gemv:
        moved += behind_memset(moved, c)
    first = c.descriptor_fetch + c.tma_l2 + c.dram_extra_clk + c.store_drain
    return Floor(
        moved / c.dram_bandwidth * 1e6,
        clk / SM_COUNT / GHZ / 1e3,
        c.cta_start_us + first / GHZ / 1e3 + c.dram_extra_ns / 1e3,
    )


def floors(name: str, problem: Problem, ruler: Ruler) -> dict:
    """The floor of a shape, its pick and the pick's modelled time."""
    f, config = floor(problem), submission.pick(problem)
    return {
        "shape": name,
        "dram_us": f.dram,
        "mma_us": f.mma,
        "fixed_us": f.fixed,
        "floor_us": f.total,
        "binds": f.binds,
        "us": ruler.us(problem, config),
        "pick": told(config),
    }


def kind(config: Config) -> tuple[bool, ...]:
    """The mechanisms that a configuration uses."""
    c = config
    return c.swap_ab, c.cta_group > 1, c.split_k > 1, c.cluster_n > 1, c.persistent


def candidates(problem: Problem, count: int) -> list[Config]:
    """The pick, the next best configurations by its estimate, and what that has for the best of
    each other combination of mechanisms; count 0: all legal ones.
    """
    pick, legal = submission.pick(problem), submission.legal_configs(problem)
    others = sorted(legal, key=lambda config: submission.estimate(config, problem))
    listed = [pick, *(config for config in others if config != pick)]
    first = listed[: count or None]
    known = {kind(config) for config in first}
    best = {kind(config): config for config in reversed(listed)}
    return first + [config for k, config in best.items() if k not in known]


def made_by() -> dict[str, str]:
    """What the modelled times of the kernel depend on."""
    return digest.made_by() | {"submission": digest.of_file(Path(submission.__file__))}


def loss(
    name: str,
    problem: Problem,
    ruler: Ruler,
    first: int,
    known: dict[str, float],
    by: dict[str, str] | None = None,
) -> dict:
    """What the pick of a shape loses to the best of its candidates; known: us of those that were
    modelled before, to which then only the pick is added; those that are legal no more go. by:
    what made the known ones; the record is no younger than they are.
    """
    pick = submission.pick(problem)
    legal = {told(config) for config in submission.legal_configs(problem)}
    known = {name: us for name, us in known.items() if name in legal}
    listed = [pick] if known else candidates(problem, first)
    new = [config for config in listed if told(config) not in known]
    times = {told(config): us for config, us in ruler.times(problem, new).items()} | known
    best = min(times, key=times.__getitem__)
    return {
        "made_by": by or made_by(),
        "shape": name,
        "sizes": [list(p) for p in problem.groups],
        "kind": "modelled",
        "placements": ruler.placements,
        "end": ruler.end,
        "pick": told(pick),
        "us": times[told(pick)],
        "best": best,
        "best_us": times[best],
        "loss": times[told(pick)] / times[best] - 1,
        "times_us": times,
    }


def problem_of(record: dict) -> Problem:
    """The problem of a record of `loss`."""
    shape = record["shape"]
    groups = tuple(Shape(*sizes) for sizes in record["sizes"])
    return Problem(2 if "dual" in shape else 1, groups, is_gemv="gemv" in shape)


def losses(pool: concurrent.futures.Executor, named: dict[str, Problem], args, ruler) -> None:
    """Print and keep the loss of each random and named shape, and of those in the file."""
    lines = args.out.read_text().splitlines() if args.out and args.out.exists() else []
    by_shape = {record["shape"]: record for record in map(json.loads, lines)}
    running = []
    for name, old in by_shape.items():
        same = Ruler(old["placements"], old["end"])
        kept = old["times_us"], old["made_by"]
        running.append(pool.submit(loss, name, problem_of(old), same, 1, *kept))
    for name, problem in (random_shapes(args.random, args.seed) | named).items():
        if name not in by_shape:
            running.append(pool.submit(loss, name, problem, ruler, args.first, {}))
    for future in concurrent.futures.as_completed(running):
        record = future.result()
        by_shape[record["shape"]] = record
        print(json.dumps(record), flush=True)
        if args.out:
            args.out.write_text("".join(json.dumps(r) + "\n" for r in by_shape.values()))
    worst = max(by_shape.values(), key=lambda record: record["loss"])
    told_worst = f"the pick loses at most {worst['loss']:.1%}, on {worst['shape']}"
    print(f"{len(by_shape)} shapes, modelled: {told_worst}", file=sys.stderr)


# Lever -> its setting without it.
OFF = {
    "tokens as rows": {"swap_ab": True},
    "multicast": {"cluster_n": 1},
    "CTA pair": {"cta_group": 1},
    "K split": {"split_k": 1},
    "persistent": {"persistent": False},
}


def without(config: Config, problem: Problem, lever: str) -> Config | None:
    """The configuration without a lever, or None where it does not use it or cannot do without."""
    changed = replace(config, **OFF[lever])
    return changed if changed != config and legal(changed, problem) else None


def ablation(name: str, problem: Problem, ruler: Ruler) -> dict:
    """Time of a shape's pick, and by how much each lever switched off changes it."""
    config = submission.pick(problem)
    changed = {lever: without(config, problem, lever) for lever in OFF}
    times = ruler.times(problem, [config, *filter(None, changed.values())])
    us = times[config]
    changes = {lever: times[c] / us - 1 if c else None for lever, c in changed.items()}
    return {"shape": name, "us": us, **changes}


def sweep(name: tuple[str, int], problem: Problem, ruler: Ruler) -> dict:
    """Modelled time and floor of a point of sweep_shapes."""
    us = ruler.us(problem, submission.pick(problem))
    return {"line": name[0], "value": name[1], "us": us, "floor_us": floor(problem).total}


def draw(points: list[dict], path: str) -> None:
    """A panel a line of a sweep: modelled time and its floor over what varies."""
    lines = list(dict.fromkeys(p["line"] for p in points))
    figure = pictures.new(11, 3.2 * -(-len(lines) // 2))
    panels = figure.subplots(-(-len(lines) // 2), 2, squeeze=False).ravel()
    for axes, line in zip(panels, lines):
        along = [p for p in points if p["line"] == line]
        values, times = [p["value"] for p in along], [p["us"] for p in along]
        axes.plot(values, times, "o-", label=KERNEL_ALONE, color="#466ebe")
        floors = [p["floor_us"] for p in along]
        axes.plot(values, floors, "--", label="its floor", color="#888888")
        spread = f"{min(times):.2f} to {max(times):.2f} us"
        axes.set_title(f"{line}: {spread}", fontsize=10, loc="left")
        axes.set(xlabel=line.split()[-1], ylabel=f"{KERNEL_ALONE}, modelled, us", ylim=(0, None))
        axes.grid(color="#dddddd", linewidth=0.5)
        axes.legend(fontsize=8)
    for axes in panels[len(lines) :]:
        axes.set_visible(False)
    pictures.save(figure, Path(path), "Modelled time over its floor")


# Table -> the record of a shape.
TABLES: dict[str, Callable[..., dict]] = {f.__name__: f for f in (floors, ablation, sweep)}


def main() -> None:
    parser = Parser(prog="python -m lab tuning", description=__doc__)
    parser.add_argument("what", choices=[*TABLES, "losses"], help="the table to make")
    parser.add_argument(
        "shapes",
        nargs="*",
        help='benchmark shapes, as "gemm 1"; all by default (losses: if none is random)',
    )
    parser.add_argument(
        "--first", type=int, default=8, help="losses: configurations to model; 0: all"
    )
    parser.add_argument("--random", type=int, default=0, metavar="N", help="losses: shapes")
    parser.add_argument("--seed", type=int, default=SEED, help="losses: of the random shapes")
    parser.add_argument("--placements", type=int, default=1, metavar="N", help="places of tensors")
    parser.add_argument(
        "--end",
        choices=("low", "nominal", "high"),
        default="nominal",
        help="of the clock's ranges, for times (a floor is nominal)",
    )
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes")
    parser.add_argument("--out", type=Path, metavar="FILE", help="also write the table there")
    parser.add_argument("--plot", metavar="FILE", help="sweep: picture to write (PNG)")
    args = parser.parse_intermixed_args()
    shapes = benchmarks()
    if unknown := set(args.shapes) - set(shapes):
        parser.error(f"unknown shapes {sorted(unknown)}; there are {sorted(shapes)}")
    own_gpu.hide()  # a choice asks torch for the GPU before the software B200 is installed
    ruler = Ruler(args.placements, args.end)
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(args.jobs, spawn) as pool:
        listed = args.shapes if args.what == "losses" and args.random else args.shapes or shapes
        named = {name: shapes[name] for name in listed}
        if args.what == "losses":
            return losses(pool, named, args, ruler)
        if args.what == "sweep":
            named = dict(sweep_shapes())
        record = functools.partial(TABLES[args.what], ruler=ruler)
        rows = []
        for found in pool.map(record, named, named.values()):
            rows.append(found)
            table = tuning.tuning(args.what)({"rows": rows}).splitlines()
            print(*(table if len(rows) == 1 else table[-1:]), sep="\n", flush=True)
    if args.out:
        records.write(args.out, {"made_by": made_by(), "rows": rows})
    if args.plot and args.what == "sweep":
        draw(rows, args.plot)


if __name__ == "__main__":
    main()
