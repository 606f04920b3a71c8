"""What the instruction table (b200/isa/forms) says, as tables of docs/reference/semantics.md and of
docs/lab/conformance.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial

import b200.chip.instruction_set  # noqa: F401  registers every unit
from b200.chip.alu.build import families
from b200.isa import grammar
from b200.isa.grammar import Form
from b200.registry import find
from lab.tables import markdown

# Words behind a mnemonic that tell instructions apart; of others the mnemonic says enough.
_WORDS = re.compile(r"[a-z_]+")
_NAMED = ("cp", "mbarrier", "red", "st", "tcgen05", "tensormap")
_NO_NAME = ("tile", "aligned", "global", "weak", "volatile", "relaxed", "release", "mmio")
TRANSLATOR = "program/translate.py"
SHOWN = 12


def head(form: Form) -> str:
    """The beginning of a form's opcode: the name of the instruction."""
    words = [form.mnemonic]
    for word in form.text[1:].split(".") if form.mnemonic in _NAMED else ():
        if not _WORDS.fullmatch(word) or word in _NO_NAME:
            break
        words.append(word)
    return ".".join(words[:4])


def opcode(form: Form) -> str:
    """An opcode that has a form."""
    slots = form.variants[0]
    chosen = (sorted(slot.choices)[0] for slot in slots if not slot.optional)
    return ".".join((form.mnemonic, *chosen))


def unit(form: Form) -> str:
    """The file that executes a form."""
    if form.mnemonic == "wmma":
        return "program/wmma.py"
    entry = None if form.open else find(opcode(form))
    if entry is None:
        return "chip/memory/system_calls.py" if form.mnemonic == "call" else TRANSLATOR
    factory: Callable = entry.factory
    if isinstance(factory, partial):  # integers and floats share the mnemonic
        factory = families(form.mnemonic)[form.chapter]
    return factory.__module__.removeprefix("b200.").replace(".", "/") + ".py"


def _forms() -> Iterator[Form]:
    for forms in grammar.table().values():
        yield from forms


def _told(head_of: str, by: Callable[[Form], str], forms: list[Form]) -> str:
    """The instructions, in a row with the same words."""
    found: dict[str, dict[str, None]] = {}
    for form in forms:
        found.setdefault(by(form), {})[head(form)] = None
    rows = [(key, " ".join(f"`{name}`" for name in sorted(found[key]))) for key in sorted(found)]
    return markdown.table((head_of, "instructions"), rows)


def modelled() -> str:
    """The instructions that each file executes."""
    return _told("file", unit, [form for form in _forms() if not form.reason])


def missing() -> str:
    """The forms of PTX that are not modelled, by the reason that a launch is stopped with."""
    return _told("not modelled", lambda f: f.reason, [form for form in _forms() if form.reason])


def conformance(record: dict) -> str:
    """Counts of docs/results/conformance.json by chapter."""
    releases = list(record["chapters"][0]["by_release"])
    header = (
        *("chapter", "rows, modelled", "legal"),
        *(f"by {release}" for release in releases),
        *("translated", "refused: not modelled", "refused: no form"),
        *("illegal", "illegal, translated", "bogus", "bogus, translated"),
    )
    chapters = [_counts(chapter, releases) for chapter in record["chapters"]]
    total = ("all", *map(sum, zip(*(row[1:] for row in chapters), strict=True)))
    lines = [(row[0], f"{row[1]}, {row[2]}", *row[3:]) for row in (*chapters, total)]
    beside = record["beside"]
    shown = ", ".join(f"`{name}`" for name in beside[:: max(1, len(beside) // SHOWN)][:SHOWN])
    head = f"Up to about {record['most']} statements of a form, seed {record['seed']}."
    tail = f"Of the {len(beside)} that ptxas takes beside the table's forms, some: {shown}."
    return "\n\n".join((head, markdown.table(header, lines), tail))


def _counts(chapter: dict, releases: list[str]) -> tuple:
    by_release = (chapter["by_release"][release] for release in releases)
    refused = (chapter["translated"], chapter["not_modelled"], chapter["beside"])
    wrong = (chapter["illegal"], chapter["illegal_translated"])
    invented = (chapter["bogus"], chapter["bogus_translated"])
    start = (chapter["name"], chapter["rows"], chapter["modelled"], chapter["legal"])
    return (*start, *by_release, *refused, *wrong, *invented)
