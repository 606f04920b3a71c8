"""Signals of asynchronous operations: the clocks that they publish on mbarriers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from b200.checker.accesses import Barrier, Record
from b200.checker.agent import Agent
from b200.checker.barriers.arrivals import Arrivals
from b200.checker.barriers.mbarriers import Mbarriers
from b200.checker.memory.global_reads import GlobalRead
from b200.checker.streams import WarpStream
from b200.checker.vector_clocks import HB, ORDER, SHARED_ROWS, TENSOR, join
from b200.chip.operations import Action
from b200.chip.state import CTA

if TYPE_CHECKING:
    from b200.checker.observer import Observer


class Signals:
    """Completes the operations of one launch on its mbarriers."""

    def __init__(self, observer: Observer, mbarriers: Mbarriers, arrivals: Arrivals):
        self.observer, self.mbarriers, self.arrivals = observer, mbarriers, arrivals

    def signalling(
        self,
        apply: Action,
        clock: np.ndarray,
        barriers: Sequence[Barrier | None],
        records: Sequence[tuple[Record | GlobalRead, Barrier | None]],
        what: str,
        agent: Agent,
        arrives: bool = False,
    ) -> Action:
        """A function that runs `apply`, which signals `barriers`, and publishes `clock` there.
        `records` complete with the signal.

        barriers: for each signal a Barrier, or None if the checker knows nothing of the mbarrier.
        records: (record, barrier). arrives: the signal is an arrival, not bytes.
        """
        observer = self.observer
        ins, lane = observer.executed, observer.lane
        execution = observer.repeats.executions

        def observed() -> None:
            phases = [b.object.phase if b is not None else 0 for b in barriers]
            mine, observer.ins = observer.ins, ins
            try:
                for record, barrier in records:
                    if barrier is not None:
                        record.step = barrier.phases + 1
                for barrier in barriers:
                    if barrier is not None:
                        self.mbarriers.event(barrier, agent, what)
                        if arrives:
                            self.arrivals.comes(barrier, agent, ins, lane, clock, execution)
                apply()
                for barrier, phase in zip(barriers, phases, strict=True):
                    if barrier is not None:
                        self.mbarriers.gathered(barrier, agent, clock, phase, ins, arrives)
            finally:
                observer.ins = mine

        return observed

    def known_barrier(
        self, agent: Agent, cta: CTA, offset: int, proxy: bool = True
    ) -> Barrier | None:
        """The barrier that an asynchronous operation will signal; None if the checker knows nothing
        of it. proxy: it does so through the async proxy. cp.async does not (sm_80 has no such
        proxy).
        """
        mbarrier = cta.mbarriers.get(offset)
        barrier = self.mbarriers.known(mbarrier) if mbarrier is not None else None
        if barrier is not None:
            self.mbarriers.visible(agent, barrier, asynchronous=proxy)
        return barrier

    def behind(self, agent: Agent, stream: WarpStream) -> np.ndarray:
        """The clock of a warp for who sees that all operations of a stream so far are complete."""
        component, observer = stream.component, self.observer
        released = agent.release(observer.lanes(), observer.ins)
        clock = join(np.zeros((SHARED_ROWS, component + 1), np.int32), released)
        for row in (HB, TENSOR, ORDER):
            if clock[row, component] < stream.issued:
                clock[row, component] = stream.issued
        return clock
