"""What a survey chooses: rows of the table of picks, and the words for a person."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import submission
from lab.survey import paste, table
from lab.survey.said import Judged, SaidError, latest
from lab.survey.table import name
from submission import Pick, Problem

FASTER = 0.98  # the pick stays, unless another takes less than this part of its time
CHIP = "B200"  # in a GPU's name: what the table is of


def chosen(judged: Sequence[Judged]) -> dict[Problem, Pick]:
    """Of each problem the fastest of those that ran and agree; the pick, if none is 2 % faster.

    None where every other configuration differs from the plainest: which of them is wrong is not
    known. Raises SaidError where times of one problem were taken in two ways.
    """
    found = {}
    for problem, of_config in latest(judged).items():
        best = _best(problem, list(of_config.values()))
        if best:
            found[problem] = Pick(best.config, f"{best.device}, {best.day}")
    return found


def _best(problem: Problem, judged: Sequence[Judged]) -> Judged | None:
    good = [one for one in judged if one.verdict == "ok" and one.us]
    if not good or _nobody_agrees(judged):
        return None
    if len({one.plain_us is None for one in good}) > 1:
        raise SaidError(f"{good[0].case}: times of a survey and of tune; give one of them")
    best = min(good, key=lambda one: one.score)
    picked = [one for one in good if one.config == submission.pick(problem)]
    stays = picked and best.score >= FASTER * picked[0].score
    return picked[0] if stays else best


def _nobody_agrees(judged: Sequence[Judged]) -> bool:
    """Whether the plainest, which all are held against, stands alone against others."""
    good = [one for one in judged if one.verdict == "ok"]
    differs = any(one.verdict == "differs" for one in judged)
    return differs and len(good) == 1 and good[0].plain_us is not None


# ---- in words ------------------------------------------------------------------------------------


def lines(judged: Sequence[Judged], rows: Mapping[Problem, Pick]) -> Iterator[str]:
    """A paragraph a problem: each configuration, the fastest first, and what is chosen."""
    for problem, of_config in latest(judged).items():
        ones = sorted(of_config.values(), key=lambda one: one.score if one.us else float("inf"))
        yield f"{ones[0].case}: {ones[0].device}, {ones[0].day}"
        pick = submission.pick(problem)
        for one in ones:
            mark = "  <- pick" if one.config == pick else ""
            if one.us is None:
                yield f"  {one.verdict:>8}     {name(one.config)}: {one.detail}{mark}"
            else:
                plain = "" if one.plain_us is None else f" (plainest {one.plain_us:.2f})"
                yield f"  {one.us:8.2f} us  {name(one.config)}{plain}{mark}"
        if problem in rows:
            config = rows[problem].config
            yield f"  chosen: {name(config)}{', as before' if config == pick else ''}"
        elif _nobody_agrees(list(of_config.values())):
            yield "  nothing is chosen: all others differ from the plainest; which is wrong?"
        else:
            yield "  nothing is chosen: none ran"


# ---- the file ------------------------------------------------------------------------------------


def no_b200(rows: Mapping[Problem, Pick]) -> str:
    """What a row stands on that no real B200 has measured; "" if there is none."""
    bases = [pick.basis for pick in rows.values()]
    return next((b for b in bases if CHIP not in b or paste.IN_SOFTWARE in b), "")


def difference(path: Path, rows: Mapping[Problem, Pick]) -> str:
    """What the rows change in a file, as a unified diff."""
    old = path.read_text(encoding="utf-8")
    new = table.with_rows(old, rows)
    before, behind = str(path), f"{path}, with --apply"
    found = difflib.unified_diff(old.splitlines(), new.splitlines(), before, behind, lineterm="")
    return "\n".join(found)


def apply(path: Path, rows: Mapping[Problem, Pick]) -> None:
    """Write the rows into the table of a file; nothing else of it changes."""
    text = path.read_bytes().decode("utf-8")  # as it is, line ends included
    path.write_bytes(table.with_rows(text, rows).encode("utf-8"))
