"""Order through flags in shared memory: strong accesses and atomics of one cluster (PTX ISA 8.8).

As in global memory (global_order.py), but for one thing. A volatile access of a CTA's own warps
counts as a release or an acquire: PTX takes it for a relaxed one, and warp-synchronous programs
rely on it (docs/reference/memory-order.md).
"""

from __future__ import annotations

import numpy as np

from b200.checker.agent import Agent
from b200.checker.memory.release_acquire import Learned, Signal, covers, tells, told
from b200.checker.vector_clocks import CTA, GPU, distance, scope_of
from b200.effects import Access
from b200.program.module import Instr

NOTHING = Learned()  # of other clusters: their memory is shared with nobody


class SharedSignal(Signal):
    """A strong write of shared memory."""

    @property
    def releases(self) -> bool:
        effect = self.ins.effect
        return isinstance(effect, Access) and (effect.releases or effect.order == "volatile")


class SharedFlags:
    """The flags of one cluster. An address has the CTA's rank."""

    def __init__(self):
        self.signals: dict[int, list[SharedSignal]] = {}  # what a read of an address receives
        # (warp, address) -> its releases there, the latest of each scope
        self.releases: dict[tuple[Agent, int], dict[int, SharedSignal]] = {}
        # (warp, address) -> (distance, clock) of what it has read there and not acquired
        self.pending: dict[tuple[Agent, int], list[tuple[int, np.ndarray]]] = {}

    def write(
        self, agent: Agent, ins: Instr, effect: Access, at: np.ndarray, lanes: int, joins: bool
    ) -> None:
        """Lanes of a warp write flags. joins: by an atomic, which passes on what was there."""
        clock = agent.release(lanes, ins)
        # A volatile access releases within its CTA only.
        scope = CTA if effect.order == "volatile" else scope_of(ins, GPU)
        for address in set(at.tolist()):
            signal = SharedSignal(agent, ins, scope, clock, NOTHING, lanes)
            releases = self.releases.get((agent, address))
            if releases:
                signal.earlier = tuple(r for r in releases.values() if not lanes & ~r.lanes)
            if signal.releases:
                self.releases.setdefault((agent, address), {})[scope] = signal
            before = self.signals.get(address, ()) if joins else ()
            self.signals[address] = [*(s for s in before if not covers(signal, s)), signal]

    def read(self, agent: Agent, ins: Instr, effect: Access, at: np.ndarray) -> None:
        """A warp reads flags by a strong read or an atomic."""
        if not self.signals or not tells(ins):
            return
        scope = scope_of(ins, GPU)
        for address in set(at.tolist()) & self.signals.keys():
            waiting = self.pending.get((agent, address))
            if waiting and effect.acquires:
                for clock in [clock for far, clock in waiting if far <= scope]:
                    agent.acquire_barrier(clock)
                self.pending[agent, address] = [entry for entry in waiting if entry[0] > scope]
            for signal in self.signals[address] if agent.heeds else ():
                if told(agent, signal):
                    self._receive(agent, signal, ins, effect, scope, address)

    def _receive(
        self, agent: Agent, signal: Signal, ins: Instr, effect: Access, scope: int, address: int
    ) -> None:
        far = distance(agent.cta, signal.agent.cta)
        given = signal.given(far)
        assert given is not None
        if effect.acquires and signal.agent is agent:
            agent.acquire_own(given, ins)
            return
        if effect.acquires and scope >= far or effect.order == "volatile" and far == CTA:
            agent.acquire_barrier(given)
            return
        if signal.agent is agent:
            agent.acquire_own_relaxed(given, ins, far)
        else:
            agent.acquire_relaxed(given, ins, far)
        waiting = self.pending.setdefault((agent, address), [])
        if not waiting or waiting[-1][1] is not given:
            waiting.append((far, given))
