"""Each generated table of README and docs: the command that writes its source, and its Markdown.

Renderers take the parsed files of docs/results in the order of `Table.sources`. FOLDER in a command
is a folder with the published measurements (their files are named in docs/timing.md).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from harness.evaluator.ladder import errors as ladder
from lab.evidence import rows
from lab.tables import beliefs, evidence, h200, markdown, others, peers, steps, tuning
from task import DUAL, PROBLEMS, find_problem


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
    found, seen = [], dict.fromkeys((p.name for p in PROBLEMS.values()), 0)
    for record in records:
        if record.get("time_us") is None:
            raise ValueError(f"no time in docs/results: {record['problem']} {record['case']}")
        seen[record["problem"]] += 1
        short = find_problem(record["problem"]).short
        found.append({**record, "shape": f"{short} {seen[record['problem']]}"})
    return found


def kind(records: list[dict]) -> str:
    """How the times came about: "modelled", or "measured, NAME OF THE DEVICE"."""
    (found,) = {(r["kind"], r["device"]) for r in records}
    return found[0] if found[0] == "modelled" else f"{found[0]}, {found[1]},"


def mean(values: Iterable[float]) -> float:
    return math.exp(statistics.mean(map(math.log, values)))


def benchmark(records: list[dict]) -> str:
    header = (
        "shape",
        f"{kind(records)} us",
        "range",
        "DRAM or MMA alone",
        "best known",
        "bound by",
    )
    rows = [
        (
            r["shape"],
            f"{r['time_us']:.2f}",
            f"{r['low_us']:.2f} .. {r['high_us']:.2f}",
            f"{r['floor_us']:.2f}" if r["floor_us"] else "",
            f"{r['best_known_us']:.2f}",
            r["bound_by"] or "",
        )
        for r in timed(records)
    ]
    below = sum(r["time_us"] < r["best_known_us"] for r in records)
    slow = sum(r["high_us"] < r["best_known_us"] for r in records)
    text = (
        f"{below} of {len(records)} are below the best published time; at the slow end of the range"
        f" {slow} are."
    )
    return f"{markdown.table(header, rows)}\n\n{text}"


def benchmark_means(records: list[dict]) -> str:
    rows = []
    for problem in PROBLEMS.values():
        own = [r for r in timed(records) if r["problem"] == problem.name]
        keys = ("time_us", "low_us", "high_us", "best_known_us")
        us, low, high, best = (mean(r[key] for r in own) for key in keys)
        rows.append((problem.short, f"{us:.2f}", f"{low:.2f} .. {high:.2f}", f"{best:.2f}"))
    return markdown.table(("problem", f"{kind(records)} us", "range", "best published us"), rows)


# --- python -m lab calibrate -------------------------------------------------------------------

# What is measured, index of its file in CALIBRATIONS, beginning of the groups, in its own unit?
CALIBRATIONS = ("umma", "tma", "mainloop", "mcast")
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
    errors = [error(kernel) for kernel in public["kernels"]]
    text = f"{min(errors):+.0%} to {max(errors):+.0%} ({len(errors)} times)"
    odd = ladder.summary("odd", [p for p in peers.timed(points) if p["parity"] == "odd"])
    versions = f"median {odd['median']:.0%}, worst {odd['worst']:.0%} ({odd['count']} times)"
    rows.append(("public matmuls and templates it was not fitted to", text))
    rows.append(("NVFP4 kernels of the contest's winner, the reporting half", versions))
    return markdown.table(("published", "model's error"), rows)


# --- public kernels -----------------------------------------------------------------------------


def error(kernel: dict) -> float:
    return kernel["modelled_us"] / kernel["published_us"] - 1


def public_kernels(record: dict) -> str:
    rows = [
        (
            k["kernel"],
            k["shape"],
            f"{k['clock_ghz']}",
            f"{k['published_us']:.1f}",
            f"{k['modelled_us']:.1f}",
            f"{error(k):+.0%}",
            k["what"],
        )
        for k in record["kernels"]
    ]
    header = ("kernel", "shape", "GHz", "published us", "modelled us", "error", "what it is")
    return markdown.table(header, rows)


# --- measured on an H200 ------------------------------------------------------------------------


def shape_of(case: dict) -> str:
    if "g" in case:
        sizes = {(n, k) for n, k in zip(case["n"], case["k"])}
        return f"group of {case['g']}, " + ", ".join(f"{n} x {k}" for n, k in sizes)
    short = find_problem(case["problem"]).short
    sizes = [case[key] for key in "mnk" if key in case]
    batch = f", L{case['l']}" if case["l"] > 1 else ""
    return f"{short} {' x '.join(map(str, sizes))}{batch}"


def h200_run(record: dict) -> str:
    def count(results: list[dict], **wanted: object) -> str:
        found = sum(all(r[key] == value for key, value in wanted.items()) for r in results)
        return f"{found} of {len(results)}"

    tests, shapes = record["official_tests"], record["benchmark_shapes"]
    live = sum(record["live"]["passed"].values())
    public, levers = record["public_kernels"]["results"], record["levers"]["results"]
    again, alike = "same_bits_in_all_calls", "same_bits_as_emulator"
    dual = [r for r in tests if r["case"]["problem"] == DUAL.name]
    others = [r for r in tests if r not in dual]
    bits = f"{count(others, **{alike: True})} of gemv, gemm, group; {count(dual, **{alike: True})}"
    rows = [
        (
            "official test cases, as packs, ten times",
            f"{count(tests, reference='right')} right, {count(tests, **{again: True})} repeatable",
        ),
        (
            "... live, `eval.py test --device hopper` with the DSL on the machine",
            f"{live} of {live + record['live']['failed']} right",
        ),
        ("... with the emulator's bits", f"{bits} of dual"),
        (
            "benchmark shapes, ten times",
            f"{count(shapes, reference='right')} right, "
            f"{count(shapes, **{again: True})} repeatable",
        ),
        ("public CuTe DSL kernels", f"{count(public, **{alike: True})} with the emulator's bits"),
        (
            "one configuration for each lever of the kernel",
            f"{count(levers, **{again: True})} repeatable, {count(levers, **{alike: True})} with"
            " the emulator's bits",
        ),
    ]
    return markdown.table(("run", "result"), rows)


def h200_pipeline(record: dict) -> str:
    order = [p.name for p in PROBLEMS.values()]
    measured = sorted(
        record["measured"], key=lambda m: (order.index(m["case"]["problem"]), m["pack"])
    )
    rows = [
        (
            shape_of(m["case"]),
            m["cluster"],
            f"{m['input_bytes'] / 1e6:.1f}",
            *(f"{m[key]:.1f}" for key in ("us", "without_releases_us", "read_us")),
        )
        for m in measured
    ]
    header = ("shape", "cluster", "MB", "us", "relaxed, us", "ordinary loads, us")
    text = f"A copy from device to device moves {record['copy_gb_s']:.0f} GB/s."
    return f"{markdown.table(header, rows)}\n\n{text}"


def h200_arrives(record: dict) -> str:
    def span(cycles: Any) -> str:
        return f"{cycles[0]} - {cycles[1]}" if isinstance(cycles, list) else str(cycles)

    rows = [
        (f".{name}", span(found["idle"]), span(found["loads_in_flight"]))
        for name, found in record["arrives"].items()
        if isinstance(found, dict)
    ]
    return markdown.table(("mbarrier.arrive", "CTA idle", "bulk loads in flight in the CTA"), rows)


def h200_fences(record: dict) -> str:
    words = {"none": "nothing", "bulk": "bulk load", "ld": "loads", "st": "stores"}
    rows = []
    for result in record["results"]:
        case = result["case"]
        if case["ctas"] != 4 and case["nbytes"] != 131072:
            continue  # the same with all SMs at work
        size = case["nbytes"]
        access: str = case["access"]
        text = words.get(access, access)
        text += f" of {size >> 10} KB" if size >= 1024 else f" of {size} B" if size else ""
        text += ", another warp's" if case["other"] else ""
        text += ", still in flight" if case["in_flight"] else ""
        text += ", in all SMs" if case["ctas"] != 4 else ""
        peer = "" if result["peer"] is None else f"{result['peer']:.0f}"
        rows.append((text, f"{result['first']:.0f}", f"{result['second']:.0f}", peer))
    return markdown.table(
        ("since the last fence", "fence", "the next one", "in the peer CTA"), rows
    )


def h200_loads(record: dict) -> str:
    found = {(r["nbytes"], r["warps"]): r for r in record["results"]}
    rows = [
        (size, *(f"{x:.0f}" for x in (one["mean"], found[size, 4]["mean"], found[size, 4]["last"])))
        for (size, warps), one in found.items()
        if warps == 1
    ]
    return markdown.table(
        ("bytes a warp", "one warp", "four warps, mean", "the last of four"), rows
    )


# --- python -m lab mutations -------------------------------------------------------


def mutations(record: dict) -> str:
    count, caught = record["count"], sum(kind["caught"] for kind in record["kinds"])
    how = ", ".join(f"{n} {name}" for name, n in record["how"].items())
    head = f"{caught} of {count} caught ({caught / count:.0%}), seed {record['seed']}: {how}."
    columns = "kind", "drawn", "caught", "named"
    columns = [name for name in columns if name in record["kinds"][0]]
    if "named" in columns:
        right = sum(kind["named"] for kind in record["kinds"])
        head += f" The first three lines have the cause of {right} ({right / caught:.0%})."
    kinds = [tuple(kind[name] for name in columns) for kind in record["kinds"]]
    survivors = [
        (s["launch"], s["mutation"], f"`{s['ptx']}`", s["why"]) for s in record["survivors"]
    ]
    return "\n\n".join(
        [
            head,
            markdown.table(("mutation", *columns[1:]), kinds),
            "Survivors:",
            markdown.table(("launch", "mutation", "PTX", "why it is harmless"), survivors),
        ]
    )


CALIBRATED = tuple(f"calibrate-{name}.json" for name in CALIBRATIONS)
CALIBRATE = "; ".join(
    f"python -m lab calibrate {name} --data FOLDER --out docs/results/calibrate-{name}.json"
    for name in CALIBRATIONS
)
BENCHMARK = "python eval.py benchmark --device emulator --json > docs/results/benchmark.jsonl"
PEERS = "; ".join(
    f"python eval.py compare submission.py PEERS {problem.short} --times --json"
    " >> docs/results/compare.jsonl"
    for problem in PROBLEMS.values()
)
STEPS = (
    "python eval.py compare submission.py docs/examples/gemm_mended.py"
    " docs/examples/steps/gemm_1.py docs/examples/steps/gemm_2.py docs/examples/gemm_fast.py gemm"
    ' --case "m: 128;n: 4096;k: 7168;l: 1" --json > docs/results/first-kernel.jsonl'
)
ENTERED = "(others.json: times of single runs, entered by hand; docs/timing.md says how)"
LADDER = "python eval.py ladder TIMES.csv FOLDER --out docs/results/ladder.jsonl"
CONTESTS = "; ".join(
    (
        "python -m b200 pipeline OURS.npz PEER.npz FAMILIES.npz --out FILE  # H200, each shape",
        "python -m lab h200_model --epilogues packs/*.npz --out docs/results/h200-model.json",
    )
)
H200_MODEL = ("h200-picks.json", "h200-model.json")
LOSSES = (
    "python -m lab tuning losses [--random N --seed S] --placements N"
    " --out docs/results/losses.jsonl"
)
ABLATION = "python -m lab tuning ablation --out docs/results/ablation.json"
JUDGING = ("ladder.jsonl", "others.json", "public-kernels.json")
TABLES = {
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
        ("evidence.json", "losses.jsonl", "mutations.json", "ablation.json"),
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
        "(public-kernels.json: times of single runs, entered by hand; docs/timing.md says how)",
        ("public-kernels.json",),
        public_kernels,
    ),
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
            ("sweep", " --plot docs/sweep.png"),
        )
    },
    "losses": Table(LOSSES, ("losses.jsonl",), tuning.losses),
    "loss-means": Table(LOSSES, ("losses.jsonl",), tuning.loss_means),
    "h200-run": Table(
        "(h200-2026-11-21.json: one run on an H200; its field `commands` says how)",
        ("h200-2026-11-21.json",),
        h200_run,
    ),
    "h200-pipeline": Table(
        "python -m lab packs pipeline packs/*.npz --out docs/results/h200-pipeline.json  # H200",
        ("h200-pipeline.json",),
        h200_pipeline,
    ),
    "h200-arrives": Table(
        "(h200-arrives.json: one run on an H200 that no command repeats)",
        ("h200-arrives.json",),
        h200_arrives,
    ),
    "h200-fences": Table(
        "python -m lab h200 fence_cost --out docs/results/h200-fences.json  # H200",
        ("h200-fences.json",),
        h200_fences,
    ),
    "h200-loads": Table(
        "python -m lab h200 load_cost --out docs/results/h200-loads.json  # H200",
        ("h200-loads.json",),
        h200_loads,
    ),
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
    "mutations": Table(
        "python -m lab mutations --count 180 --seed 1 --jobs 16 "
        "--lines mutations.jsonl --out docs/results/mutations.json",
        ("mutations.json",),
        mutations,
    ),
}
