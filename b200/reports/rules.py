"""The rules of the checker, by the page that explains them (docs/reference/checks.md, which the
package brings along): a section a kind, a row of its tables a rule.

A rule's name is its kind and the words that it says: "race/overwrites-shared-memory-before".
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from b200.checker.finding import KINDS

PAGE = Path(__file__).with_name("checks.md")
LONGEST = 60  # characters of a name behind its kind
FAULTS = {"fault": "an access or operand that the chip refuses"}
_ROW = re.compile(r"\| (`.+?`(?:[^|]*?)) \| ([^|]*) \| ([^|]*) \| ([^|]*) \|")


@dataclass(frozen=True)
class Rule:
    """says: the words of its findings, `...` for what differs. chip: what hardware does. mend: what
    to change. Of a kind as a whole: says is what KINDS has, mend is "".
    """

    name: str
    kind: str
    says: str
    chip: str = ""
    mend: str = ""

    def matches(self, diagnosis: str) -> int:
        """How many letters of its words a diagnosis has, 0 where one is missing."""
        return max(_common(words, diagnosis) for words in self.says.split("` or `"))


def _common(words: str, diagnosis: str) -> int:
    parts = [part.strip() for part in words.split("...") if part.strip()]
    at = 0
    for part in parts:
        found = diagnosis.find(part, at)
        if found < 0:
            return 0
        at = found + len(part)
    return sum(map(len, parts))


@functools.cache
def all_rules() -> dict[str, Rule]:
    """Every rule by its name: first one a kind, then those of the page."""
    kinds = KINDS | FAULTS
    found = {kind: Rule(kind, kind, says) for kind, says in kinds.items()}
    for rule in _of_page(PAGE.read_text()):
        if rule.kind in kinds:
            found.setdefault(rule.name, rule)
    return found


def _of_page(text: str) -> Iterator[Rule]:
    kind = ""
    for line in text.splitlines():
        if line.startswith("## "):
            kind = line[3:].strip()
        elif row := _ROW.match(line):
            says = "` or `".join(re.findall(r"`([^`]+)`", row[1]))
            yield Rule(f"{kind}/{_slug(says)}", kind, says, row[3].strip(), row[4].strip())


def _slug(words: str) -> str:
    """Whole words of it, at most LONGEST characters."""
    found = re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-")
    return found if len(found) <= LONGEST else found[:LONGEST].rpartition("-")[0]


@functools.lru_cache(maxsize=4096)
def of(kind: str, diagnosis: str) -> str:
    """The name of the rule that a finding follows from; its kind where the page has no such row."""
    rows = (rule for rule in all_rules().values() if rule.kind == kind and rule.mend)
    scored = [(rule.matches(diagnosis), rule.name) for rule in rows]
    best = max(scored, default=(0, kind), key=lambda pair: pair[0])
    return best[1] if best[0] else kind
