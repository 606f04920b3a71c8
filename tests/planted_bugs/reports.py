"""What is said of each planted bug, word for word.

A change of what is said is to be seen: `python -m tests.planted_bugs.reports` writes the file anew,
and the difference shows what has changed for whom.
"""

from __future__ import annotations

import re

from tests import ROOT
from tests.planted_bugs.case import Outcome
from tests.planted_bugs.listed import PLANTED

FILE = ROOT / "tests" / "data" / "planted_bugs.txt"
# In host memory: another in each run, and with it the tensor that is nearest.
ADDRESS = re.compile(
    r"it is \d+ bytes behind the end of the nearest below, [^\n]*?\[0x[0-9a-f]+, 0x[0-9a-f]+\)"
    r"|0x[0-9a-f]{6,}|\d{8,} bytes"
)
HEAD = "==== "


def told(outcome: Outcome) -> str:
    return ADDRESS.sub("ADDRESS", outcome.text)


def recorded() -> dict[str, str]:
    """name of a planted bug -> what is said of it."""
    _, *sections = ("\n" + FILE.read_text()).split("\n" + HEAD)
    pairs = (section.partition("\n") for section in sections)
    return {name: text.rstrip("\n") for name, _, text in pairs}


def main() -> None:
    reports = ((planted.name, told(planted.run(True)[1])) for planted in PLANTED)
    FILE.write_text("".join(f"{HEAD}{name}\n{text}\n" for name, text in reports))


if __name__ == "__main__":
    main()
