"""The record of a cluster's synchronisation: steps, and what each must come after."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from b200.checker.agent import Agent
from b200.program.module import Instr

EVERY = -1  # number of no barrier: the exit of a warp concerns every barrier of its CTA


class Place(NamedTuple):
    """The thing that a step acts on. kind: "mbarrier" (number: its offset in shared memory),
    "barrier" (of the CTA; number: its own), "cluster", "tmem" or "registers". rank: rank of the
    CTA; for "tmem", of the even CTA of its pair.
    """

    kind: str
    rank: int = 0
    number: int = 0


@dataclass(slots=True, eq=False)
class Step:
    """One synchronising instruction of a warp, or one signal of an asynchronous operation.

    number: its place in the order of the run. before: numbers of the steps that it directly comes
    after, in every order. actor: (rank of the CTA, warp, name of the asynchronous operation or "").
    count: arrivals of each of `times` lanes, threads that meet, lanes that exit, columns, or
    registers. tx: bytes announced or completed. parity: the parity that is waited for. token:
    whether the parity comes from the state that an arrive returned. drop: whether it is an
    arrive_drop. of: numbers of other steps: the MEET steps that a PASS ends, the allocation that a
    DEALLOC frees, the LOOK that leaves out a WAIT. threads: how many threads a barrier of the CTA
    was told to wait for (0: all). rank: rank of the CTA whose tensor memory it is about.
    """

    number: int
    kind: str
    place: Place
    before: tuple[int, ...]
    actor: tuple[int, int, str]
    ins: Instr | None
    count: int = 0
    times: int = 1
    tx: int = 0
    parity: int = 0
    token: bool = False
    drop: bool = False
    of: tuple[int, ...] = ()
    threads: int = 0
    rank: int = 0

    def alike(self) -> tuple[object, ...]:
        """A key that is equal for steps of clusters that do the same."""
        return (
            *(self.kind, self.place, self.before, self.actor, id(self.ins), self.count),
            *(self.times, self.tx, self.parity, self.token, self.drop, self.of, self.threads),
            self.rank,
        )


@dataclass
class Trace:
    """The steps of a cluster in the order of the run. threads, warps: of one CTA. ctas: of the
    cluster. not_followed: reasons why a step could not be recorded as it was, empty if there
    are none. agents: (CTA rank, warp) -> the checker's agent; none of a warp that it has not seen.
    """

    threads: int
    warps: int
    ctas: int
    steps: list[Step] = field(default_factory=list[Step])
    not_followed: list[str] = field(default_factory=list[str])
    agents: dict[tuple[int, int], Agent] = field(default_factory=dict[tuple[int, int], Agent])

    def alike(self) -> tuple[object, ...]:
        """A key that is equal for clusters whose steps are the same."""
        return (self.threads, self.ctas, tuple(step.alike() for step in self.steps))


def bits_of(numbers: Iterable[int]) -> int:
    found = 0
    for number in numbers:
        found |= 1 << number
    return found
