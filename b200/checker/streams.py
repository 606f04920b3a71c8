"""Operations of a unit that complete in order, and the groups they are waited for in; what cp.async
have copied to each place of shared memory last.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from b200.chip.operations import CpAsync
from b200.hardware import OFFSET_MASK
from b200.program.module import Instr

NEVER = 1 << 30  # step of an operation whose completion nothing signals yet


class Told(NamedTuple):
    """A wait of a warp that has told it that operations of a stream are complete: those after step
    `known`, to step `done`. turn, epoch: of the warp then. lanes: those that have waited.
    """

    known: int
    done: int
    turn: int
    epoch: int
    lanes: int


@dataclass(slots=True, eq=False)
class WarpStream:
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
    marks: list[int] = field(default_factory=list[int])
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


WORD = 4  # bytes: no cp.async copies less, and its destination is a multiple of what it copies


@lru_cache(maxsize=1024)
def _places_at(destinations: bytes) -> tuple[np.ndarray, int, bool]:
    """(the words at these addresses, int64; the end of the highest; whether no two are one): a loop
    comes back to the same ones, and so do the CTAs of a grid.
    """
    places = (np.frombuffer(destinations, np.int64) & OFFSET_MASK) // WORD
    return places, int(places.max()) + 1, len(set(places.tolist())) == places.size


class LatestCopies:
    """For each word of shared memory at which a copy of a thread began: its source, and the number
    of what all threads of the instruction had in common.
    """

    def __init__(self) -> None:
        self._sources = np.zeros(0, np.int64)
        self._whats = np.zeros(0, np.int32)
        self._numbers: dict[tuple, int] = {}

    def again(self, what: tuple, copy: CpAsync, destinations: bytes) -> np.ndarray:
        """Which threads of a copy do what was done last at their places, by a thread before them or
        by an instruction before; and note it. what: the same of all threads but for their sources.
        destinations: the bytes of the copy's array of that name.
        """
        places, end, distinct = _places_at(destinations)
        if (missing := end - self._whats.size) > 0:
            missing += self._whats.size
            self._sources = np.concatenate((self._sources, np.zeros(missing, np.int64)))
            self._whats = np.concatenate((self._whats, np.zeros(missing, np.int32)))
        number = self._numbers.setdefault(what, len(self._numbers) + 1)
        if distinct:
            return self._again(places, copy.sources, number)
        each = zip(places[:, None], copy.sources[:, None], strict=True)
        return np.concatenate([self._again(*one, number) for one in each])

    def _again(self, places: np.ndarray, sources: np.ndarray, number: int) -> np.ndarray:
        """Of different places."""
        found = (self._whats[places] == number) & (self._sources[places] == sources)
        self._whats[places], self._sources[places] = number, sources
        return found
