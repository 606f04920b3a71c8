"""Strong accesses of one word of shared memory: all strong writes since the latest weak one, that
one itself, and who has read what they left.
"""

from __future__ import annotations

import numpy as np

from b200.checker import words
from b200.checker.accesses import ClusterState, Record
from b200.checker.agent import Agent
from b200.checker.memory.release_acquire import tells
from b200.checker.streams import NEVER
from b200.checker.vector_clocks import GPU, HB, distance, scope_of
from b200.chip.describe import mnemonic

# No conflict among themselves. red.async is a relaxed one of cluster scope (PTX ISA 9.7.13.7).
STRONG = ("atomic", "strong", "red.async")
# Nor do these: each addition of cp.reduce.async.bulk is a relaxed one (9.7.9.25.4.2).
REDUCES = ("bulk_reduce",)


def reach(new: Record, old: Record) -> bool:
    """Whether the scopes of two strong accesses include each other's thread (PTX ISA 8.7)."""
    scope = min(scope_of(new.ins, GPU), scope_of(old.ins, GPU))
    return scope >= distance(new.agent.cta, old.agent.cta)


def narrow(new: Record, old: Record) -> str:
    """What two strong accesses lack whose scopes do not reach, in words."""
    one = new if scope_of(new.ins, GPU) <= scope_of(old.ins, GPU) else old
    return (
        f"missing: .cluster for the {mnemonic(one.ins)} at {words.line(one.ins)}, by "
        f"{words.name(one.agent)}: its scope does not reach the other CTA"
    )


def observed(agent: Agent, old: Record) -> bool:
    """Whether a strong read that has received `old` is before what `agent` does now. Then `old` is,
    too, though nothing has released it (PTX ISA 8.9.4, causality order).
    """
    return any(
        reader.agent is agent or agent.knows(HB, reader.component, reader.epoch)
        for reader in old.readers
    )


class Atomics:
    """The writes of one CTA's shared memory that do not conflict among themselves. kinds: of these.
    words: word, or granule, -> the record of another write beneath them, then theirs, of each warp
    the latest one, of its asynchronous ones one an mbarrier.
    """

    def __init__(self, state: ClusterState, kinds: tuple[str, ...]):
        self.state, self.kinds = state, kinds
        self.words: dict[int, list[Record]] = {}

    def add(self, new: Record, index: np.ndarray | slice, stored: np.ndarray) -> None:
        """A write of these kinds. stored: the records of the latest writes there."""
        records = self.state.records
        for word, number in zip(_numbers(index), stored.reshape(-1).tolist()):
            before = records[number] if number else None
            others = self.words.get(word, ())
            if before is None or before.kind not in self.kinds:
                others = () if before is None else (before,)
            kept = (r for r in others if r.kind not in self.kinds or not _implies(new, r))
            self.words[word] = [*kept, new]

    def also(self, numbers: tuple, index: np.ndarray | slice, stored: np.ndarray) -> tuple:
        """The latest writes of some words; of those of these kinds, also all that lie beneath."""
        if not self.words:
            return numbers
        records = self.state.records
        strong = {n for n in numbers if n and records[n].kind in self.kinds}
        if not strong:
            return numbers
        found = dict.fromkeys(numbers)
        for word, number in zip(_numbers(index), stored.reshape(-1).tolist()):
            if number in strong:
                found.update((r.number, None) for r in self.words.get(word, ()))
        return tuple(found)

    def received(self, new: Record, numbers: tuple) -> None:
        """A strong read receives strong writes of other warps that are there."""
        if not tells(new.ins):
            return
        for number in numbers:
            old: Record | None = self.state.records[number] if number else None
            if old is None or old.kind not in STRONG or old.agent is new.agent:
                continue
            if old.step == NEVER:
                continue
            if reach(new, old) and all(r.agent is not new.agent for r in old.readers):
                old.readers.append(new)


def _implies(new: Record, old: Record) -> bool:
    """Whether a strong write of a word is complete no earlier than one before it."""
    return new.agent is old.agent and new.component == old.component


def _numbers(index: np.ndarray | slice) -> list[int]:
    if isinstance(index, slice):
        return list(range(index.start, index.stop))
    return index.reshape(-1).tolist()
