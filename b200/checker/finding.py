"""What the checker found: findings, collected without repetition."""

from __future__ import annotations

from dataclasses import dataclass, replace

LIMIT = 100  # findings kept of one launch
ERROR, PORTABILITY, NOTE = SEVERITIES = ("error", "portability", "note")


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong, or may go wrong on hardware, though this run went on.

    kind: "race", "proxy" (a missing proxy fence), "uninitialised" (shared, tensor memory),
    "unwritten" (global memory), "protocol" (barriers), "lifetime" (exit, dealloc),
    "global" (writes of two CTAs), "order" (a result that depends on who comes first), "tensormap".
    diagnosis: one line in the user's words. details: further lines: who, where, what is missing.
    severity: ERROR: hardware can give wrong numbers or hang. PORTABILITY: outside what the PTX ISA
    promises, though today's chips do it. NOTE: legal, and more often a mistake than meant. What is
    which, and why: docs/semantics.md.
    loc: "file:line" of the access that showed it; other: of the access it conflicts with, "" if
    there is none.
    """

    kind: str
    diagnosis: str
    details: tuple[str, ...]
    loc: str
    other: str = ""
    severity: str = ERROR

    @property
    def message(self) -> str:
        """The diagnosis, what is missing, and then the particulars."""
        kind = self.kind if self.severity == ERROR else f"{self.kind} ({self.severity})"
        details = sorted(self.details, key=lambda line: not line.startswith("missing:"))
        return "\n  ".join((f"{self.loc}: {kind}: {self.diagnosis}", *details))

    def __str__(self) -> str:
        return self.message


class Findings(list):
    """Findings of a launch, each pair of lines once a kind, at most LIMIT; `dropped` counts what
    came after.
    """

    def __init__(self):
        super().__init__()
        self.keys: set[tuple] = set()
        self.dropped = 0

    def tell(self):
        """Details that needed the whole run to be told, functions so far, become text."""
        for i, finding in enumerate(self):
            if any(callable(detail) for detail in finding.details):
                details = (d() if callable(d) else d for d in finding.details)
                self[i] = replace(finding, details=tuple(details))

    def arrange(self):
        """Errors first, then by severity; otherwise in the order in which they were found."""
        self.sort(key=lambda finding: SEVERITIES.index(finding.severity))

    def new(self, *key) -> bool:
        """Whether a finding with this key is still to be reported."""
        if key in self.keys:
            return False
        self.keys.add(key)
        if len(self) >= LIMIT:
            self.dropped += 1
            return False
        return True
