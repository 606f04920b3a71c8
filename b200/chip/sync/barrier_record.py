"""What an observer records of mbarriers, for the report of a hang (hang.py, hang_bytes.py)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from b200.program.module import Instr


class BarrierEvent(NamedTuple):
    """One event at an mbarrier, for reports. number: in the order of the launch. phase: how many
    phases were complete before it. who: the warp, in words. at: source location.
    """

    number: int
    phase: int
    who: str
    what: str
    at: str


@dataclass(frozen=True)
class BarrierHistory:
    """The record that an observer keeps of an mbarrier, for the report of a hang.

    name: of the mbarrier, in words. announced, brought: instructions that announced or completed
    bytes, each with its latest number of bytes. events: the latest ones, in order.
    """

    name: str
    announced: tuple[tuple[Instr, int], ...]
    brought: tuple[tuple[Instr, int], ...]
    events: tuple[BarrierEvent, ...]


class WaitedTwice(NamedTuple):
    """A warp whose latest two waits on an mbarrier were for the same parity: between them the warp
    did not flip the parity, or flipped it once too often. mbarrier, who: in words. where: the call
    of the wait. before: that of the wait before, if it is another one.
    """

    mbarrier: str
    who: str
    parity: int
    where: str
    before: str = ""

    why = "its phase is not flipped between the two, or was once too often before"

    def __str__(self):
        before = f" (before that at {self.before})" if self.before else ""
        return (
            f"{self.who} has waited twice in a row for parity {self.parity} of the "
            f"{self.mbarrier}, at {self.where}{before}"
        )


class OvertakenWait(NamedTuple):
    """A warp that waits for a phase of an mbarrier which is over, as the one after it is: the
    parity is the same again. phases: how many are over. waits: for how many the warp has waited.
    last: where the latest was completed from.
    """

    mbarrier: str
    who: str
    parity: int
    where: str
    phases: int
    waits: int
    last: str

    @property
    def why(self) -> str:
        return (
            f"{self.phases} of its phases are over, the latest by {self.last}, and the warp has "
            f"waited for {self.waits}: a wait for each phase is missing, or what completes the "
            "next phase must come after the wait"
        )

    def __str__(self):
        return (
            f"{self.who} was overtaken by two phases: it waits for parity {self.parity} of the "
            f"{self.mbarrier}, at {self.where}"
        )


SlippedWait = WaitedTwice | OvertakenWait
