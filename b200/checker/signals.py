"""Signals of asynchronous operations: the clocks that they publish on mbarriers."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from b200.checker.accesses import Barrier, ClusterState, Record
from b200.checker.arrivals import Arrivals
from b200.checker.cancellations import Cancellations
from b200.checker.coverage import Coverage
from b200.checker.dependent_launch import DependentLaunch
from b200.checker.descriptor_rank import DescriptorRanks
from b200.checker.descriptor_version import DescriptorVersions
from b200.checker.finding import ERROR
from b200.checker.global_memory import GlobalRules
from b200.checker.overtaken import Overtaken
from b200.checker.products import Products
from b200.checker.repeats import Repeats
from b200.checker.shared_memory import SharedRules
from b200.checker.stores import Stores
from b200.checker.tensor_memory import TensorRules
from b200.checker.unwritten import Unwritten
from b200.checker.vector_clocks import HB, ORDER, SHARED_ROWS, TENSOR, Agent, join
from b200.chip.machine import Machine
from b200.chip.state import CTA
from b200.chip.sync.mbarrier import MBarrier
from b200.program.module import Instr
from b200.registry import FULL


class Signals(ABC):
    """The part of the Observer that completes operations on mbarriers. Abstract methods are what it
    needs of the other parts.
    """

    machine: Machine
    ins: Instr | None
    lane: int | None
    strict: bool
    globals: GlobalRules
    coverage: Coverage
    arrivals: Arrivals
    overtaken: Overtaken
    products: Products
    repeats: Repeats
    dependence: DependentLaunch | None
    wrote: bool
    cancellations: Cancellations
    stores: Stores | None
    descriptors: DescriptorRanks
    versions: DescriptorVersions
    unwritten: Unwritten

    @abstractmethod
    def found(
        self, kind: str, diagnosis: str, details, ins, other=None, severity: str = ERROR
    ) -> None: ...

    @abstractmethod
    def operand(self, address: int) -> str: ...

    @abstractmethod
    def agent(self, warp) -> Agent: ...

    @abstractmethod
    def state(self, cta: CTA) -> ClusterState: ...

    @abstractmethod
    def shared(self, cta: CTA) -> SharedRules: ...

    @abstractmethod
    def tensor(self, cta: CTA) -> TensorRules: ...

    @abstractmethod
    def barrier(self, mbarrier: MBarrier) -> Barrier | None: ...

    @abstractmethod
    def event(self, barrier: Barrier, agent: Agent | None, what: str) -> None: ...

    @abstractmethod
    def visible(self, agent: Agent, barrier: Barrier, asynchronous: bool = False) -> None: ...

    @abstractmethod
    def reach(self, record: Record, target: CTA) -> None: ...

    def _signalling(
        self,
        apply,
        clock: np.ndarray,
        barriers,
        records=(),
        what: str = "",
        agent=None,
        arrives: bool = False,
    ):
        """A function that runs `apply`, which signals `barriers`, and publishes `clock` there.
        `records` complete with the signal.

        barriers: for each signal a Barrier, or None if the checker knows nothing of the mbarrier.
        records: (record, barrier). arrives: the signal is an arrival, not bytes.
        """
        ins, lane = self.ins, self.lane

        def observed():
            phases = [b.object.phase if b is not None else 0 for b in barriers]
            mine, self.ins = self.ins, ins
            try:
                for record, barrier in records:
                    if barrier is not None:
                        record.step = barrier.phases + 1
                for barrier in barriers:
                    if barrier is not None:
                        if what:
                            self.event(barrier, agent, what)
                        if arrives:
                            self.arrivals.comes(barrier, agent, ins, lane, clock)
                apply()
                for barrier, phase in zip(barriers, phases, strict=True):
                    if barrier is not None:
                        barrier.gather(clock)
                        if barrier.object.phase != phase:
                            barrier.complete()
                            self.overtaken.completed(barrier, ins)
            finally:
                self.ins = mine

        return observed

    def lanes(self) -> int:
        """The lanes that issue an operation."""
        return FULL if self.lane is None else 1 << self.lane

    def _known_barrier(self, agent: Agent, cta, offset: int) -> Barrier | None:
        """The barrier an asynchronous operation will signal."""
        mbarrier = cta.mbarriers.get(offset)
        barrier = self.barrier(mbarrier) if mbarrier is not None else None
        if barrier is not None:
            self.visible(agent, barrier, asynchronous=True)
        return barrier

    @staticmethod
    def _with(
        agent: Agent, component: int, step: int, lanes: int = FULL, ins: Instr | None = None
    ) -> np.ndarray:
        """The warp's clock with one of its streams advanced to `step`, for whoever sees that
        step complete. lanes, ins: as in Agent.release.
        """
        clock = join(np.zeros((SHARED_ROWS, component + 1), np.int32), agent.release(lanes, ins))
        for row in (HB, TENSOR, ORDER):
            if clock[row, component] < step:
                clock[row, component] = step
        return clock
