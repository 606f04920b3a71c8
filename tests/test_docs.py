"""Pages of README and docs lead where they say, and can be read at the first reading."""

from __future__ import annotations

import re

import pytest

from lab.tables import figures, prose
from tests import ROOT

PAGES = figures.pages()
LIVING = [page for page in PAGES if not figures.history(page)]
GLOSSARY = ROOT / "docs" / "glossary.md"
LINK = re.compile(r"\]\(([^)\s]+)\)")


def name(page) -> str:
    return str(page.relative_to(ROOT))


def anchors(markdown: str) -> set[str]:
    """What a link to a heading ends in, as GitHub makes it."""
    text = re.sub(r"^```.*?^```", "", markdown, flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", heading.strip().lower()) for heading in headings)
    return {heading.replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page):
    """To a file of the repository, and to a heading of it where one is named."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    for link in LINK.findall(re.sub(r"`[^`\n]*`", "", text)):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, heading = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists() and target.is_relative_to(ROOT), link
        if heading:
            assert heading in anchors(target.read_text()), link


def test_every_page_is_linked_to():
    """From another page: a page that nobody finds is not there."""
    found = set()
    for page in PAGES:
        for link in LINK.findall(page.read_text()):
            target = (page.parent / link.partition("#")[0]).resolve()
            if target != page:
                found.add(target)
    assert [name(page) for page in PAGES if page not in found and page.parent != ROOT] == []


@pytest.mark.parametrize("page", LIVING, ids=name)
def test_sentences_can_be_read_once(page):
    """At most 18 words in the mean, none of more than 40."""
    assert prose.problems(page.read_text()) == []


def test_both_doors_lead_to_every_page():
    """docs/README.md for whoever writes a kernel, docs/lab/README.md for the laboratory: a page of
    a side is a link away from its door.
    """
    for door in (ROOT / "docs" / "README.md", ROOT / "docs" / "lab" / "README.md"):
        links = {
            (door.parent / link.partition("#")[0]).resolve()
            for link in LINK.findall(door.read_text())
        }
        in_lab = door.parent.name == "lab"
        pages = {p for p in PAGES[1:] if ("lab" in p.relative_to(ROOT).parts) == in_lab}
        assert [name(page) for page in sorted(pages - links - {door})] == []
    front = LINK.findall((ROOT / "README.md").read_text())
    assert front.index("docs/README.md") < front.index("docs/lab/README.md")


def test_what_counts_as_prose():
    text = """# A heading of five words

Three words here. A `code span with spaces` is one: five,
- an item, e.g. This one

| a | table. With text. |
|---|---|

```
No. Code. At. All.
```
"""
    assert prose.sentences(text) == [
        "Three words here.",
        "A X is one: five,",
        "an item, e.g. This one",
    ]
    assert list(map(prose.words, prose.sentences(text))) == [3, 5, 5]
    assert prose.cells(text) == ["a", "table. With text."]


@pytest.mark.parametrize("words, count", [(40, 1), (41, 2), (19, 1), (18, 0)])
def test_long_sentences_are_found(words, count):
    """A page of one sentence: its mean is its length."""
    assert len(prose.problems(" ".join(["word"] * words) + ".")) == count


@pytest.mark.parametrize("words, count", [(40, 0), (41, 1)])
def test_long_cells_are_found(words, count):
    """A line break in a cell begins another part of it."""
    cell = " ".join(["word"] * words)
    table = f"| a | b |\n|---|---|\n| {cell} | {' '.join(['word'] * 30)}<br>{cell} |\n"
    assert len(prose.problems(table)) == count


def test_what_is_believed_fits_a_page():
    """At most 80 lines, and no figure that is not of a table."""
    text = (ROOT / "docs" / "beliefs.md").read_text()
    assert len(text.splitlines()) <= 80
    assert figures.unsourced(text) == [] and "by hand" not in text


def avoided() -> dict[str, str]:
    """Word that the glossary gives up -> the one that it has in its place."""
    rows = re.findall(r"^\| ([^|]+) \| [^|]+ \| ([\w, ]+) \|$", GLOSSARY.read_text(), re.MULTILINE)
    return {word: term for term, words in rows for word in words.split(", ") if words != "not"}


@pytest.mark.parametrize("page", [page for page in LIVING if page != GLOSSARY], ids=name)
def test_a_thing_has_the_glossarys_name(page):
    """In prose and in tables; names of commands, files and modules are code."""
    text = re.sub(r"^```.*?^```|<!--.*?-->|`[^`\n]*`", "", page.read_text(), flags=re.DOTALL | re.M)
    words = {word.lower().removesuffix("s") for word in re.findall(r"[A-Za-z0-9]+", text)}
    assert {word: term for word, term in avoided().items() if word in words} == {}


def test_the_glossary_gives_words_up():
    assert len(avoided()) >= 4 and avoided()["twin"] == "H200 model"


def test_the_front_page_is_short_and_begins_with_what_counts():
    """At most 110 lines and 900 words; picture and results within the first 40 lines."""
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 110 and len(text.split()) <= 900
    top = "\n".join(text.splitlines()[:40])
    assert "![" in top and "<!-- /table -->" in top and "never timed on a B200" in top
