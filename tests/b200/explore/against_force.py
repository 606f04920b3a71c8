"""The verdict of `--schedule all` on small programs beside the truth of every order.

    python -m tests.b200.explore.against_force [PROGRAMS] [FIRST SEED]

draws programs of which some order ends well, prints how often each verdict meets each truth, and ends
with status 1 if a verdict is false.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from itertools import count
from typing import NamedTuple

import torch

import b200
from b200.chip.gpu import Gpu
from b200.errors import EmulatorError
from b200.explore import DEADLOCK, FREE, INCOMPLETE
from tests.b200.explore import every_order
from tests.b200.explore.small_programs import Program, draw, ptx

PROGRAMS = 5_000
AT_MOST = 0.25  # of the verdicts are incomplete


class Judged(NamedTuple):
    """A program, what is so, and what is said: a verdict and its reasons or findings."""

    seed: int
    program: Program
    truth: str
    verdict: str
    said: list[str]

    @property
    def false(self) -> bool:
        """Whether the verdict says what is not so."""
        bad = self.truth in (every_order.HANGS, every_order.FAULTS)
        return bad if self.verdict == FREE else self.verdict == DEADLOCK and not bad


def verdict(program: Program) -> tuple[str, list[str]]:
    """The verdict and what is said with it."""
    gpu = Gpu()
    gpu.machine = b200.machine(gpu.memory, schedule="all")
    words = torch.zeros(2, dtype=torch.int32)
    shape = (2, 1, 1) if program.cluster else (1, 1, 1)
    grid, block = (program.ctas, 1, 1), (program.threads, 1, 1)
    try:
        launch = gpu.launch(ptx(program), "k", grid, block, shape, args=[words])
    except EmulatorError as error:
        assert error.kind in ("deadlock", "fault"), error
        return DEADLOCK, [f"in the usual order: {error}"]
    return launch.orders.kind, [*launch.orders.reasons, *map(str, launch.findings or ())]


def judge(first: int) -> Iterator[Judged]:
    """Programs from a seed on: those of which some order ends well, and whose orders are within
    reach.
    """
    for seed in count(first):
        program = draw(seed)
        if not every_order.ends_well(program):
            continue
        if (truth := every_order.truth(program)) != every_order.MANY:
            yield Judged(seed, program, truth, *verdict(program))


def main(programs: int = PROGRAMS, first: int = 0) -> int:
    seen: Counter[tuple[str, str]] = Counter()
    false = 0
    for number, judged in enumerate(judge(first), 1):
        seen[judged.verdict, judged.truth] += 1
        if judged.false:
            false += 1
            print(f"FALSE: seed {judged.seed}: {judged.verdict}, but it {judged.truth}")
            print(judged.program, *judged.said, sep="\n")
        if number == programs:
            break
    for (said, is_so), n in sorted(seen.items()):
        print(f"{said:14} of a program that {is_so:7} {n:6}")
    share = sum(n for (said, _), n in seen.items() if said == INCOMPLETE) / programs
    print(f"{programs} programs, {false} false verdicts, {share:.1%} incomplete")
    return int(false > 0 or share > AT_MOST)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
