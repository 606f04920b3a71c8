"""What the checker's findings mean for a case: which of them fail it, which are shown, and what was
not looked at.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from b200.checker.finding import SHOWN, explained
from b200.program.names import readable


def verdict(
    launches: Iterable, strict: bool = False, everything: bool = False, wrong: bool = False
) -> tuple[bool, str]:
    """(whether what was found in some launches fails the case, what to say of it).

    Errors fail a case; findings of less severity, and a check that is incomplete, only if `strict`.
    Without an error, a right result is told how many there are; a `wrong` one is shown them, since
    they may be its cause.
    """
    launches = list(launches)
    failed, text = _found(launches, strict, everything, wrong)
    missing = incomplete(launches, strict)
    if missing:
        shown = missing if everything else missing[:SHOWN]
        more = len(missing) - len(shown)
        lines = ["the check is incomplete:", *shown]
        lines += [f"... {more} more: --all-findings"] if more else []
        text = "\n".join(filter(None, [text, "\n  ".join(lines)]))
    text = "\n".join(filter(None, [text, all_orders(launches)]))
    return failed or bool(strict and missing), text


def incomplete(launches: Iterable, strict: bool = True) -> list[str]:
    """What of some launches was not looked at or not understood, a line each. Launches without a
    checker are listed only if `strict`: whoever left the checker out knows.
    """
    found: dict[str, None] = {}
    for launch in launches:
        if launch.findings is None:
            found |= {f"{readable(launch.kernel)} ran without the checker": None} if strict else {}
            continue
        found |= dict.fromkeys(launch.incomplete)
    return list(found)


def all_orders(launches: Iterable) -> str:
    """The verdicts of --schedule all, a line each, how often each came; "" without it."""
    verdicts = [launch.orders for launch in launches if launch.findings is not None]
    count = Counter(map(str, filter(None, verdicts)))
    return "\n".join(f"{text}{f', {n} times' if n > 1 else ''}" for text, n in count.items())


def _found(launches: list[Any], strict: bool, everything: bool, wrong: bool) -> tuple[bool, str]:
    """`verdict` of the findings alone."""
    # the same cause once, not once a launch
    every: dict[tuple[Any, ...], Any] = {}
    for finding in (f for launch in launches for f in launch.findings or ()):
        place = (finding.loc, finding.other) if finding.loc else finding.diagnosis
        every.setdefault((finding.kind, finding.severity, place), finding)
    found = list(every.values())
    errors = [f for f in found if f.severity == "error"]
    others = [f for f in found if f.severity != "error"]
    failed = bool(errors or strict and others)
    if not found:
        return False, ""
    if not (failed or wrong or everything):
        many = "remark" if len(others) == 1 else "remarks"
        return False, f"no error; {len(others)} {many} of the checker with --all-findings"
    some = f"{len(errors)} error(s)" if errors else f"{len(others)} remark(s), no error"
    if errors and others:
        some += f" and {len(others)} remark(s)"
    ordered = [*errors, *others]
    shown = ordered if everything else ordered[:SHOWN]
    more = len(ordered) - len(shown)
    lines = [f"the checker found {some}:", *map(str, shown)]
    lines += [f"... {more} more: --all-findings"] if more else []
    return failed, "\n".join([*lines, explained(finding.kind for finding in shown)])
