"""The prose of README and docs: `python -m lab prose [PAGE ...]` lists what is hard to read.

What counts as prose is the text of paragraphs and list items. Code, headings and comments do not:
numbers and names belong there. A code span is one word. A cell of a table may be as long as the
longest sentence, and counts in no mean.
"""

from __future__ import annotations

import re
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from markdown_it import MarkdownIt

from b200.command_line import Parser

MEAN, LONGEST = 18, 40  # words of a sentence of a page; the longest of a cell, too
END = re.compile(r"(?<=[.!?])[)\"”]?\s+(?=[\"“(A-Z0-9`.…])")
ABBREVIATED = re.compile(r"\b(?:e\.g|i\.e|vs|etc|cf)\.$")


def texts(markdown: str) -> Iterator[tuple[str, str]]:
    """(where it stands: "table", "heading" or "", text) of each paragraph, list item and cell, with
    `X` for a code span and a link's words.
    """
    inside = ""
    for token in MarkdownIt().enable("table").parse(markdown):
        what, _, end = token.type.partition("_")
        if what in ("table", "heading"):
            inside = what if end == "open" else ""
        elif token.type == "inline":
            kinds = {"code_inline": "X", "softbreak": " ", "hardbreak": " "}
            parts = (kinds.get(t.type, t.content) for t in token.children or ())
            if text := "".join(parts).strip():
                yield inside, text


def paragraphs(markdown: str) -> list[str]:
    """The text of each paragraph and list item."""
    return [text for where, text in texts(markdown) if not where]


def cells(markdown: str) -> list[str]:
    """The text of each cell of a table, of each part of one that `<br>` cuts."""
    return [
        part for where, text in texts(markdown) if where == "table" for part in text.split("<br>")
    ]


def sentences(markdown: str) -> list[str]:
    """Every sentence of the prose of a page."""
    found: list[str] = []
    for paragraph in paragraphs(markdown):
        pieces = END.split(paragraph)
        while pieces:
            sentence = pieces.pop(0)
            while pieces and ABBREVIATED.search(sentence):
                sentence += " " + pieces.pop(0)
            found.append(sentence)
    return found


def words(sentence: str) -> int:
    """How many words a sentence has; a number with its unit is two, punctuation is none."""
    return len(re.findall(r"[^\s—–/]*\w[^\s—–/]*", sentence))


def problems(markdown: str) -> list[str]:
    """What of a page is out of bounds, a line each."""
    lengths = {sentence: words(sentence) for sentence in sentences(markdown)}
    found = [f"{n} words: {sentence}" for sentence, n in lengths.items() if n > LONGEST]
    if lengths and (mean := statistics.mean(lengths.values())) > MEAN:
        found.append(f"the mean sentence has {mean:.1f} words, at most {MEAN} are wanted")
    in_cells = {cell: words(cell) for cell in cells(markdown)}
    return found + [f"{n} words in a cell: {cell}" for cell, n in in_cells.items() if n > LONGEST]


def main(argv: Sequence[str]) -> int:
    from lab.tables.figures import history, pages

    parser = Parser("python -m lab prose", __doc__)
    parser.add_argument("pages", nargs="*", type=Path, metavar="PAGE", help="all by default")
    given, bad = parser.parse_args(argv).pages, 0
    if absent := [page for page in given if not page.is_file()]:
        parser.error(f"{absent[0]} is not a file")
    for page in given or [p for p in pages() if not history(p)]:
        for line in problems(page.read_text()):
            print(f"{page}: {line}")
            bad += 1
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
