"""Findings: the checker's messages about a launch, each reported once, at its gravest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

LIMIT = 100  # findings kept of one launch
SHOWN = 6  # findings printed, unless all are asked for
ERROR, PORTABILITY, NOTE = SEVERITIES = ("error", "portability", "note")
KINDS = {
    "race": "two accesses of the same memory that nothing orders",
    "proxy": "generic and asynchronous accesses without a proxy fence between them",
    "uninitialised": "shared or tensor memory is read that nothing has written",
    "unwritten": "global memory is read that nobody has written",
    "protocol": "a rule of a barrier, an allocation or a register pool is broken",
    "lifetime": "a use after the end: of tensor memory, or of a CTA that exits",
    "global": "global memory that CTAs of one launch, or overlapping launches, share",
    "order": "a result that depends on who comes first",
    "tensormap": "a tensormap in global memory that is edited or used without a fence",
    "coverage": "a part that is never loaded, read or stored",
    "product": "the tensor core multiplies what was hardly meant",
    "accumulator": "a sum begins with the values of the sum before",
    "descriptor": "a matrix descriptor has bits of something else",
    "numerics": "values are rounded in the wrong order, or sums take the wrong ones",
    "arguments": "a compiled function is called with what it was not compiled for",
    "graph": "a launch is left out of a CUDA graph",
    "deadlock": "no warp can go on",
}
PAGE = "docs/reference/checks.md"  # has a section for each kind, and one for faults


@dataclass(frozen=True)
class Finding:
    """A thing that is wrong in a launch, or may go wrong on hardware, although this run went on.

    kind: one of KINDS. diagnosis: one line in the user's words. details: further lines: who, where,
    what is missing. severity: ERROR: hardware can give wrong numbers or hang. PORTABILITY: today's
    chips do it, but the PTX ISA does not promise it. NOTE: legal, but more often a mistake than
    intended. PAGE says which finding has which severity, and why. loc: "file:line" of the access
    that showed it. other: "file:line" of the access that it conflicts with, "" if there is none.

    Raises ValueError for a kind that is not in KINDS.
    """

    kind: str
    diagnosis: str
    details: tuple[Any, ...]  # str; a function that returns one until Findings.tell
    loc: str
    other: str = ""
    severity: str = ERROR

    def __post_init__(self):
        if self.kind not in KINDS:
            raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {self.kind!r}")

    @property
    def message(self) -> str:
        """The diagnosis, then the line that says what is missing, then the other details."""
        kind = self.kind if self.severity == ERROR else f"{self.kind} ({self.severity})"
        details = sorted(self.details, key=lambda line: not line.startswith("missing:"))
        return "\n  ".join((f"{self.loc}: {kind}: {self.diagnosis}", *details))

    def __str__(self) -> str:
        return self.message


def explained(kinds: Iterable[str]) -> str:
    """A line that says where findings and errors of these kinds are explained: "explained in PAGE:
    #race #proxy"; "" if PAGE has a section for none of them.
    """
    anchors = (f"#{kind}" for kind in dict.fromkeys(kinds) if kind in (*KINDS, "fault"))
    text = " ".join(anchors)
    return f"explained in {PAGE}: {text}" if text else ""


class Findings(list[Finding]):
    """A launch's findings: the gravest a pair of lines and kind. dropped: those beyond LIMIT."""

    def __init__(self):
        super().__init__()
        self.keys: dict[tuple[Any, ...], int] = {}  # key -> number of its finding; LIMIT if dropped
        self.dropped = 0

    def tell(self) -> None:
        """Turn details into text. Details that need the whole run are functions until then."""
        for i, finding in enumerate(self):
            if any(callable(detail) for detail in finding.details):
                details: Iterator[Any] = (d() if callable(d) else d for d in finding.details)
                self[i] = replace(finding, details=tuple(details))

    def graver(self, key: tuple[Any, ...], severity: str) -> int | None:
        """The number of the finding that this key has so far, if it is less grave; else None."""
        number = self.keys.get(key)
        if number is None or number >= len(self):
            return None
        rank = SEVERITIES.index
        return number if rank(severity) < rank(self[number].severity) else None

    def arrange(self) -> None:
        """Sort: errors first, then by severity, then in the order in which they were found."""
        self.sort(key=lambda finding: SEVERITIES.index(finding.severity))
        self.keys = dict.fromkeys(self.keys, LIMIT)

    def new(self, *key: Any) -> bool:
        """Whether to report a finding with this key: the first one, and not beyond LIMIT."""
        if key in self.keys:
            return False
        self.keys[key] = min(len(self), LIMIT)
        if len(self) >= LIMIT:
            self.dropped += 1
            return False
        return True
