"""Each generated table of README and docs: the command that writes its source, and its Markdown.

Renderers take the parsed files of docs/results in the order of `Table.sources`. FOLDER in a command
is a folder with the published measurements (their files are named in docs/lab/timing.md).
"""

from __future__ import annotations

import operator
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from harness.evaluator.ladder import errors as ladder
from lab.calibrations import CALIBRATIONS
from lab.evidence import rows
from lab.results import stale
from lab.tables import (
    beliefs,
    evidence,
    h200,
    headers,
    instructions,
    markdown,
    others,
    peers,
    runs,
    steps,
    strangers,
    suites,
    tuning,
)
from task import PROBLEMS


@dataclass(frozen=True)
class Table:
    """command: writes `sources`, files of docs/results. render: their contents -> Markdown. origin:
    what the figures are of, where that is no file of docs/results.
    """

    command: str
    sources: tuple[str, ...]
    render: Callable[..., str]
    origin: str = ""


# --- eval.py benchmark --json -------------------------------------------------------------------


def timed(records: list[dict]) -> list[dict]:
    """The records with `shape` ("gemm 1" for the first case of gemm); all must have a time."""
    for record in records:
        if record.get("time_us") is None:
            raise ValueError(f"no time in docs/results: {record['problem']} {record['case']}")
    return [{**record, "shape": peers.SHAPES[record["case"]]} for record in records]


def kind(records: list[dict]) -> str:
    """How the times came about: "modelled", or "measured, NAME OF THE DEVICE"."""
    (found,) = {(r["kind"], r["device"]) for r in records}
    return found[0] if found[0] == "modelled" else f"{found[0]}, {found[1]},"


def benchmark(records: list[dict]) -> str:
    columns = {
        "shape": "{shape}",
        f"{kind(records)} us": "{time_us:.2f}",
        "range": "{low_us:.2f} .. {high_us:.2f}",
        "DRAM or MMA alone": lambda r: f"{r['floor_us']:.2f}" if r["floor_us"] else "",
        "best known": "{best_known_us:.2f}",
        "bound by": operator.itemgetter("bound_by"),
    }
    below = sum(r["time_us"] < r["best_known_us"] for r in records)
    slow = sum(r["high_us"] < r["best_known_us"] for r in records)
    text = (
        f"{below} of {len(records)} are below the best published time; at the slow end of the range"
        f" {slow} are."
    )
    return f"{markdown.filled(columns, timed(records))}\n\n{text}"


def benchmark_means(records: list[dict]) -> str:
    rows = []
    for problem in PROBLEMS.values():
        own = [r for r in timed(records) if r["problem"] == problem.name]
        keys = ("time_us", "low_us", "high_us", "best_known_us")
        us, low, high, best = (statistics.geometric_mean(r[key] for r in own) for key in keys)
        apart = statistics.geometric_mean(map(beliefs.apart_us, own))
        of = f"{us:.2f} ({apart:.2f})", f"{low:.2f} .. {high:.2f}", f"{best:.2f}"
        rows.append((problem.short, *of))
    header = "problem", f"{kind(records)} us (apart)", "range", "best published us"
    return markdown.table(header, rows)


# --- python -m lab calibrate --------------------------------------------------------------------

# What is measured, index of its file in CALIBRATIONS, beginning of the groups, in its own unit?
BARS = (
    ("tcgen05.mma back to back, clk each", 0, "throughput", True),
    ("tcgen05.mma, latency", 0, "latency", False),
    ("TMA bandwidth from DRAM against bytes in flight", 1, "clk a load", False),
    ("one cold TMA load by all SMs", 1, "one cold load", False),
    ("main loop of one SM, in the L2", 2, "in the L2", False),
    ("main loop of one SM, from DRAM", 2, "from DRAM", False),
    ("multicast", 3, "explicit", False),
    ("the same loads without multicast", 3, "no_sharing", False),
    ("reads that CTAs share without multicast", 3, "implicit", False),
)


def half(calibration: dict, prefix: str, absolute: bool, odd: int) -> str:
    """Errors of the even or odd rows of the groups that begin with `prefix`, in words."""
    rows = [r for r in calibration["rows"] if r["group"].startswith(prefix)]
    rows = [r for r in rows if r["index"] % 2 == odd]
    if not rows:
        return ""
    if absolute:
        off = max(abs(r["modelled"] - r["measured"]) for r in rows)
        return f"at most {off:.1f} {rows[0]['unit']} off ({len(rows)} rows)"
    errors = [abs(r["modelled"] / r["measured"] - 1) for r in rows]
    return f"mean {statistics.mean(errors):.1%}, worst {max(errors):.1%} ({len(rows)} rows)"


def calibrations(*files: dict) -> str:
    rows = [
        (name, f"`{CALIBRATIONS[i]}`", *(half(files[i], prefix, absolute, odd) for odd in (0, 1)))
        for name, i, prefix, absolute in BARS
    ]
    return markdown.table(("measured on a B200", "calibration", "fitted half", "other half"), rows)


