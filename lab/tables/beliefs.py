"""The tables of docs/beliefs.md: what the clock and the kernel hold true today."""

from __future__ import annotations

import re
import statistics
from typing import Any

from b200.clock.constants import TABLE, Constant
from b200.clock.spread import FEWEST
from harness.evaluator.compare import confidence
from harness.evaluator.ladder import errors as ladder
from lab.evidence import rows as evidence_rows
from lab.tables import markdown, others, peers, strangers
from task import PROBLEMS

# Constant of the clock -> what it is, in words.
CHIP = {
    "dram_bandwidth": "DRAM reads",
    "l2_bandwidth": "L2 reads",
    "l2_fill": "a byte from DRAM takes the L2 as long as so many delivered ones",
    "tma_issue": "between two TMA copies of a warp",
    "descriptor_fetch": "first use of a tensormap by an SM",
    "cp_32x128b": "a copy of 512 bytes of scale factors",
    "launch_gap_us": "between two kernels of a queue",
}
WITNESSES = ("SA", "NCU1", "AS", "QRC", "GN", "SIG", "C&C", "TileSight", "flashinfer", "H200")


def number(constant: Constant, value: float) -> str:
    """A value with its unit: 7.26 TB/s, 58 clk."""
    if constant.unit == "B/s":
        return f"{value / 1e12:.3g} TB/s"
    return f"{value:.3g} {constant.unit}".rstrip()


def ends(constant: Constant) -> str:
    """The range of a constant, its fast end first; "" without one."""
    if constant.low is None or constant.high is None:
        return ""
    return f"{number(constant, constant.low)} .. {number(constant, constant.high)}"


def witness(constant: Constant) -> str:
    """The names in a constant's source, as the glossary has them."""
    found = re.findall(r"[A-Za-z&]+\d*", constant.source)
    return ", ".join(dict.fromkeys(word for word in found if word in WITNESSES))


def chip() -> str:
    """Some constants of the clock: value, range, grade and witness."""
    constants = {constant.name: constant for constant in TABLE}
    found = []
    for name, what in CHIP.items():
        c = constants[name]
        found.append((what, number(c, c.value), ends(c), c.grade, witness(c)))
    header = ("of the chip", "value", "range, fast end first", "grade", "witness")
    return markdown.table(header, found)


Median = tuple[float, str, list[float]]
LARGE = 0.10  # a median error from which on a kind is told by name


def _median(part: list[dict]) -> float:
    return statistics.median(abs(ladder.error(r)) for r in part)


def kinds(points: list[dict], record: dict, public: dict, rows: list[dict]) -> list[Median]:
    """(median size, kind, errors) of the clock on the judging halves, the largest median first.
    points: of the ladder. record, public: docs/results/others.json and public-kernels.json. rows:
    strangers.jsonl; those of its kinds that have FEWEST times and a median above LARGE stand here,
    all of them in its own page.
    """
    parts = ladder.groups(judging(points), lambda r: r["kind"]) | others.kinds(record, public)
    for kind, part in ladder.groups(strangers.timed(rows), lambda r: r["kind"]).items():
        if len(part) >= FEWEST and _median(part) > LARGE:
            parts[f"{kind}, strangers"] = part
    return others.medians(parts)


def whole(points: list[dict], record: dict, public: dict, rows: list[dict]) -> list[Median]:
    """The same of the ladder, of strangers' kernels, and of all other ones."""
    others_points = [p for part in others.kinds(record, public).values() for p in part]
    parts = {
        "all of the ladder": judging(points),
        "all of strangers": strangers.timed(rows),
        "all others": others_points,
    }
    return others.medians(parts)


def judging(points: list[dict]) -> list[dict]:
    """The points of a ladder that are reported."""
    return [p for p in peers.timed(points) if p["parity"] == "odd"]


def clock(points: list[dict], record: dict, public: dict, rows: list[dict]) -> str:
    """The clock's error on kernels that it was not fitted to: of the ladder, of strangers, of all
    others, then by kind; the largest median first.
    """
    given = points, record, public, rows
    found = [others.spread(name, e, FEWEST) for _, name, e in whole(*given) + kinds(*given)]
    header = ("kind of kernel", "published times", "median error", "modelled over published")
    return markdown.table(header, found)


