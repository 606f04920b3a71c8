"""What the checker says of drawn litmus programs, counted. `python -m tests.litmus.count` prints
the table of docs/reference/memory-order.md, and the programs that it judges otherwise than PTX.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tests.litmus.axioms import Model
from tests.litmus.choices import CHOICES, choice_of
from tests.litmus.program import Program
from tests.litmus.ptx import ORDERS, said, worst
from tests.litmus.shapes import drawn

DRAWN = {"warps, by flags": 500, "warps, by barriers": 300, "lanes of one warp": 250}
NOTHING = "nothing"


@dataclass
class Count:
    """Of one class: (racy, what is said) -> programs; choice -> races that it leaves out. missed:
    other races of which nothing is said. false: programs without a race that are called wrong.
    """

    said: Counter[tuple[bool, str]] = field(default_factory=Counter)
    chosen: Counter[str] = field(default_factory=Counter)
    missed: list[Program] = field(default_factory=list)
    false: list[Program] = field(default_factory=list)

    @property
    def racy(self) -> int:
        return sum(n for (racy, _), n in self.said.items() if racy)

    @property
    def share_missed(self) -> float:
        return len(self.missed) / max(1, self.racy - sum(self.chosen.values()))

    def row(self, kind: str) -> str:
        cells = [
            *(self.said[True, answer] for answer in ("error", "portability")),
            sum(self.chosen.values()),
            len(self.missed),
            *(self.said[False, answer] for answer in (NOTHING, "portability", "error")),
        ]
        return f"| {kind} | {' | '.join(map(str, cells))} |"


def count(kind: str, numbers: Iterable[int], orders: Sequence[str | None] = ORDERS) -> Count:
    """Count programs of a class. One that cannot end, or that hangs in some order, is left out
    unless something is said of it in another one.
    """
    found = Count()
    for number in numbers:
        program = drawn(kind, number)
        try:
            racy, _ = Model(program).races()
        except ValueError:
            continue
        answer = worst(said(program, orders))
        if answer == "hangs":
            continue
        answer = answer or NOTHING
        found.said[racy, answer] += 1
        if racy and answer == NOTHING:
            choice = choice_of(program)
            if choice is None:
                found.missed.append(program)
            else:
                found.chosen[choice] += 1
        if not racy and answer == "error":
            found.false.append(program)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--from", dest="first", type=int, default=0, help="number of the first draw"
    )
    first = parser.parse_args().first
    counts = {kind: count(kind, range(first, first + n)) for kind, n in DRAWN.items()}
    for kind, found in counts.items():
        print(found.row(kind), flush=True)
    for name in (*CHOICES, "several"):
        print(f"| {name} | {sum(found.chosen[name] for found in counts.values())} |")
    for kind, found in counts.items():
        for what in ("missed", "false"):
            for program in getattr(found, what):
                print(f"{kind}: {what}: {program}")


if __name__ == "__main__":
    main()