def clock_errors(*files: Any) -> str:
    *measured, public, points = files
    rows = [
        (name, half(measured[i], prefix, absolute, 1)) for name, i, prefix, absolute in BARS[:7]
    ]
    errors = list(map(ladder.error, others.timed(public["kernels"])))
    text = f"{min(errors):+.0%} to {max(errors):+.0%} ({len(errors)} times)"
    odd = ladder.summary("odd", beliefs.judging(points))
    versions = f"median {odd['median']:.0%}, worst {odd['worst']:.0%} ({odd['count']} times)"
    rows.append(("public matmuls and templates it was not fitted to", text))
    rows.append(("NVFP4 kernels of the contest's winner, the reporting half", versions))
    return markdown.table(("published", "model's error"), rows)


# --- public kernels -----------------------------------------------------------------------------


def public_kernels(record: dict) -> str:
    columns = {
        "kernel": "{kernel}",
        "shape": "{shape}",
        "GHz": "{clock_ghz}",
        "published us": "{published_us:.1f}",
        "modelled us": "{modelled_us:.1f}",
        "error": others.off,
        "what it is": "{what}",
    }
    return markdown.filled(columns, others.timed(record["kernels"]))


# --- python -m lab mutations --------------------------------------------------------------------


def mutations(record: dict) -> str:
    count, caught = record["count"], sum(kind["caught"] for kind in record["kinds"])
    how = ", ".join(f"{n} {name}" for name, n in record["how"].items())
    head = f"{caught} of {count} caught ({caught / count:.0%}), seed {record['seed']}: {how}."
    columns = "kind", "drawn", "caught", "named"
    columns = [name for name in columns if name in record["kinds"][0]]
    if "named" in columns:
        right = sum(kind["named"] for kind in record["kinds"])
        head += f" The first three lines have the cause of {right} ({right / caught:.0%})."
    kinds = {name.replace("kind", "mutation"): f"{{{name}}}" for name in columns}
    survivors = {
        "launch": "{launch}",
        "mutation": "{mutation}",
        "PTX": "`{ptx}`",
        "why it is harmless": "{why}",
    }
    tables = (
        markdown.filled(kinds, record["kinds"]),
        markdown.filled(survivors, record["survivors"]),
    )
    return "\n\n".join((head, tables[0], "Survivors:", tables[1]))


