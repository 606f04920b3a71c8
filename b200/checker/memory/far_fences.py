"""Proxy fences that count for stores to another CTA's shared memory.

fence.proxy.async.shared::cta is one of the memory that is the executing CTA's own (PTX ISA
9.7.13.4). What a warp has stored into another CTA of the cluster is covered by a fence of
.shared::cluster, by one that names no space, or by one of .shared::cta that the other CTA executes.
The clock's row of proxy fences (vector_clocks.py) does not tell these apart. So once a cluster has
such stores, its fences are kept, with what each of them knew.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from b200.checker.vector_clocks import HB

if TYPE_CHECKING:
    from b200.checker.accesses import Record
    from b200.checker.agent import Agent
    from b200.chip.state import CTA

KEPT = 256  # the latest fences


class Fence(NamedTuple):
    """A proxy fence. own: whether it is one of its CTA's own memory. known: what it came after, by
    component. epoch: of its warp.
    """

    agent: Agent
    own: bool
    known: np.ndarray
    epoch: int


class FarFences:
    """The proxy fences of a cluster. stores: whether there are stores to another CTA."""

    def __init__(self) -> None:
        self.stores = False
        self.fences: deque[Fence] = deque(maxlen=KEPT)

    def fenced(self, agent: Agent, own: bool) -> None:
        """A warp executes a proxy fence; called before that moves the warp's clock."""
        if self.stores:
            self.fences.append(Fence(agent, own, agent.clock[HB].copy(), agent.epoch))

    def cover(self, cta: CTA, old: Record, agent: Agent) -> bool:
        """Whether a fence lies between a store to memory of `cta` and what `agent` does now."""
        for fence in self.fences:
            if fence.own and fence.agent.cta is not cta:
                continue
            if fence.agent is old.agent:
                after = old.step <= fence.epoch
            else:
                after = old.component < fence.known.size and fence.known[old.component] >= old.step
            by = fence.agent
            if after and (by is agent or agent.knows(HB, by.component, fence.epoch)):
                return True
        return len(self.fences) == KEPT  # an older one may
