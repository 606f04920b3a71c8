"""The figures of README and docs: `python -m lab figures --write | --check | --commands`.

Also the one data file of the package that is made of docs/results: the clock's errors on published
times (b200/clock/spread.py).

A table stands between `<!-- table: NAME -->` and `<!-- /table -->` and is rendered from a file of
docs/results, which the command that measures or models wrote (lab/tables/catalogue.py has the
list). Any other figure stands in a section marked `<!-- by hand: REASON -->`, up to the next
heading. Tables that have the same quantity agree on it (lab/tables/agreement.py). A file that is of
other sources than today's fails if `python -m lab remake` can make it again here
(lab/results/stale.py).
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from b200.clock import spread
from b200.command_line import Parser
from harness.evaluator.ladder import errors as ladder
from lab.results import stale
from lab.tables import agreement, others
from lab.tables.catalogue import TABLES

ROOT = Path(__file__).resolve().parents[2]
LADDER = "docs/results/ladder.jsonl"
OTHERS = "docs/results/others.json"
BLOCK = re.compile(r"<!-- table: (?P<name>[\w-]+) -->\n(?P<body>.*?)<!-- /table -->", re.DOTALL)
BY_HAND = re.compile(r"<!-- by hand: .+ -->")
FIGURE = re.compile(r"\d ?(?:us|µs|ns|%|clk|cycles|[GT]B/s|[TP]FLOPS?)(?!\w)")


def pages(root: Path = ROOT) -> list[Path]:
    """README.md and the pages of docs, of its folders, too."""
    return [root / "README.md", *sorted((root / "docs").rglob("*.md"))]


def history(page: Path) -> bool:
    """Whether a page is of docs/lab/log: written once, with the names and figures of its day."""
    return page.parent.name == "log"


def load(path: Path) -> Any:
    """A file of docs/results: JSON, or a list of the objects of a file of JSON lines."""
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text().splitlines()]
    return json.loads(path.read_text())


def block(name: str, results: Path) -> str:
    """A table with its markers, rendered from `results`. KeyError for a name that is no table's."""
    table = TABLES[name]
    body = table.render(*(load(results / source) for source in table.sources))
    files = ", ".join(f"`{source}`" for source in table.sources)
    origin = table.origin or f"{files} in docs/results"
    source = f"From {origin}; `python -m lab figures --commands` says how."
    return f"<!-- table: {name} -->\n{body}\n\n{source}\n<!-- /table -->"


def errors_file(root: Path) -> tuple[Path, str]:
    """Where the clock's errors by kind of kernel stand, and what the ladder's points say."""
    points, public = load(root / LADDER), others.judging(load(root / OTHERS)["kernels"])
    text = json.dumps(ladder.published_errors(points, public), indent=1) + "\n"
    return root / spread.FILE.relative_to(ROOT), text


def missing(name: str, results: Path) -> list[str]:
    """Sources of a table that are not there."""
    return [source for source in TABLES[name].sources if not (results / source).is_file()]


def rendered(text: str, results: Path) -> str:
    """A page with all its tables rendered anew, but for those whose source is missing."""

    def anew(found: re.Match) -> str:
        unknown = found["name"] not in TABLES or missing(found["name"], results)
        return found[0] if unknown else block(found["name"], results)

    return BLOCK.sub(anew, text)


def unsourced(text: str) -> list[str]:
    """Lines with a figure that has no source: outside of tables, code and marked sections."""
    text = re.sub(r"^```.*?^```", "", BLOCK.sub("", text), flags=re.DOTALL | re.MULTILINE)
    found, by_hand = [], False
    for line in text.splitlines():
        if line.startswith("#"):
            by_hand = False
        by_hand |= bool(BY_HAND.match(line))
        if not by_hand and FIGURE.search(re.sub(r"`[^`]*`", "", line)):
            found.append(line)
    return found


def problems(root: Path = ROOT) -> list[str]:
    """What is wrong with the figures of the pages under `root`, a line each."""
    found = []
    for page in pages(root):
        name, text = page.relative_to(root), page.read_text()
        results = root / "docs" / "results"
        for match in BLOCK.finditer(text):
            table = match["name"]
            if table not in TABLES:
                found.append(f"{name}: no table is called {table!r}")
            elif absent := missing(table, results):
                found.append(f"{name}: table {table} has no {', '.join(absent)} (--commands)")
            elif match[0] != block(table, results):
                found.append(f"{name}: table {table} is not what its source says")
        begun = re.sub(r"`[^`\n]*`", "", text).count("<!-- table:")
        if begun != len(BLOCK.findall(text)):
            found.append(f"{name}: a table begins that does not end in `<!-- /table -->`")
        found += [f"{name}: where is this figure from? {line}" for line in unsourced(text)]
    living = {str(p.relative_to(root)): p.read_text() for p in pages(root) if not history(p)}
    found += agreement.contradictions(living)
    if all((root / name).is_file() for name in (LADDER, OTHERS)):  # else a table says so
        written, text = errors_file(root)
        if not written.is_file() or written.read_text() != text:
            found.append(f"{written.relative_to(root)} is not what {LADDER} and {OTHERS} say")
    return found + stale.problems(root)


def main(argv: Sequence[str]) -> int:
    parser = Parser(prog="python -m lab figures", description=__doc__)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--write", action="store_true", help="render all tables from docs/results")
    what.add_argument("--check", action="store_true", help="say which differ; exit status 1 if any")
    what.add_argument("--commands", action="store_true", help="the command after each table")
    options = parser.parse_args(argv)
    if options.commands:
        for command in dict.fromkeys(table.command for table in TABLES.values()):
            print(command)
        return 0
    if options.write:
        written, text = errors_file(ROOT)
        written.write_text(text)
        for page in pages():
            text = page.read_text()
            if (new := rendered(text, ROOT / "docs" / "results")) != text:
                page.write_text(new)
                print(f"wrote {page.relative_to(ROOT)}")
    found = problems()
    print(*found, sep="\n", end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
