"""Generic accesses of shared memory: to the rules of the CTA that each address lies in."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from b200.checker.accesses import Record
from b200.checker.launches import lifetime
from b200.checker.memory.lane_sync import part_of
from b200.checker.memory.parts import lane_words, part_words
from b200.chip.state import CTA
from b200.effects import Access, Stores
from b200.hardware import OFFSET_MASK, RANK_SHIFT
from b200.program.module import Instr

if TYPE_CHECKING:
    from b200.checker.agent import Agent
    from b200.checker.checked import CheckedFragment
    from b200.checker.observer import Observer

NO_PLACES = np.zeros(0, np.int64)


def shared_access(
    warp: CheckedFragment,
    ins: Instr,
    at: np.ndarray,
    nbytes: int,
    write: bool,
    lanes: np.ndarray,
    kind: str = "generic",
    text: str = "",
    own: int = 0,
) -> None:
    """Check a warp's access of shared memory at one or more addresses. lanes: the lane of each
    address. own: lanes that access memory each for itself.
    """
    observer = warp.observer
    agent = observer.agent(warp)
    agent.touched |= own
    agent.in_step = warp.mask
    text = text or f"{'writes' if write else 'reads'} shared memory"
    access = _AccessIn(observer, agent, ins, nbytes, write, kind, text, own)
    ctas = warp.cta.cluster.ctas
    if len(ctas) == 1:
        return access.of(warp.cta, at, lanes)
    ranks = at >> RANK_SHIFT
    first = int(ranks[0])
    if (ranks == first).all():
        return access.of(ctas[first], at & OFFSET_MASK, lanes)
    for rank in np.unique(ranks).tolist():
        here = ranks == rank
        access.of(ctas[rank], at[here] & OFFSET_MASK, _some(lanes, here))


def _some(lanes: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """The lanes of some addresses. lanes: one for each address, or one marker for all."""
    return lanes[chosen] if lanes.size == chosen.size else lanes


class _AccessIn(NamedTuple):
    """What an access is in each of the CTAs whose memory it touches; as in shared_access."""

    observer: Observer
    agent: Agent
    ins: Instr
    nbytes: int
    write: bool
    kind: str
    text: str
    own: int

    def of(self, cta: CTA, at: np.ndarray, lanes: np.ndarray) -> None:
        """Check it in the memory of one CTA, at offsets there."""
        agent, places = self.agent, NO_PLACES
        if self.nbytes < 4:
            part, places = part_words(at, self.nbytes)
            if places.size and not part.all():  # two accesses: of parts of words, of whole ones
                for some in (part, ~part):
                    self.of(cta, at[some], _some(lanes, some))
                return
        index, low, high, lanes = lane_words(at, self.nbytes, lanes)
        key = self.ins.key, cta.rank, places.size > 0
        record = agent.records.get(key)
        now = agent.epoch, agent.turn
        if record is None or agent.snapshot is not None or (record.epoch, record.turn) != now:
            record = Record.of_warp(agent, self.ins, self.text, self.kind)
            record.narrow = self.nbytes < 4
            agent.state.add(record)
            agent.records[key] = record
            if cta is not agent.cta:
                lifetime.reached(self.observer, record, cta)
                agent.state.far_fences.stores |= self.write
        record.lanes |= self.own
        if places.size:
            record.touches(places)
        rules = self.observer.shared(cta)
        (rules.generic_write if self.write else rules.generic_read)(record, index, low, high, lanes)


def strong_shared(
    warp: CheckedFragment, ins: Instr, effect: Access, at: np.ndarray, lanes: np.ndarray, mask: int
) -> None:
    """Check a strong access of shared memory: a flag, which releases and acquires. Weak accesses
    conflict with it as with any other access.
    """
    write, agent = isinstance(effect, Stores), warp.observer.agent(warp)
    flags = agent.state.flags
    if not write:
        agent.lane_acquire, agent.lanes = part_of(warp, mask, ins), mask
        flags.read(agent, ins, effect, at)
        agent.lane_acquire = None
    shared_access(warp, ins, at, effect.nbytes, write, lanes, "strong")
    if write:
        flags.write(agent, ins, effect, at, mask, joins=False)
