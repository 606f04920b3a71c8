"""Operations of a unit that complete in order, and the groups they are waited for in."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from b200.program.module import Instr

NEVER = 1 << 30  # step of an operation whose completion nothing signals yet


class Told(NamedTuple):
    """A wait of a warp that has told it that operations of a stream are complete: those after step
    `known`, to step `done`. turn, epoch: of the warp then.
    """

    known: int
    done: int
    turn: int
    epoch: int


@dataclass(slots=True, eq=False)
class Stream:
    """Operations of a warp that are issued in order and complete later. `issued` counts them.

    marks: the value of `issued` at each commit_group, oldest first. waits: the latest wait_groups,
    oldest first: (groups that it may leave under way, commit_groups before it, instruction, epoch
    of the warp then). told: the latest waits that have told something new, oldest first. lanes:
    those that have issued operations. multiplied: the step of the latest MMA, 0 for none.
    """

    component: int
    issued: int = 0
    lanes: int = 0
    multiplied: int = 0
    marks: list[int] = field(default_factory=list)
    waits: deque[tuple[int, int, Instr, int]] = field(default_factory=lambda: deque(maxlen=16))
    told: deque[Told] = field(default_factory=lambda: deque(maxlen=16))

    def next(self) -> int:
        self.issued += 1
        return self.issued

    def commit(self) -> None:
        self.marks.append(self.issued)

    def group(self, step: int) -> int | None:
        """The number of the group that an operation is in, from 0; None if not committed."""
        return next((i for i, mark in enumerate(self.marks) if mark >= step), None)

    def complete_but(self, groups: int) -> int:
        """How many operations are complete when at most the latest `groups` are under way."""
        done = len(self.marks) - groups
        return self.marks[done - 1] if done > 0 else 0

    def told_of(self, step: int) -> Told | None:
        """The wait that has told of an operation; None for no wait of this stream, or long ago."""
        return next((told for told in self.told if told.known < step <= told.done), None)