def by_kind(points: list[dict], record: dict, public: dict, rows: list[dict]) -> str:
    """The same in a sentence, of kinds with a LARGE error."""

    def said(found: list[Median]) -> str:
        return "; ".join(f"{name} {median:.0%}" for median, name, _ in found)

    given = points, record, public, rows
    every, parts = whole(*given), kinds(*given)
    large = [each for each in parts if each[0] > LARGE]
    rest = max((each[0] for each in parts if each[0] <= LARGE), default=0.0)
    return (
        f"Its median on published times, worst first: {said(every)}. By kind: {said(large)};"
        f" each other kind of {FEWEST} times or more at most {rest:.0%}."
    )


def differences(points: list[dict]) -> str:
    """What a modelled difference of two versions is worth."""
    found = []
    for band in confidence.count(points):
        apart = f"{band.low:.0%} to {band.high:.0%}" if band.high < 1e9 else f"{band.low:.0%} up"
        found.append((apart, band.pairs, band.right, f"{band.right / band.pairs:.0%}", band.word))
    header = ("modelled apart", "pairs", "in that order on a B200", "share", "`compare` calls it")
    return markdown.table(header, found)


DOUBTFUL = 0.02  # a modelled gain below this says little
MOST = 4  # of them that are listed
NOT_A_MECHANISM = ("shape", "us")  # keys of a row of an ablation


def first_tries(record: dict[str, Any]) -> str:
    """Mechanisms whose modelled gain is below what the clock can tell, least first."""
    gains = [
        (gain, shape["shape"], name)
        for shape in record["rows"]
        for name, gain in shape.items()
        if name not in NOT_A_MECHANISM and gain is not None and gain < DOUBTFUL
    ]
    found = [
        (f"{shape} without {name}", f"{gain:+.1%}") for gain, shape, name in sorted(gains)[:MOST]
    ]
    return markdown.table(("try on a B200", "modelled change"), found)


def mechanism(name: str, record: dict[str, Any]) -> tuple[str, str, str]:
    """What a mechanism of the kernel is worth, over the shapes that use it."""
    gains = {r["shape"]: r[name] for r in record["rows"] if r[name] is not None}
    least, most = min(gains, key=gains.__getitem__), max(gains, key=gains.__getitem__)
    text = " .. ".join(f"{gains[shape]:+.1%} ({shape})" for shape in dict.fromkeys((least, most)))
    return f"modelled without {name}, shapes: {len(gains)}", text, "[tuning.md](lab/tuning.md)"


def apart_us(record: dict[str, Any]) -> float:
    """The time of a call that waits for the end of the one before it."""
    return record.get("apart_us", record["time_us"])


def overlapping(records: list[dict]) -> tuple[str, str, str]:
    """Of the problems that are timed by calls back to back, what is gained where these overlap."""
    found = []
    for problem in PROBLEMS.values():
        own = [r for r in records if r["problem"] == problem.name and r.get("calls", 1) > 1]
        if own:
            together = statistics.geometric_mean(r["time_us"] for r in own)
            apart = statistics.geometric_mean(apart_us(r) for r in own)
            found.append(f"{problem.short} {together:.2f} ({apart:.2f})")
    name = "calls back to back that overlap (apart), modelled us; no ruling of the boards is known"
    return name, ", ".join(found), "[timing.md](lab/timing.md#launches-that-overlap)"


def kernel(
    evidence: dict, losses: list[dict], mutations: dict, ablation: dict, benchmark: list[dict]
) -> str:
    """What is known of the kernel besides its times."""
    read = evidence_rows.read(evidence)
    caught = sum(kind["caught"] for kind in mutations["kinds"])
    lost = [record["loss"] for record in losses]
    names = [name for name in ablation["rows"][0] if name not in NOT_A_MECHANISM]
    found = [
        (
            "forms of instructions, descriptors and launches that ran on a B200",
            f"{len(read.rows) - len(read.open)} of {len(read.rows)}",
            "[evidence.md](lab/evidence.md)",
        ),
        (
            "mutations of the compiled kernel that the emulator catches",
            f"{caught} of {mutations['count']}",
            "[mutations.md](lab/mutations.md)",
        ),
        (
            f"the choice loses to the best tried, {len(lost)} shapes, modelled",
            f"mean {statistics.mean(lost):.1%}, worst {max(lost):.1%}",
            "[tuning.md](lab/tuning.md)",
        ),
        *(mechanism(name, ablation) for name in names),
        overlapping(benchmark),
    ]
    return markdown.table(("of the kernel", "value", "witness"), found)
