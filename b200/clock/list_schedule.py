"""List scheduling of instructions within registers (Gibbons and Muchnick, 1986).

At each step comes the first instruction, in the order of the source, whose operands are expected to
be there: a load or shuffle, or what one of these needs, before all others. Where its result finds
no register, what frees most comes first.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from heapq import heappop, heappush

from b200.program.analysis import Op

LOOK_AT = 16  # instructions among which the one that frees most registers is looked for, twice


class Latency(IntEnum):
    """clk until a result is expected: only the order of those that wait depends on it."""

    NONE = 0
    ARITHMETIC = 4
    SHUFFLE = 24
    SHARED = 30
    GLOBAL = 300


BEFORE = Latency.SHARED  # of a load of an earlier block


@dataclass(eq=False)
class ScheduleNode:
    """An instruction. index: its place in the source. needs: how many must come before it. then:
    the places of those that come after it, and whether they read its result. late: whether it reads
    the result of an earlier block's load. ahead: whether it is a load or shuffle, or one needs it.
    """

    index: int
    op: Op
    latency: Latency
    needs: int = 0
    then: dict[int, bool] = field(default_factory=dict[int, bool])
    late: bool = False
    ahead: bool = False

    def before(self, other: ScheduleNode, result: bool = False) -> None:
        """Let another come after this one. result: it reads what this one gives."""
        if other is self:
            return
        if other.index not in self.then:
            other.needs += 1
        self.then[other.index] = result or self.then.get(other.index, False)


RegisterVersion = tuple[str, int]  # of a register, between two instructions that write it


class Registers:
    """Values that are live while instructions are issued. words: the size of a register; after:
    registers that are read later on.
    """

    def __init__(self, nodes: list[ScheduleNode], words: Callable[[str], float], after: set[str]):
        self.reads: list[set[RegisterVersion]] = []
        self.writes: list[list[RegisterVersion]] = []
        version: dict[str, int] = {}
        for node in nodes:
            self.reads.append({(r.name, version.get(r.name, 0)) for r in node.op.srcs})
            version.update((r.name, version.get(r.name, 0) + 1) for r in node.op.dsts)
            self.writes.append([(r.name, version[r.name]) for r in node.op.dsts])
        self.readers = Counter(value for values in self.reads for value in values)
        self.readers.update((name, version.get(name, 0)) for name in after)
        self.size = {value: words(value[0]) for value in self.readers}
        self.taken = sum(size for (_, version), size in self.size.items() if not version)
        self.most = self.taken

    def more(self, place: int) -> float:
        """How many registers more are live after an instruction."""
        begin = sum(self.size.get(value, 0.0) for value in self.writes[place])
        return begin - sum(self.size[v] for v in self.reads[place] if self.readers[v] == 1)

    def issue(self, place: int) -> None:
        self.taken += self.more(place)
        self.most = max(self.most, self.taken)
        self.readers.subtract(self.reads[place])


class ReadyPool:
    """Places of instructions that may be issued."""

    def __init__(self):
        self.sorted: list[int] = []
        self.newest: list[int] = []  # as they came; those that are gone stay

    def __bool__(self) -> bool:
        return bool(self.sorted)

    def add(self, place: int) -> None:
        insort(self.sorted, place)
        self.newest.append(place)

    def first(self) -> int:
        return self.sorted[0]

    def take_first(self) -> int:
        return self.sorted.pop(0)

    def take_cheapest(self, registers: Registers) -> int:
        """Which frees most registers, of the first and of those that came last."""
        looked_at = self.sorted[:LOOK_AT]
        looked_at += [p for p in reversed(self.newest[-LOOK_AT:]) if self._at(p) is not None]
        chosen = min(looked_at, key=lambda place: (registers.more(place), place))
        at = self._at(chosen)
        assert at is not None
        return self.sorted.pop(at)

    def _at(self, place: int) -> int | None:
        at = bisect_left(self.sorted, place)
        return at if at < len(self.sorted) and self.sorted[at] == place else None


def least_registers(
    nodes: list[ScheduleNode], words: Callable[[str], float], after: set[str]
) -> float:
    """Registers within which the nodes can be issued: the best of three orders, that of the source,
    one that goes from results to what they need, and a greedy one.
    """
    orders = (range(len(nodes)), _depth_first(nodes))
    found = [_most(order, Registers(nodes, words, after)) for order in orders]
    return min(*found, _greedy(nodes, Registers(nodes, words, after)))


def _most(order: Iterable[int], registers: Registers) -> float:
    for place in order:
        registers.issue(place)
    return registers.most


def _depth_first(nodes: list[ScheduleNode]) -> list[int]:
    """Each result that nothing here reads, after all that it needs and that has not been issued."""
    before: list[list[int]] = [[] for _ in nodes]
    for node in nodes:
        for place in node.then:
            before[place].append(node.index)
    found: list[int] = []
    seen = [False] * len(nodes)
    for sink in (node.index for node in nodes if not any(node.then.values())):
        stack = [(sink, False)]
        while stack:
            place, ready = stack.pop()
            if ready:
                found.append(place)
            elif not seen[place]:
                seen[place] = True
                stack.append((place, True))
                stack += [(p, False) for p in sorted(before[place], reverse=True) if not seen[p]]
    return found


def _greedy(nodes: list[ScheduleNode], registers: Registers) -> float:
    """Of what may be issued, always the instruction that frees most."""
    needs = [node.needs for node in nodes]
    there = ReadyPool()
    for node in nodes:
        if not node.needs:
            there.add(node.index)
    while there:
        node = nodes[there.take_cheapest(registers)]
        registers.issue(node.index)
        for place in node.then:
            needs[place] -= 1
            if not needs[place]:
                there.add(place)
    return registers.most


def schedule(
    nodes: list[ScheduleNode], words: Callable[[str], float], after: set[str], limit: float
) -> list[ScheduleNode]:
    """The nodes in the order in which they are issued. words: the size of a register. after:
    registers that are read later on. limit: registers within which loads go ahead.
    """
    registers = Registers(nodes, words, after)
    needs = [node.needs for node in nodes]
    ready = [float(BEFORE) if node.late else 0.0 for node in nodes]
    ahead, rest = ReadyPool(), ReadyPool()
    later: list[tuple[float, int]] = []  # when the operands are expected, and the place

    def offer(place: int) -> None:
        copies = nodes[place].latency == Latency.NONE  # issued at once, it hands the wait on
        heappush(later, (0.0 if copies else ready[place], place))

    for node in nodes:
        if not node.needs:
            offer(node.index)
    found: list[ScheduleNode] = []
    clock = 0.0
    while len(found) < len(nodes):
        while later and later[0][0] <= clock:
            place = heappop(later)[1]
            (ahead if nodes[place].ahead else rest).add(place)
        if ahead and _fits(ahead.first(), registers, limit):
            node = nodes[ahead.take_first()]
        elif rest:
            node = nodes[rest.take_cheapest(registers) if ahead else rest.take_first()]
        elif later:
            clock = later[0][0]
            continue
        else:
            node = nodes[ahead.take_first()]
        found.append(node)
        registers.issue(node.index)
        result_at = ready[node.index] if node.latency == Latency.NONE else clock + node.latency
        clock += 1
        for place, result in node.then.items():
            needs[place] -= 1
            if result:
                ready[place] = max(ready[place], result_at)
            if not needs[place]:
                offer(place)
    return found


def _fits(place: int, registers: Registers, limit: float) -> bool:
    more = registers.more(place)
    return more <= 0 or registers.taken + more <= limit
