"""Writes docs/gallery.md: every crime and what is said of it.

python -m tests.crimes.gallery [FILE]
"""

from __future__ import annotations

import sys
from pathlib import Path

import b200
from harness.diff import explain
from reference import generate_input, ref_kernel
from tests.crimes import clusters, cta, dsl, gemm, grid, numbers, tmem, waits

CRIMES = [
    *gemm.CRIMES,
    *cta.CRIMES,
    *clusters.CRIMES,
    *grid.CRIMES,
    *numbers.CRIMES,
    *tmem.CRIMES,
    *waits.CRIMES,
    *dsl.CRIMES,
]
ROOT = Path(__file__).resolve().parent.parent.parent
LINES = 22  # of an error's report that are shown


def entry(crime) -> str:
    """One crime as Markdown: its title, the guilty lines, the report."""
    source, outcome = crime.run(True)
    quoted = []
    for mark in crime.marks:
        number = source.marks[mark][0]
        quoted.append(f"    {number:4}  {source.lines[number - 1]}")
    shown = said(crime, outcome)
    guilty = "\n".join(["The lines:\n", *quoted, ""]) if quoted else ""
    return "\n".join(
        [f"## {crime.name}\n", f"{crime.title}.\n", guilty, "```text", *shown, "```\n"]
    ).replace(f"{ROOT}/", "")


def said(crime, outcome) -> list[str]:
    """The report's lines: the finding that names the bug, or the error."""
    named = [f for f in outcome.findings if any(words in f.message for words in crime.words)]
    if crime.kind == outcome.error_kind or not named:
        report = outcome.text.splitlines()
        more = len(report) - LINES
        return report[:LINES] + ([f"... {more} more lines"] if more > 0 else [])
    others = len(outcome.findings) - 1
    rest = [f"... and {others} more finding(s)"] if others else []
    return [*named[0].message.splitlines(), *rest]


def mismatch() -> str:
    """What `eval.py diff` says of a result whose rows come from another warp's lanes."""
    data = generate_input("nvfp4_gemm", m=128, n=256, k=512, l=1, seed=5)
    right = ref_kernel(data)
    wrong = right.clone()
    wrong.copy_(right.reshape(128, 2, 4, 32, 1).roll(-1, dims=2).reshape(right.shape))
    report = explain(data, wrong)[1].splitlines()
    return "\n".join(
        [
            "## A result that differs\n",
            "Every warp of the epilogue reads the lanes of the next one; `python eval.py diff`.\n",
            "```text",
            *report[:LINES],
            "```\n",
        ]
    )


def budget() -> str:
    """What a launch of the DSL crimes' GEMM takes."""
    dsl.CRIMES[0].run(False)
    lines = b200.install(check=True).launches[-1].budget.lines()
    return "\n".join(["## What a launch takes\n", "```text", *lines, "```\n"])


def page() -> str:
    head = (
        "# What the tools say\n\nEvery kernel of `tests/crimes/` with its planted bug, and the "
        "report of the emulator. "
        "Written by `python -m tests.crimes.gallery`; tests hold each report to name the bug and "
        "its lines, and each "
        "corrected twin to be clean.\n"
    )
    return "\n".join([head, *map(entry, CRIMES), mismatch(), budget()])


if __name__ == "__main__":
    target = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/gallery.md")
    target.parent.mkdir(exist_ok=True)
    target.write_text(page())
    print(f"{target}: {len(CRIMES)} crimes")
