"""Order through global memory: which warps have synchronised by flags and counters (PTX ISA 8.9).

A strong write or an atomic is a signal. It hands over what its thread has released: all of it if
the instruction itself releases, else only what a fence has put before it. It does so only as far as
the scopes of the instruction and of the fence reach. A strong read takes this over at once if it
acquires, else at the next fence. Atomics on one address pass on what the atomics before them have
brought (the release sequence); a store starts a new sequence.

Each cluster has clocks of its own. What a warp learns of another cluster is an *arrival*, dated in
the time of the warp that learns it: every warp that is ordered after that, by whatever means, knows
it, too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from b200.checker import words
from b200.checker.accesses import ClusterState
from b200.checker.agent import Agent
from b200.checker.memory.release_acquire import (
    Knowledge,
    Learned,
    Signal,
    SignalRead,
    acquires,
    merged,
    tells,
    told,
)
from b200.checker.streams import NEVER
from b200.checker.vector_clocks import (
    CLUSTER,
    CTA,
    DISTANCES,
    FENCED,
    GLOBAL,
    GPU,
    HB,
    ORDER,
    distance,
    order_of,
    scope_of,
)
from b200.chip.describe import mnemonic
from b200.program.module import Instr

if TYPE_CHECKING:
    from b200.checker.memory.global_conflicts import Write
    from b200.checker.memory.global_reads import GlobalRead

KEPT = 4096  # signals remembered of an address
MOST_PUT_OFF = 1 << 28  # bytes of addresses that are kept of signals to be added to chains


class GlobalOrder:
    """The signals of a launch, and the warps that have received them."""

    def __init__(self):
        # address of an atomic -> what it passes on, by the warp that sent it
        self.chains: dict[int, dict[tuple[Agent, int], Signal]] = {}
        # base of an allocation -> what adds further signals to the chains in it
        self._put_off: dict[int, list[Callable[[], None]]] = {}
        self._put_off_bytes = 0
        self.learned: dict[ClusterState, Learned] = {}
        self.received: dict[object, list[SignalRead]] = {}  # CTA -> received by its warps
        self.unheeded: dict[object, list[SignalRead]] = {}  # the same of reads that nobody heeds
        # (warp, address) -> its releases there, the latest of each scope
        self.releases: dict[tuple[Agent, int], dict[int, Signal]] = {}

    def _learned(self, agent: Agent) -> Learned:
        found = self.learned.get(agent.state)
        if found is None:
            found = self.learned[agent.state] = Learned()
        return found

    # --- signals --------------------------------------------------------------------------------
    def signal(self, agent: Agent, ins: Instr, lanes: int, addresses: np.ndarray) -> Signal:
        """The signal of a strong write by some lanes that is about to happen."""
        clock = agent.release(lanes, ins).copy()
        clock[ORDER, agent.component] += 1  # the write itself, which comes after what it releases
        signal = Signal(agent, ins, scope_of(ins, GPU), clock, self._learned(agent), lanes)
        places = [(agent, address) for address in set(addresses.tolist())]
        signal.earlier = self._earlier(signal, places)
        if signal.releases:
            for place in places:
                self.releases.setdefault(place, {})[signal.scope] = signal
        return signal

    def _earlier(self, signal: Signal, places: list[tuple[Agent, int]]) -> tuple[Signal, ...]:
        """The releases before a signal at all of its places."""
        if not self.releases:
            return ()
        found = [self.releases.get(place, {}).values() for place in places]
        return tuple(
            release
            for release in found[0]
            if not signal.lanes & ~release.lanes and all(release in others for others in found)
        )

    def flag(self, agent: Agent, ins: Instr, clock: np.ndarray | None) -> Signal:
        """The signal of a weak write that somebody polls. clock: at its warp's latest fence."""
        return Signal(agent, ins, CTA, clock, self._learned(agent))

    def passes_on(self, address: int, signal: Signal, before: Signal | None) -> None:
        """An atomic hands over what earlier atomics on its address have handed over, back to the
        latest store. before: the signal of the latest write there if that is a store, else None.
        """
        chain = self.chains.setdefault(address, {})
        if before is not None:
            chain.clear()
            chain[before.agent, before.lanes] = before
        ins = signal.ins
        if tells(ins) and acquires(ins) and signal.releases and signal.scope == GPU:
            chain.clear()  # it has taken them over
        key = signal.agent, signal.lanes  # other lanes of the warp may have released more
        chain.pop(key, None)
        chain[key] = signal
        if len(chain) > KEPT + 1:
            del chain[next(iter(chain))]

    def put_off(self, base: int, later: Callable[[], None], nbytes: int = 0) -> None:
        """`later` adds signals to an allocation's chains once somebody asks. nbytes: it keeps."""
        self._put_off.setdefault(base, []).append(later)
        self._put_off_bytes += nbytes
        if self._put_off_bytes > MOST_PUT_OFF:
            for other in list(self._put_off):
                self._add_put_off(other)

    def has_put_off(self, base: int) -> bool:
        return base in self._put_off

    def _add_put_off(self, base: int) -> None:
        for later in self._put_off.pop(base, ()):
            later()
        if not self._put_off:
            self._put_off_bytes = 0

    def has_adds(self, base: int) -> bool:
        """Whether there may have been atomics in an allocation."""
        self._add_put_off(base)
        return bool(self.chains)

    def signals(self, address: int, base: int) -> Collection[Signal]:
        """What the atomics on an address pass on."""
        self._add_put_off(base)
        return self.chains.get(address, {}).values()

    def receive(self, agent: Agent, signals: Iterable[Signal], ins: Instr, address: int) -> None:
        """A strong read or an atomic receives the signals of an address. An acquire takes over what
        was received there before, by its own warp or by one that it is ordered after (PTX ISA 8.8,
        acquire patterns; 8.10, coherence). That is all of a read that nobody heeds.
        """
        if not tells(ins):
            return
        scope, acquiring, learned = scope_of(ins, GPU), acquires(ins), self._learned(agent)
        if acquiring and learned.pending:
            there = [p for p in learned.pending if p.address == address]
            here = [p for p in there if p.agent is agent or p.read_by(agent)]
            self._acquire(agent, here, scope)
        taken = []
        for signal in signals:
            seen = agent, signal, id(ins), agent.lanes
            if not told(agent, signal) or seen in learned.seen:
                continue
            learned.seen.add(seen)
            far = distance(agent.cta, signal.agent.cta)
            received = SignalRead(agent, agent.now(), ins, signal, address, agent.lanes, agent.turn)
            if not agent.heeds:
                self.unheeded.setdefault(agent.cta, []).append(received)
                continue
            signal.readers.append(received)
            self.received.setdefault(agent.cta, []).append(received)
            if acquiring and signal.agent is agent:
                if (given := signal.given(CTA)) is not None:
                    agent.acquire_own(given, ins)
            elif acquiring and scope >= far:
                taken.append((signal, far))
            else:
                learned.pending.append(received)
                if far <= CLUSTER and signal.clock is not None:
                    agent.acquire_barrier(order_of(signal.clock))
        self._take(agent, taken)

    def fenced(self, agent: Agent, scope: int) -> None:
        """A fence acquires what was read before it, also by warps that are ordered before it."""
        learned = self.learned.get(agent.state)
        if learned is None:
            return
        before = [pending for pending in learned.pending if pending.read_by(agent)]
        self._acquire(agent, before, scope)

    def _acquire(self, agent: Agent, before: list[SignalRead], scope: int) -> None:
        """Something of this scope acquires what was read before it, unless it has done so."""
        seen, taken = self._learned(agent).seen, []
        for pending in before:
            far = distance(agent.cta, pending.signal.agent.cta)
            entry = agent, id(pending), agent.lanes
            if scope >= far and entry not in seen:
                seen.add(entry)
                taken.append((pending.signal, far))
        self._take(agent, taken)

    def fenced_proxy(self, agent: Agent) -> None:
        """fence.proxy.async: the async proxy now sees what the warp knows of other clusters."""
        visible = {}
        for cluster, clock in merged(list(self._known(agent))).items():
            visible[cluster] = clock = clock.copy()
            np.maximum(clock[GLOBAL], clock[HB], out=clock[GLOBAL])
        if visible:
            self._learned(agent).add(agent, [visible])

    def _take(self, agent: Agent, taken: list[tuple[Signal, int]]) -> None:
        """A warp takes over what some signals hand over, each to its distance."""
        parts = [part for signal, far in taken if (part := signal.knowledge(far))]
        if not parts:
            return
        found = dict(merged(parts))
        if (mine := found.pop(agent.state, None)) is not None:
            agent.acquire_barrier(mine)
        if found:
            if mine is None:
                agent.lanes_acquire(None)
            self._learned(agent).add(agent, [found])

    def _known(self, agent: Agent) -> Iterator[Knowledge]:
        """What a warp knows of other clusters: itself, and by warps that it is ordered after."""
        learned = self.learned.get(agent.state)
        return learned.by(agent.clock, agent.component) if learned is not None else iter(())

    # --- questions ------------------------------------------------------------------------------
    def observed(self, agent: Agent, write: Write) -> bool:
        """Whether a strong read that has received a strong write is before what `agent` does now.
        The write is then, too, though nothing has released it (PTX ISA 8.9.4, causality order).
        """
        if write.signal is None:
            return False
        for reader in write.signal.readers:
            scope = min(write.scope, scope_of(reader.ins, GPU))
            if scope < distance(reader.agent.cta, write.agent.cta):
                continue
            component, epoch = reader.agent.component, reader.epoch
            if reader.agent is agent or self.known(agent, reader.agent, component, epoch):
                return True
        return False

    def adds(self, addresses: np.ndarray, nbytes: int) -> Iterator[Write]:
        """The atomics on the places of an access, each once, since the latest store there."""
        seen: set[int] = set()
        for first in set(addresses.tolist()):
            for address in range(first, first + nbytes, 2):
                for signal in self.chains.get(address, {}).values():
                    if signal.write is not None and id(signal) not in seen:
                        seen.add(id(signal))
                        yield signal.write

    def knows(
        self, agent: Agent, cluster: ClusterState, component: int, step: int, row: int = HB
    ) -> bool:
        """Whether a step of a component of another cluster is before what `agent` does now."""
        for knowledge in self._known(agent):
            clock = knowledge.get(cluster)
            if clock is not None and component < clock.shape[1] and clock[row, component] >= step:
                return True
        return False

    def known(self, agent: Agent, of: Agent, component: int, step: int) -> bool:
        """Whether a step of warp `of` is before what `agent` does now."""
        if step >= NEVER or of.state is agent.state:
            return component == agent.component or agent.knows(HB, component, step)
        return self.knows(agent, of.state, component, step)

    def unaware(self, agent: Agent, lanes: int, of: Agent, component: int, step: int) -> int:
        """Those of some lanes that do not know of a step of `of` that their warp knows of."""
        acquires, learned = agent.lane_acquires, self.learned.get(agent.state)
        if acquires is None:
            return 0
        if of.state is agent.state:
            own = component == agent.component
            return 0 if own else acquires.unaware(lanes, component, step)
        for knowledge in learned.by(acquires.before) if learned is not None else ():
            clock = knowledge.get(of.state)
            if clock is not None and component < clock.shape[1] and clock[HB, component] >= step:
                return 0
        return lanes & ~acquires.lanes

    def row(self, agent: Agent, cluster: ClusterState) -> np.ndarray:
        """What of a cluster is before what `agent` does now: a row of a clock."""
        if cluster is agent.state:
            return agent.clock[HB]
        found = [knowledge[cluster] for knowledge in self._known(agent) if cluster in knowledge]
        return merged([{cluster: clock} for clock in found])[cluster][HB]

    def received_from(self, agent: Agent, old: Write | GlobalRead) -> SignalRead | None:
        """The latest signal sent after write `old` that the CTA of `agent` has read, or None."""
        return self._sent_after(old, self.received.get(agent.cta, ()))

    @staticmethod
    def _sent_after(old: Write | GlobalRead, reads: Sequence[SignalRead]) -> SignalRead | None:
        """The latest of some reads whose signal was sent after the write `old`."""
        component, step = old.agent.component, old.epoch
        for received in reversed(reads):
            signal, clock = received.signal, received.signal.clock
            if clock is None or signal.agent.cta.cluster is not old.agent.cta.cluster:
                continue
            if component < clock.shape[1] and clock[ORDER, component] >= step:
                return received
        return None

    def not_covered(self, agent: Agent, old: Write | GlobalRead, what: str) -> str:
        """Why `agent` does not know of `old` although its CTA has read a signal of another warp of
        the CTA of `old`: the last-block idiom without its first barrier. "" if it has read none.
        what: "read" or "write".
        """
        for received in reversed(self.received.get(agent.cta, ())):
            signal = received.signal
            if signal.agent.cta is old.agent.cta and signal.agent is not old.agent:
                return (
                    f"missing: a barrier (__syncthreads) between the {what} and the "
                    f"{mnemonic(signal.ins)} at {words.line(signal.ins)}, by "
                    f"{words.name(signal.agent)}, which does not cover what other warps do"
                )
        return ""

    def missing(self, agent: Agent, old: Write | GlobalRead) -> tuple[str, bool]:
        """(why, reader): why `agent` does not know of the write `old` although it has read a signal
        sent after it, "" if it has read none; and whether only the reader's side is missing.
        """
        received = self.received_from(agent, old)
        if received is None or received.signal.clock is None:
            look = self._sent_after(old, self.unheeded.get(agent.cta, ()))
            if look is None:
                return "", False
            read = f"the {mnemonic(look.ins)} at {words.line(look.ins)}"
            return (
                f"missing: a loop around {read}: nothing depends on what it finds (a loop that "
                "ends after some tries is no wait)",
                False,
            )
        return self._why(received.signal, received, received.signal.clock, old)

    def _why(
        self, signal: Signal, pending: SignalRead, clock: np.ndarray, old: Write | GlobalRead
    ) -> tuple[str, bool]:
        far = distance(signal.agent.cta, pending.agent.cta)
        write = f"the {mnemonic(signal.ins)} at {words.line(signal.ins)}"
        whose = f"{write}, by {words.name(signal.agent)}"
        narrow = "its scope does not reach the CTA that reads"
        if old.component != old.agent.component and clock[HB, old.component] < old.step:
            return (
                "missing: cp.async.bulk.wait_group 0 (without .read, which waits for the source "
                f"only) before {whose}",
                False,
            )
        if not (signal.releases and signal.scope >= far):
            fenced = [int(clock[FENCED + d, old.component]) >= old.step for d in DISTANCES]
            if not fenced[far]:
                if signal.releases:
                    return f"missing: .release.gpu for {whose}: {narrow}", False
                if fenced[CTA]:
                    return (
                        "missing: fence.acq_rel.gpu (__threadfence) after the write, in place of "
                        f"the fence of narrower scope before {whose}",
                        False,
                    )
                return (
                    f"missing: fence.acq_rel.gpu (__threadfence) between the write and {write}, or "
                    f".release.gpu for it: it is relaxed, by {words.name(signal.agent)}",
                    False,
                )
        read = f"the {mnemonic(pending.ins)} at {words.line(pending.ins)}"
        if acquires(pending.ins):
            return f"missing: .acquire.gpu for {read}: {narrow}", True
        return (
            f"missing: fence.acq_rel.gpu (__threadfence) after {read}, or .acquire.gpu for it: "
            "it is relaxed",
            True,
        )
