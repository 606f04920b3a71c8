"""The tables of other projects' test suites (docs/suites.md), from docs/results/suites.json."""

from __future__ import annotations

from lab.suites.draw import WHOLE, of_each
from lab.suites.rows import OUTCOMES, SKIPPED, XFAILED
from lab.tables import markdown

_FEW = 3  # tests of a kind that get no row of their own, all together


def suites(record: dict) -> str:
    """How many tests of each suite ended how; the share that the bars ask for."""
    shown = [name for name in OUTCOMES if name != XFAILED]
    columns = {
        "suite": "{suite}",
        "tests": "{tests}",
        "run": lambda suite: f"{sum(suite['outcomes'].values())} ({_sample(suite)})",
        **{OUTCOMES[n]: lambda suite, n=n: suite["outcomes"].get(n, 0) for n in shown},
        "share": _share,
    }
    return markdown.filled(columns, record["suites"])


def _sample(suite: dict) -> str:
    if many := of_each(suite["sample"]):
        return "one a function" if many == 1 else f"up to {many} a function"
    return "all" if suite["sample"] == WHOLE else f"{suite['sample']} by chance"


def _share(suite: dict) -> str:
    passed, of = suite["passed"], suite["launched_in_time"]
    return f"{passed} of {of}, {passed / of:.1%}" if of else "none launches"


def kinds(record: dict) -> str:
    """What did not pass, by what it says, the most frequent first."""
    lines = []
    for suite in record["suites"]:
        for outcome, said, many, test in suite["kinds"]:
            if many >= _FEW and outcome != SKIPPED:
                lines.append((suite["suite"], OUTCOMES[outcome], many, _text(said), _name(test)))
        few = sum(kind[2] for kind in suite["kinds"] if kind[2] < _FEW)
        if few:
            lines.append((suite["suite"], "others", few, "one or two tests each", ""))
    return markdown.table(("suite", "ended", "tests", "it says", "one of them"), lines)


def _text(said: str) -> str:
    """A finding without the place, which differs from test to test; no path of a machine."""
    words = [word for word in said.split() if not word.startswith("/")]
    return " ".join(words)[:140].replace("|", "\\|")


def _name(test: str) -> str:
    return f"`{test.partition('::')[2].replace('|', chr(92) + '|')}`"
