"""Rule: an arrival on an mbarrier must not be counted into a phase that it is not meant for.

A phase is over with its last expected arrival (PTX ISA 9.7.13.15). So a warp that arrives for the
next phase must know that the phase before is over, or its arrival may count into that one. Such an
arrival is one too many: the count is too small, an elect is missing, or the arrive is in the wrong
place. The checker finds it whatever came first in this run, and reports it at the end, when the
number of arrivals is known.

A warp knows that the phase before is over in two ways. A wait told it; or it knows everything that
the arrivals of that phase have published: because they are its own, or because it has seen the same
multicast commit on another mbarrier. In the second case its arrival may be counted early, but the
waiters learn no less, and the late arrival fills its place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from b200.checker import words
from b200.checker.accesses import Barrier
from b200.effects import Commits

if TYPE_CHECKING:
    from b200.checker.agent import Agent
    from b200.checker.observer import Observer
    from b200.chip.operations import Commit
    from b200.chip.state import CTA
    from b200.program.module import Instr


EXECUTIONS = 64  # of an instruction, whose late arrivals are told apart


class Uses:
    """The arrivals on an mbarrier by one instruction. lanes: warp -> the largest number of lanes of
    one execution. phases: phases completed when the first lane of the present execution arrived.
    begun: execution -> (lanes that have arrived, phases completed before the first), of those whose
    arrivals come later than they are issued.
    """

    __slots__ = ("ins", "lanes", "agent", "lane", "run", "phases", "begun")

    def __init__(self, ins: Instr):
        self.ins = ins
        self.lanes: dict[Agent, int] = {}
        self.agent, self.lane, self.run, self.phases = None, 32, 0, 0
        self.begun: dict[int, tuple[int, int]] = {}

    def add(self, agent: Agent, lane: int | None, phases: int) -> None:
        """Count an arrival of a lane, which comes as it is issued. Lanes of one execution come in
        order: a lane that is not higher begins another execution.
        """
        same = agent is self.agent and lane is not None and lane > self.lane
        self.run = self.run + 1 if same else 1
        if not same:
            self.phases = phases
        self.agent, self.lane = agent, 32 if lane is None else lane
        self._most(agent)

    def add_late(self, agent: Agent, execution: int, phases: int) -> None:
        """Count an arrival of a lane, which comes at any time, in any order."""
        lanes, self.phases = self.begun.pop(execution, (0, phases))
        self.run = lanes + 1
        self.begun[execution] = self.run, self.phases
        if len(self.begun) > EXECUTIONS:
            del self.begun[next(iter(self.begun))]
        self._most(agent)

    def _most(self, agent: Agent) -> None:
        if self.run > self.lanes.get(agent, 0):
            self.lanes[agent] = self.run

    def text(self) -> str:
        """The warps and lanes in words, such as "4 warps, 32 lanes of each"."""
        most = max(self.lanes.values())
        warps = len(self.lanes)
        who = f"{most} lanes of one warp" if most > 1 else "1 warp"
        return who if warps == 1 else f"{warps} warps, {most} lane{'s' * (most > 1)} of each"


class Arrivals:
    """The rule for one launch. early: mbarrier -> (warp, instruction) of the first arrival on it
    that may count into the phase before. abroad: multicast commits that do not arrive at the CTAs
    whose tensor cores they commit, as words.
    """

    def __init__(self, observer: Observer):
        self.observer = observer
        self.abroad: dict[int, str] = {}
        self.early: dict[Barrier, tuple] = {}

    def comes(
        self,
        barrier: Barrier,
        agent: Agent,
        ins: Instr,
        lane: int | None,
        clock: np.ndarray,
        execution: int | None = None,
    ) -> None:
        """A warp is about to arrive, with the clock that the arrival publishes. execution: of the
        instruction, where the arrival comes later than it.
        """
        uses = barrier.uses.get(ins.key)
        if uses is None:
            uses = barrier.uses[ins.key] = Uses(ins)
        if execution is None:
            uses.add(agent, lane, barrier.phases)
        else:
            uses.add_late(agent, execution, barrier.phases)
        if barrier.over(clock):
            return
        if barrier.phases != uses.phases or not barrier.explained(clock):
            self.too_many(barrier, agent, ins)

    def commits(self, cta: CTA, commit: Commit, ins: Instr) -> None:
        """A commit arrives at mbarriers. One that leaves out the issuer's own CTA, or pair, is
        legal; where arrivals do not add up it is the first thing to look at.
        """
        effect = ins.effect
        multicast = isinstance(effect, Commits) and effect.multicast
        if ins.key in self.abroad or not multicast:
            return
        targets = {target.rank for target in commit.targets}
        if not targets & {member.rank for member in commit.members}:
            self.abroad[ins.key] = (
                f"missing: the issuer's own CTAs in the multicast mask: {words.line(ins)} names "
                f"rank{'s' * (len(targets) > 1)} {', '.join(map(str, sorted(targets)))} of the "
                f"cluster, and rank {cta.rank} issues it"
            )

    def too_many(self, barrier: Barrier, agent: Agent, ins: Instr) -> None:
        self.early.setdefault(barrier, (agent, ins))

    def finish(self) -> None:
        for barrier, (agent, ins) in self.early.items():
            self._tell(barrier, agent, ins)
        self.early.clear()

    def _tell(self, barrier: Barrier, agent: Agent, ins: Instr) -> None:
        count = barrier.object.expected
        every = barrier.uses.values()
        here = barrier.uses[ins.key]
        total = sum(here.lanes.values())
        if max(here.lanes.values()) > count:
            diagnosis = f"{here.text()} arrive on an mbarrier of count {count}"
            missing = "missing: elect_one around the arrival, or a count of all that arrive"
        elif total > count:
            diagnosis = f"{total} arrivals ({here.text()}) come to an mbarrier of count {count}"
            missing = "missing: a count of all that arrive in a phase, or arrivals of fewer"
        else:
            diagnosis = (
                f"{words.name(agent)} arrives on an mbarrier (count {count}) without knowing that "
                "its phase before is over"
            )
            missing = (
                "missing: a wait before the arrival (it may count into the phase before), or a "
                "count of all that arrive"
            )
        missing = next((self.abroad[u.ins.key] for u in every if u.ins.key in self.abroad), missing)
        lines = "; ".join(
            dict.fromkeys(f"{uses.text()} at {words.line(uses.ins)}" for uses in every)
        )
        self.observer.found(
            "protocol",
            diagnosis,
            f"this access: {words.line(ins)}, by {words.name(agent)}",
            f"it is {barrier.name()}, initialised with count {count} at "
            f"{words.line(barrier.record.ins)}, {barrier.phases} phases completed",
            f"arrivals: {lines}",
            missing,
            at=ins,
            other=barrier.record.ins,
        )