CALIBRATED = tuple(f"calibrate-{name}.json" for name in CALIBRATIONS)
CALIBRATE = "; ".join(
    f"python -m lab calibrate {name} --data FOLDER --out docs/results/calibrate-{name}.json"
    for name in CALIBRATIONS
)
BENCHMARK = "python -m lab remake benchmark.jsonl"
PEERS = "; ".join(
    f"python eval.py compare submission.py PEERS {problem.short} --times --json"
    " >> docs/results/compare.jsonl"
    for problem in PROBLEMS.values()
)
STEPS = "python -m lab remake first-kernel.jsonl"
STRANGERS = "python -m lab strangers FOLDER --out docs/results/strangers.jsonl"
ENTERED = "(others.json: times of single runs, entered by hand; docs/lab/timing.md says how)"
LADDER = "python eval.py ladder TIMES.csv FOLDER --out docs/results/ladder.jsonl"
CONTESTS = "; ".join(
    (
        "python -m hopper pipeline OURS.npz PEER.npz FAMILIES.npz --out FILE  # H200, each shape",
        "python -m lab h200_model --epilogues packs/*.npz --out docs/results/h200-model.json",
    )
)
H200_MODEL = ("h200-picks.json", "h200-model.json")
LOSSES = (
    "python -m lab tuning losses [--random N --seed S] --placements N"
    " --out docs/results/losses.jsonl"
)
FORMS = "the rows of b200/isa/forms"
ABLATION = "python -m lab tuning ablation --out docs/results/ablation.json"
JUDGING = ("ladder.jsonl", "others.json", "public-kernels.json", "strangers.jsonl")
TABLES = {
    "results": Table(
        "python -m lab remake", (), stale.table, "what the files of docs/results say of themselves"
    ),
    "beliefs-chip": Table(
        "(b200/clock/constants.toml: entered by hand, each with its source)",
        (),
        beliefs.chip,
        "`b200/clock/constants.toml`",
    ),
    "beliefs-clock": Table(LADDER, JUDGING, beliefs.clock),
    "errors-by-kind": Table(LADDER, JUDGING, beliefs.by_kind),
    "beliefs-differences": Table(LADDER, ("ladder.jsonl",), beliefs.differences),
    "beliefs-kernel": Table(
        ABLATION,
        ("evidence.json", "losses.jsonl", "mutations.json", "ablation.json", "benchmark.jsonl"),
        beliefs.kernel,
    ),
    "beliefs-tries": Table(ABLATION, ("ablation.json",), beliefs.first_tries),
    "h200-model-errors": Table(CONTESTS, H200_MODEL, h200.model_errors),
    "h200-model-ranks": Table(CONTESTS, H200_MODEL, h200.model_ranks),
    "h200-picks": Table(CONTESTS, H200_MODEL, h200.h200_picks),
    "peers": Table(PEERS, ("compare.jsonl", "ladder.jsonl"), peers.peers),
    "peer-means": Table(PEERS, ("compare.jsonl",), peers.peer_means),
    "ladder-points": Table(LADDER, ("ladder.jsonl",), peers.ladder_points),
    "ladder-errors": Table(LADDER, ("ladder.jsonl",), peers.ladder_errors),
    "ladder-ranks": Table(LADDER, ("ladder.jsonl",), peers.ladder_ranks),
    "ladder-steps": Table(LADDER, ("ladder.jsonl",), peers.ladder_steps),
    "first-kernel-steps": Table(STEPS, ("first-kernel.jsonl",), steps.steps),
    "benchmark": Table(BENCHMARK, ("benchmark.jsonl",), benchmark),
    "benchmark-means": Table(BENCHMARK, ("benchmark.jsonl",), benchmark_means),
    "calibrations": Table(CALIBRATE, CALIBRATED, calibrations),
    "clock-errors": Table(
        CALIBRATE, (*CALIBRATED, "public-kernels.json", "ladder.jsonl"), clock_errors
    ),
    "public-kernels": Table(
        "(public-kernels.json: times of single runs, entered by hand; docs/lab/timing.md says how)",
        ("public-kernels.json",),
        public_kernels,
    ),
    **{
        name: Table(STRANGERS, ("strangers.jsonl",), render)
        for name, render in (
            ("strangers-kinds", strangers.kinds),
            ("strangers", strangers.points),
            ("strangers-unsteady", strangers.unsteady),
            ("strangers-left-out", strangers.left_out),
        )
    },
    "others": Table(ENTERED, ("others.json",), others.points),
    "others-judged": Table(ENTERED, ("others.json", "public-kernels.json"), others.judged),
    **{
        what: Table(
            f"python -m lab tuning {what}{options} --out docs/results/{what}.json",
            (f"{what}.json",),
            tuning.tuning(what),
        )
        for what, options in (
            ("floors", ""),
            ("ablation", ""),
            ("sweep", " --plot docs/lab/sweep.png"),
        )
    },
    "losses": Table(LOSSES, ("losses.jsonl",), tuning.losses),
    "loss-means": Table(LOSSES, ("losses.jsonl",), tuning.loss_means),
    "h200-run": Table(
        "(h200-2026-11-21.json: one run on an H200; its field `commands` says how)",
        ("h200-2026-11-21.json",),
        runs.run,
    ),
    "h200-pipeline": Table(
        "python -m lab packs pipeline packs/*.npz --out docs/results/h200-pipeline.json  # H200",
        ("h200-pipeline.json",),
        runs.pipeline,
    ),
    "h200-arrives": Table(
        "(h200-arrives.json: one run on an H200 that no command repeats)",
        ("h200-arrives.json",),
        runs.arrives,
    ),
    **{
        f"h200-{name}": Table(
            f"python -m lab h200 {rig} --out docs/results/h200-{name}.json  # H200",
            (f"h200-{name}.json",),
            render,
        )
        for name, rig, render in (
            ("fences", "fence_cost", runs.fences),
            ("chain", "chain", runs.chain),
            ("replays", "replays", runs.replays),
            ("loads", "load_cost", runs.loads),
        )
    },
    **{
        f"evidence-{name}": Table(
            "(evidence.json: entered by hand; python -m lab evidence says what it lacks)",
            ("evidence.json",),
            render,
        )
        for name, render in (
            ("open", evidence.without),
            *((kind, evidence.of_kind(kind)) for kind in rows.KINDS),
            ("sources", evidence.sources),
        )
    },
    "instructions": Table("", (), instructions.modelled, FORMS),
    "instructions-missing": Table("", (), instructions.missing, FORMS),
    "conformance": Table(
        "python -m lab conformance --ptxas ptxas --ptxas NEWEST"
        " --out docs/results/conformance.json",
        ("conformance.json",),
        instructions.conformance,
    ),
    "headers": Table(
        "python -m lab headers --out docs/results/headers.json",
        ("headers.json",),
        headers.headers,
    ),
    **{
        name: Table(
            "python -m lab suites FOLDER --out DIR --record docs/results/suites.json",
            ("suites.json",),
            render,
        )
        for name, render in (("suites", suites.suites), ("suites-kinds", suites.kinds))
    },
    "mutations": Table(
        "python -m lab mutations --count 180 --seed 1 --jobs 16 "
        "--lines mutations.jsonl --out docs/results/mutations.json",
        ("mutations.json",),
        mutations,
    ),
}
