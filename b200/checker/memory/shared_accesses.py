"""Generic accesses of shared memory: to the rules of the CTA that each address lies in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from b200.checker.accesses import Record
from b200.checker.launches import lifetime
from b200.checker.memory.heard import part_of
from b200.checker.memory.lane_words import lane_words
from b200.effects import Access, Stores
from b200.hardware import OFFSET_MASK, RANK_SHIFT
from b200.program.module import Instr

if TYPE_CHECKING:
    from b200.checker.agent import Agent
    from b200.checker.checked import CheckedFragment
    from b200.checker.observer import Observer


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
    """Check a warp's access of shared memory at one or more addresses. lanes: the lane of
    each address. own: lanes that access memory each for itself.
    """
    observer = warp.observer
    observer.ins = ins
    agent = observer.agent(warp)
    agent.touched |= own
    agent.in_step = warp.mask
    if len(warp.cta.cluster.ctas) == 1:
        _shared_of(observer, agent, warp, ins, 0, at, nbytes, write, lanes, kind, text, own)
        return
    ranks = at >> RANK_SHIFT
    first = int(ranks[0])
    if (ranks == first).all():
        at = at & OFFSET_MASK
        _shared_of(observer, agent, warp, ins, first, at, nbytes, write, lanes, kind, text, own)
    else:
        for rank in np.unique(ranks):
            here = ranks == rank
            some = lanes[here] if lanes.size == here.size else lanes
            _shared_of(
                observer,
                agent,
                warp,
                ins,
                int(rank),
                at[here] & OFFSET_MASK,
                nbytes,
                write,
                some,
                kind,
                text,
                own,
            )


def _shared_of(
    observer: Observer,
    agent: Agent,
    warp: CheckedFragment,
    ins: Instr,
    rank: int,
    at: np.ndarray,
    nbytes: int,
    write: bool,
    lanes: np.ndarray,
    kind: str,
    text: str,
    own: int,
):
    cta = warp.cta if rank == warp.cta.rank else warp.cta.cluster.ctas[rank]
    index, low, high, lanes = lane_words(at, nbytes, lanes)
    kept = agent.records.get((ins.key, rank))
    if (
        kept is not None
        and agent.snapshot is None
        and kept.epoch == agent.epoch
        and kept.turn == agent.turn
    ):
        record = kept
    else:
        text = text or f"{'writes' if write else 'reads'} shared memory"
        record = Record(agent, ins, agent.component, 0, kind, text, narrow=nbytes < 4)
        record.step = record.epoch
        agent.state.add(record)
        agent.records[ins.key, rank] = record
        if cta is not agent.cta:
            lifetime.reached(observer, record, cta)
    record.lanes |= own
    rules = observer.shared(cta)
    (rules.generic_write if write else rules.generic_read)(record, index, low, high, lanes)


def _strong_shared(
    warp: CheckedFragment, ins: Instr, effect: Access, at: np.ndarray, lanes: np.ndarray, mask: int
):
    """Check a strong access of shared memory: a flag, which releases and acquires. Weak accesses
    conflict with it as with any other access.
    """
    write, agent = isinstance(effect, Stores), warp.observer.agent(warp)
    flags = agent.state.flags
    if not write:
        agent.hearing, agent.lanes = part_of(warp, mask, ins), mask
        flags.read(agent, ins, effect, at)
        agent.hearing = None
    shared_access(warp, ins, at, effect.nbytes, write, lanes, "strong")
    if write:
        flags.write(agent, ins, effect, at, mask, joins=False)
