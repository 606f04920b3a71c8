"""A report in lines for people, as `b200 run` prints them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from typing import Any

from b200.checker.finding import SHOWN, explained
from b200.program.names import from_here
from b200.reports import records
from b200.reports.records import JsonRecord


def line(launch: JsonRecord, everything: bool = False) -> str:
    """One launch: its shape, its modelled time or its findings, the first SHOWN or everything."""
    text = f"b200: {launch['kernel']}, grid {_dim(launch['grid'])}"
    text += f", cluster {_dim(launch['cluster'])}"
    if launch["time_us"] is not None:
        text += f", modelled {launch['time_us']:.2f} us"
    found = launch.get("findings", ())
    for finding in found if everything else found[:SHOWN]:
        text += f"\n{finding['text']}"
    if len(found) > SHOWN and not everything:
        text += f"\n... {len(found) - SHOWN} more: --all-findings"
    for reason in launch["incomplete"]:
        text += f"\nthe check is incomplete: {reason}"
    return text if launch["orders"] is None else f"{text}\n{launch['orders']}"


def _dim(size: Iterable[int]) -> str:
    return str(tuple(size))


def lines(
    launches: Iterable[JsonRecord],
    main: int,
    told: Iterable[str],
    everything: bool,
    why_not: Callable[[JsonRecord, JsonRecord], str],
    command: str = "b200 run",
) -> Iterator[str]:
    """What was launched and found, a text a launch; equal ones that follow each other are one, and
    a finding is told once. main: the process that is not named. told: texts of findings that were
    printed before. why_not: why a finding does not count, "" if it does. command: who says it.
    """
    told, kinds = set(told), list[str]()
    known: set[tuple[str, str]] = set()  # (symbol, first line) of findings that were told
    for launch, count in _grouped(launches):
        if launch.get("failed") in told:
            continue
        counts = [f for f in launch["findings"] if not why_not(f, launch)]
        new = [
            finding
            for finding in counts
            if finding["text"] not in told
            and (launch["symbol"], _first_line(finding)) not in known
            and not _is_in_another(finding, counts)
        ]
        if launch["record"] == records.MORE and not new:
            continue
        text = line(launch | {"findings": new}, everything)
        if not new and counts:
            text += f"\nits {len(counts)} finding(s) are those of a launch above"
        if launch["process"] != main:
            text = text.replace("b200: ", f"b200: in process {launch['process']}: ", 1)
        known |= {(launch["symbol"], _first_line(finding)) for finding in new}
        kinds += [finding["kind"] for finding in new]
        yield from_here(text if count == 1 else f"{count} times: {text}")
    if where := explained(kinds):
        yield f"{command}: {where}"


def _grouped(launches: Iterable[JsonRecord]) -> Iterator[tuple[JsonRecord, int]]:
    """Launches that follow each other and are alike: the first, and how many."""
    for _, group in groupby(launches, lambda x: (line(x, True), x["process"], x["record"])):
        alike = list(group)
        yield alike[0], len(alike)


def _is_in_another(finding: JsonRecord, findings: Iterable[JsonRecord]) -> bool:
    """Whether the report of a fault has the finding in it, as what came before."""
    first = _first_line(finding)
    return any(f["stopped"] and f is not finding and first in f["text"] for f in findings)


def _first_line(finding: JsonRecord) -> str:
    return finding["text"].partition("\n")[0]


def judged(document: dict[str, Any]) -> Iterator[str]:
    """What a baseline and filters have hidden, what is stale, and which kernels were not seen."""
    for name in document["unseen"]:
        yield f"--expect-kernel {name}: no launch of such a kernel was seen"
    for found in document["accepted"]:
        at = f"{found['place']['file']}:{found['place']['line']}"
        yield from_here(
            f"accepted: {found['kind']} at {at}, {found['times']} times: {found['reason']}"
        )
    if document["filtered"]:
        yield f"{document['filtered']} finding(s) are filtered out"
    for entry in document["stale"]:
        yield f"the baseline is stale: nothing is found of {entry}"
