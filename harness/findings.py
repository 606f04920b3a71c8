"""What the checker's findings mean for a case: which of them fail it, and which are shown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

SHOWN = 6  # findings of a case, unless all are asked for


def verdict(
    launches: Iterable, strict: bool = False, everything: bool = False, wrong: bool = False
) -> tuple[bool, str]:
    """(whether the findings of some launches fail the case, what to say of them).

    Errors fail a case, the others only if `strict`. Without an error, a right result is told how
    many there are; a `wrong` one is shown them, since they may be its cause.
    """
    found = [f for launch in launches for f in launch.findings or ()]
    errors = [f for f in found if f.severity == "error"]
    others = [f for f in found if f.severity != "error"]
    failed = bool(errors or strict and others)
    if not found:
        return False, ""
    if not (failed or wrong or everything):
        count = Counter(f.severity for f in others)
        some = ", ".join(f"{n} of severity {severity}" for severity, n in count.items())
        return False, f"the checker has remarks, which fail nothing ({some}); --all-findings"
    some = f"{len(errors)} error(s)" if errors else f"{len(others)} remark(s), no error"
    if errors and others:
        some += f" and {len(others)} remark(s)"
    ordered = [*errors, *others]
    shown = ordered if everything else ordered[:SHOWN]
    more = len(ordered) - len(shown)
    lines = [f"the checker found {some}:", *map(str, shown)]
    return failed, "\n".join(lines + ([f"... {more} more: --all-findings"] if more else []))
