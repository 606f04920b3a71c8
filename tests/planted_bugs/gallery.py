"""What the emulator says of a planted bug: `python -m tests.planted_bugs.gallery [NAME ...]`.

Prints the planted bugs that are named, or all of them with --all; --list names them. `--write` renders
docs/gallery.md, which shows ten.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import b200
from harness.diagnosis.diff import explain
from reference import generate_input, ref_kernel
from tests.planted_bugs import dsl, gluon, listed, pipelines

PLANTED = [*listed.PLANTED, *dsl.PLANTED, *gluon.PLANTED, *pipelines.PLANTED]
ROOT = Path(__file__).resolve().parent.parent.parent
SHOWN = (  # in docs/gallery.md: one of each kind of report
    "mma_before_load",
    "gluon_phase_off",
    "expect_too_few_bytes",
    "missing_commit",
    "wrong_lane_quarter",
    "no_proxy_fence_mma",
    "peer_may_have_exited",
    "tensormap_edited_in_flight",
    "two_ctas_one_tile",
    "dsl_no_empty_wait",
)
LINES = 22  # of an error's report that are shown


def entry(planted) -> str:
    """A planted bug as Markdown: its title, the guilty lines, the report."""
    source, outcome = planted.run(True)
    quoted = []
    for mark in planted.marks:
        number = source.marks[mark][0]
        quoted.append(f"    {number:4}  {source.lines[number - 1]}")
    shown = said(planted, outcome)
    guilty = "\n".join(["The lines:\n", *quoted, ""]) if quoted else ""
    return "\n".join(
        [f"## {planted.name}\n", f"{planted.title}.\n", guilty, "```text", *shown, "```\n"]
    ).replace(f"{ROOT}/", "")


def said(planted, outcome) -> list[str]:
    """The report's lines: the finding that names the bug, or the error."""
    named = [f for f in outcome.findings if any(words in f.message for words in planted.words)]
    if planted.kind == outcome.error_kind or not named:
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
    """What a launch of the GEMM of the planted bugs in DSL takes."""
    dsl.PLANTED[0].run(False)
    lines = b200.install(check=True).launches[-1].budget.lines()
    return "\n".join(["## What a launch takes\n", "```text", *lines, "```\n"])


def page() -> str:
    """docs/gallery.md."""
    head = f"""# What the tools say

Ten of the {len(PLANTED)} kernels of `tests/planted_bugs/`, each with its planted bug and the report of the emulator. Tests hold
every report to name the bug and its lines, and the same kernel without the bug to be clean. What each kind of finding
means, and how to mend it, is in [reference/checks.md](reference/checks.md).

```
python -m tests.planted_bugs.gallery --list       # the names of all
python -m tests.planted_bugs.gallery --all        # all of them, as below
python -m tests.planted_bugs.gallery --write      # this page anew
```
"""
    shown = [planted for name in SHOWN for planted in PLANTED if planted.name == name]
    return "\n".join([head, *map(entry, shown), mismatch(), budget()])


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.planted_bugs.gallery",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    known = [planted.name for planted in PLANTED]
    parser.add_argument("names", nargs="*", metavar="NAME", help="a planted bug")
    parser.add_argument("--all", action="store_true", help="every planted bug")
    parser.add_argument("--list", action="store_true", help="the names and what each is")
    parser.add_argument("--write", action="store_true", help="render docs/gallery.md")
    options = parser.parse_args()
    if unknown := set(options.names) - set(known):
        parser.error(f"no planted bug is called {', '.join(sorted(unknown))}; --list names them")
    if options.write:
        (ROOT / "docs" / "gallery.md").write_text(page())
    elif options.list or not (options.names or options.all):
        print(*(f"{planted.name:32} {planted.title}" for planted in PLANTED), sep="\n")
    else:
        for planted in PLANTED:
            if options.all or planted.name in options.names:
                print(entry(planted))
    return 0


if __name__ == "__main__":
    sys.exit(main())
