"""What the points of a ladder say of the clock: errors by half and kind, and rank correlations."""

from __future__ import annotations

import operator
import statistics
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, TypeVar

FEWEST_TO_RANK = 3  # versions of a shape, for a rank correlation
PUBLISHED = (  # of what the project keeps points of, docs/results/ladder.jsonl
    "gau-nernst/gpu-mode-kernels, aee9cda, folder nvidia: times on a B200; eval.py ladder,"
    " docs/results/ladder.jsonl, the odd half of the versions"
)
OTHERS = "; the odd half of docs/results/others.json, each with its source"

Name = TypeVar("Name", bound=Hashable)


def error(record: dict[str, Any]) -> float:
    """Modelled over published, less one."""
    return record["time_us"] / record["published_us"] - 1


def ranks(values: Sequence[float]) -> list[float]:
    """Ranks from 1, ties share their mean."""
    return [
        sum(other < value for other in values) + (values.count(value) + 1) / 2 for value in values
    ]


def spearman(records: Sequence[dict[str, Any]]) -> float | None:
    """Rank correlation of modelled and published times; None where one of them is all the same."""
    if len(records) < FEWEST_TO_RANK:
        return None
    pairs = [[r[name] for r in records] for name in ("time_us", "published_us")]
    if any(len(set(values)) == 1 for values in pairs):
        return None
    return statistics.correlation(*map(ranks, pairs))


def most_spearman(records: Sequence[dict[str, Any]]) -> float | None:
    """The highest rank correlation of the published times with any that all differ: versions that
    publish the same time share a rank, which no clock gives them."""
    published = sorted(r["published_us"] for r in records)
    if len(published) < FEWEST_TO_RANK or published[0] == published[-1]:
        return None
    return statistics.correlation(ranks(published), range(len(published)))


def summary(name: str, records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """name, count, and the errors of some points: median and worst size, mean with its sign."""
    errors = [error(record) for record in records]
    sizes = [abs(e) for e in errors]
    return {
        "name": name,
        "count": len(records),
        "median": statistics.median(sizes),
        "worst": max(sizes),
        "mean": statistics.mean(errors),
    }


def groups(
    records: Iterable[dict[str, Any]], name: Callable[[dict[str, Any]], Name]
) -> dict[Name, list[dict[str, Any]]]:
    """Records by name, in the order in which names come first."""
    found: dict[Name, list[dict[str, Any]]] = {}
    for record in records:
        found.setdefault(name(record), []).append(record)
    return found


def halves(records: Sequence[dict[str, Any]]) -> list[tuple[str, list[dict[str, Any]]]]:
    """The odd half, which is reported, and the even one."""
    return sorted(groups(records, lambda r: r["parity"]).items(), reverse=True)


def summaries(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Errors of both halves, and of each problem and each kind of kernel in each half."""
    found = []
    for parity, half in halves(records):
        found.append(summary(f"{parity} half", half))
        for by in ("problem", "kind"):
            parts = groups(half, operator.itemgetter(by))
            found += [summary(f"{parity}: {by} {name}", parts[name]) for name in parts]
    return found


def shapes(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """A record a shape: how many versions, rank correlation over all of them, the most that it can
    be, and over the odd ones.
    """
    found = []
    for name, part in groups(records, lambda r: f"{r['problem']} {r['shape']}").items():
        odd = [r for r in part if r["parity"] == "odd"]
        found.append(
            {
                "shape": name,
                "versions": len(part),
                "spearman": spearman(part),
                "most": most_spearman(part),
                "odd": len(odd),
                "odd_spearman": spearman(odd),
            }
        )
    return found


def published_errors(
    records: Iterable[dict[str, Any]], others: Sequence[dict[str, Any]] = ()
) -> dict[str, Any]:
    """What b200/clock/spread.py makes ranges of: the errors of the odd half and of other kernels,
    by kind of kernel. others: points of the judging half of docs/results/others.json.
    """
    odd = [r for r in records if r["parity"] == "odd" and r.get("time_us") is not None]
    by_kind = groups([*odd, *others], operator.itemgetter("kind"))
    return {
        "what": "modelled over published time, less one, of B200 kernels nothing was fitted to",
        "source": PUBLISHED + (OTHERS if others else ""),
        "grade": "published",
        "clocks": sorted({r["made_by"]["clock"] for r in (*odd, *others)}),
        "errors": {k: sorted(round(error(r), 4) for r in by_kind[k]) for k in sorted(by_kind)},
    }


def text(records: Sequence[dict[str, Any]]) -> str:
    """What a person reads."""
    timed = [record for record in records if record.get("time_us") is not None]
    lines = ["point               half  published  modelled   error  kind"]
    for r in records:
        begin = f"{r['name']:18}  {r['parity']:4}  {r['published_us']:9.2f}"
        if r.get("time_us") is None:
            lines.append(f"{begin}  {r['status'].upper()}: {r['message'].splitlines()[0][:100]}")
        else:
            lines.append(f"{begin}  {r['time_us']:8.2f}  {error(r):+6.1%}  {r['kind']}")
    lines += ["", "modelled over published      points  median   worst    mean"]
    for s in summaries(timed):
        errors = f"{s['median']:6.1%}  {s['worst']:6.1%}  {s['mean']:+6.1%}"
        lines.append(f"  {s['name']:27} {s['count']:5}  {errors}")
    lines += ["", "rank correlation (Spearman)  versions     at most        odd ones"]
    for s in shapes(timed):
        most, *both = (
            "   -" if s[name] is None else format(s[name], "4.2f")
            for name in ("most", "spearman", "odd_spearman")
        )
        cells = f"{s['versions']:4} {both[0]}         {most}     {s['odd']:4} {both[1]}"
        lines.append(f"  {s['shape']:27} {cells}")
    return "\n".join(lines)
