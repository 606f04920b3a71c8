"""The order in which ptxas issues the instructions of a block.

PTX has the order of the source, and ptxas another one. Weak loads go to the front as soon as their
addresses are ready, and what waits for a load stands behind what does not. The SASS of ptxas 13.0
for sm_100a shows these rules:

*   A weak load passes arithmetic, shuffles and other weak loads. It passes a store only where the
    two cannot meet: in another state space, as ld.global.nc, or at another offset from the same
    register. Atomics and volatile accesses keep their place among accesses, not among arithmetic.
*   Nothing here passes a barrier, a fence, an asynchronous copy, an instruction of tensor memory or
    a reading of a clock; nor a division, reciprocal or root that branches to a slow path.
*   Loads go ahead while registers last: `register_limit`, `chosen_limit`. Spilling is not modelled.

So two sources with the same SASS, of which one has loads and uses by turns and the other all loads
first, take the same time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from b200 import effects as e
from b200.clock import costs
from b200.clock.list_schedule import Latency, ScheduleNode, least_registers, schedule
from b200.hardware import SM_REGISTERS, SM_THREADS
from b200.program.analysis import Block, Op, is_broadcast
from b200.program.module import CLOCKS, Addr, Kernel, Reg, Special

FULL_SM = 32  # registers of a thread with which an SM takes all its threads
MOST, STEP = 255, 8
KEPT = 4  # no result of a load goes there: of 32 registers 24 or 25 take one, of 64 54
WITHOUT_MEMORY = (e.Elects, e.LooksAtLanes, e.MultipliesInWarp, e.Transposes)
ARITHMETIC, LOAD, STORE, SHUFFLE, ORDERED, FENCE = range(6)
MATRIX_BYTES = 128  # of a row of ldmatrix.x4 and stmatrix.x4: more than they touch from an address


def register_limit(kernel: Kernel) -> int | None:
    """Registers that a kernel gives a thread, by .maxnreg, or by .minnctapersm with a number of
    threads. None: ptxas chooses.
    """
    given = kernel.directives
    threads = _threads(kernel)
    if "maxnreg" in given:
        return min(MOST, given["maxnreg"][0])
    if "minnctapersm" in given and threads:
        return _registers_of(threads, max(1, given["minnctapersm"][0]))
    return None


def chosen_limit(kernel: Kernel, needed: float) -> int:
    """Registers that ptxas gives a thread where it chooses: as many as fit the most CTAs that an SM
    takes with those that are needed. 32 are given in any case.

    SASS of ptxas 13.0: 300 loads, each with its sum, have 25 under way in 32 registers. A loop with
    40 sums and 32 loads takes 53 registers and has 6 under way; in CTAs of 256 threads, of which
    four fit with 64 registers, 9.
    """
    threads = _threads(kernel) or 32
    ctas = max(1, SM_THREADS // (-(-threads // 32) * 32))
    while ctas > 1 and _registers_of(threads, ctas) < needed + KEPT:
        ctas -= 1
    return max(FULL_SM, _registers_of(threads, ctas))


def _threads(kernel: Kernel) -> int:
    given = kernel.directives
    return math.prod(given.get("reqntid") or given.get("maxntid") or (0,))


def _registers_of(threads: int, ctas: int) -> int:
    """Registers of a thread with which so many CTAs fit an SM."""
    return min(MOST, SM_REGISTERS // (-(-threads // 32) * 32 * ctas) // STEP * STEP)


class PtxasOrder:
    """Puts the instructions of a kernel's blocks into the order of ptxas.

    late: registers that may hold the result of a load under way. words: how many 32-bit registers
    of a thread a register takes. in_place: whether the translator carries an instruction out
    itself. live_out: registers that later blocks read.
    """

    def __init__(
        self,
        kernel: Kernel,
        blocks: list[Block],
        late: set[str],
        words: Callable[[str], float],
        in_place: Callable[[Op], bool],
        live_out: Callable[[Block], Iterable[str]],
    ):
        self.late, self.words, self.in_place, self.live_out = late, words, in_place, live_out
        limit = register_limit(kernel)
        if limit is None:
            limit = chosen_limit(kernel, max(map(self._needed, blocks)))
        self.limit = limit - KEPT

    def arrange(self, block: Block) -> list[Op]:
        """The instructions of a block, without its branch."""
        found = [
            [n.op for n in schedule(nodes, self.words, live, self.limit)] if moves else ops
            for ops, nodes, live, moves in self._segments(block)
        ]
        return [op for ops in reversed(found) for op in ops]

    def _needed(self, block: Block) -> float:
        moving = (found for found in self._segments(block) if found[3])
        return max((least_registers(n, self.words, live) for _, n, live, _ in moving), default=0.0)

    def _segments(
        self, block: Block
    ) -> Iterator[tuple[list[Op], list[ScheduleNode], set[str], bool]]:
        """The instructions between those that nothing passes, and these by themselves, the last
        first; the registers that are live after them; and whether any of them moves.
        """
        branch = block.ops[-1] if block.ops[-1].entry is None else None
        ops = block.ops if branch is None else block.ops[:-1]
        kinds = [self._kind(op) for op in ops]
        live = set(self.live_out(block))
        live.update(r.name for r in (branch.srcs if branch is not None else ()))
        for segment in reversed(_cut(kinds)):
            those = [ops[i] for i in segment]
            moves = any(kinds[i] in (LOAD, SHUFFLE, ORDERED) for i in segment[1:])
            nodes = self._nodes(those, [kinds[i] for i in segment]) if moves else []
            yield those, nodes, live, moves
            live = set(live)
            for op in reversed(those):
                live.difference_update(r.name for r in op.dsts)
                live.update(r.name for r in op.srcs)

    def _kind(self, op: Op) -> int:
        ins = op.ins
        reads_clock = any(isinstance(o, Special) and o.name in CLOCKS for o in ins.operands)
        if op.entry is None or reads_clock or costs.has_slow_path(ins):
            return FENCE
        effect = ins.effect
        if op.entry.style == "pure" or isinstance(effect, WITHOUT_MEMORY):
            return ARITHMETIC
        if costs.is_parameter(ins) or is_broadcast(ins) or self.in_place(op):
            return ARITHMETIC
        if isinstance(effect, e.Exchanges):
            return SHUFFLE
        if not isinstance(effect, e.Access):
            return FENCE
        if effect.strong:
            return ORDERED
        return LOAD if isinstance(effect, (e.Loads, e.MatrixLoads)) else STORE

    def _nodes(self, ops: list[Op], kinds: list[int]) -> list[ScheduleNode]:
        nodes = [
            ScheduleNode(i, op, self._latency(op, kind))
            for i, (op, kind) in enumerate(zip(ops, kinds, strict=True))
        ]
        _link_registers(nodes, self.late)
        _link_memory(nodes, kinds)
        for node in reversed(nodes):
            node.ahead = _is_load(node.op, kinds[node.index]) or any(
                result and nodes[i].ahead for i, result in node.then.items()
            )
        return nodes

    @staticmethod
    def _latency(op: Op, kind: int) -> Latency:
        if costs.is_copy(op.ins):
            return Latency.NONE
        if kind == SHUFFLE:
            return Latency.SHUFFLE
        if kind == ARITHMETIC or not op.dsts:
            return Latency.ARITHMETIC
        effect = op.ins.effect
        assert isinstance(effect, e.Access)
        near = isinstance(effect, e.MatrixLoads) or effect.space.startswith("shared")
        return Latency.SHARED if near else Latency.GLOBAL


def _is_load(op: Op, kind: int) -> bool:
    return kind in (LOAD, SHUFFLE) or kind == ORDERED and isinstance(op.ins.effect, e.Loads)


def _cut(kinds: list[int]) -> list[list[int]]:
    """Numbers of the instructions between those that nothing passes, and these by themselves."""
    found: list[list[int]] = [[]]
    for i, kind in enumerate(kinds):
        if kind == FENCE:
            found += [[i], []]
        else:
            found[-1].append(i)
    return [segment for segment in found if segment]


# --- what must come before what -------------------------------------------------------------------
def _link_registers(nodes: list[ScheduleNode], late: set[str]) -> None:
    """A result comes before its readers; readers and writers of a register before its next one."""
    wrote: dict[str, ScheduleNode] = {}
    read: dict[str, list[ScheduleNode]] = {}
    for node in nodes:
        for register in node.op.srcs:
            if register.name in wrote:
                wrote[register.name].before(node, result=True)
            elif register.name in late:
                node.late = True
            read.setdefault(register.name, []).append(node)
        for register in node.op.dsts:
            for other in read.pop(register.name, ()):
                other.before(node)
            if register.name in wrote:
                wrote[register.name].before(node)
            wrote[register.name] = node


@dataclass(frozen=True)
class AddressRange:
    """What a load or store touches: its space, and [first, end) from a register as it is in one of
    its versions; no register: any place. constant: nobody stores there while the kernel runs.
    """

    space: str
    register: tuple[str, int] | None
    first: int
    end: int
    constant: bool

    def meets(self, store: AddressRange) -> bool:
        if self.constant:
            return False
        if self.space != store.space:
            return "generic" in (self.space, store.space)
        if self.register is not None and self.register == store.register:
            return self.first < store.end and store.first < self.end
        return True


def _touch(op: Op, versions: dict[str, int]) -> AddressRange:
    ins = op.ins
    effect = ins.effect
    assert isinstance(effect, e.Access)
    matrix = isinstance(effect, (e.MatrixLoads, e.MatrixStores))
    space = "shared" if matrix else effect.space.split("::")[0]
    constant = isinstance(effect, e.Loads) and effect.constant
    address = next((o for o in ins.operands if isinstance(o, Addr)), None)
    if address is None or not isinstance(address.base, Reg):
        return AddressRange(space, None, 0, 0, constant)
    name = address.base.name
    end = address.offset + (MATRIX_BYTES if matrix else effect.nbytes)
    return AddressRange(space, (name, versions.get(name, 0)), address.offset, end, constant)


@dataclass
class _Since:
    """Loads and stores since the last ordered access, and that access."""

    ordered: ScheduleNode | None = None
    loads: list[tuple[ScheduleNode, AddressRange]] = field(
        default_factory=list[tuple["ScheduleNode", "AddressRange"]]
    )
    stores: list[tuple[ScheduleNode, AddressRange]] = field(
        default_factory=list[tuple["ScheduleNode", "AddressRange"]]
    )


def _link_memory(nodes: list[ScheduleNode], kinds: list[int]) -> None:
    """Accesses that may meet keep their order; ordered ones keep it among all."""
    versions: dict[str, int] = {}
    since = _Since()
    for node, kind in zip(nodes, kinds, strict=True):
        if kind in (LOAD, STORE, ORDERED):
            since = _follow(since, node, kind, _touch(node.op, versions))
        for register in node.op.dsts:
            versions[register.name] = versions.get(register.name, 0) + 1


def _follow(since: _Since, node: ScheduleNode, kind: int, access: AddressRange) -> _Since:
    if since.ordered is not None:
        since.ordered.before(node)
    if kind == ORDERED:
        for other, _ in (*since.loads, *since.stores):
            other.before(node)
        return _Since(node)
    if kind == LOAD:
        for other, store in since.stores:
            if access.meets(store):
                other.before(node)
        since.loads.append((node, access))
        return since
    for other, load in since.loads:
        if load.meets(access):
            other.before(node)
    if since.stores:
        since.stores[-1][0].before(node)
    since.stores.append((node, access))
    return since
