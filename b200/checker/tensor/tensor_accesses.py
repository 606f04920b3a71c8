"""Observes allocations, loads and stores of tensor memory, around the run functions of instructions
(steps.py: rule, observes). And a reader of a register that tcgen05.ld fills must wait for the load
(PTX ISA 9.7.16.6): see `first_reads`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from b200.checker.accesses import Record
from b200.checker.agent import Agent
from b200.checker.memory.parts import of_first_lane
from b200.checker.observer import Observer
from b200.checker.steps import Call, all_operands, observes, rule
from b200.checker.tensor import pairs
from b200.checker.tensor.tensor_shadow import halves_of
from b200.checker.vector_clocks import HB
from b200.chip.fragment import Fragment
from b200.chip.tensor.tmem import TmemAccess, split
from b200.effects import (
    AllocatesTensor,
    FencesTensor,
    FreesTensor,
    Moves,
    TensorLoads,
    TensorStores,
    WaitsForTensor,
)
from b200.hardware import OFFSET_MASK
from b200.program.analysis import EXIT, Block, Op
from b200.program.module import Instr
from b200.registry import LaneValues, Run

if TYPE_CHECKING:
    from b200.checker.checked import CheckedFragment


@observes(AllocatesTensor, look=all_operands)
def alloc(
    call: Call[AllocatesTensor], warp: CheckedFragment, mask: int, *operands: LaneValues
) -> None:
    observer, pair = warp.observer, call.effect.pair
    if pair:
        pairs.allocates(observer, observer.agent(warp))
    call.run(warp, mask, *operands)
    address, columns = (of_first_lane(mask, x) for x in operands)
    _allocated(observer, warp, address, columns, pair)


@observes(FreesTensor, look=all_operands)
def dealloc(
    call: Call[FreesTensor], warp: CheckedFragment, mask: int, *operands: LaneValues
) -> None:
    call.run(warp, mask, *operands)
    first, columns = (of_first_lane(mask, x) for x in operands)
    _freed(warp.observer, warp, first, columns, call.effect.pair)


def _allocated(observer: Observer, warp: Fragment, address: int, columns: int, pair: bool) -> None:
    """tcgen05.alloc has handed out columns: they are the CTA's latest allocation of this size."""
    agent, cta = observer.agent(warp), warp.cta
    text = f"allocates {columns} columns of tensor memory"
    record = Record.of_warp(agent, observer.ins, text)
    first = _slot(observer, agent, address)
    agent.state.allocations[cta.rank, first] = record
    if pair:
        pairs.allocated(record, first)
    observer.tensor(cta).allocated(slice(first, first + columns))


def _slot(observer: Observer, agent: Agent, address: int) -> int:
    """Read the address that tcgen05.alloc has written to shared memory, and record that write."""
    word = (address & OFFSET_MASK) // 4
    record = Record.of_warp(agent, observer.ins, "writes the address of tensor memory")
    agent.state.add(record)
    record.turn = -1  # the instruction itself brings the lanes together
    observer.shared(agent.cta).generic_write(record, np.array([word]), word, word, 0)
    return int(agent.cta.smem.u32[word])


def _freed(observer: Observer, warp: Fragment, first: int, columns: int, pair: bool) -> None:
    agent, cta = observer.agent(warp), warp.cta
    text = f"frees {columns} columns of tensor memory"
    record = Record.of_warp(agent, observer.ins, text, "dealloc")
    agent.state.add(record)
    place = slice(first, first + columns)
    if pair:
        pairs.frees(observer, record, first)
        pairs.uses(observer, record, place)
    observer.tensor(cta).freed(record, place)


def _place_of_tensor_access(ins: Instr):
    """The step of a tensor memory access (steps.py): all operands but registers to be stored."""
    everything = all_operands(ins)
    if isinstance(ins.effect, TensorLoads):
        return everything
    return lambda warp, mask, args: everything(warp, mask, args[:-1])


@rule(TensorLoads, TensorStores, look=_place_of_tensor_access)
def tensor_access(ins: Instr, effect: TensorLoads | TensorStores, run: Run) -> Run:
    """Observe tcgen05.ld and tcgen05.st."""
    is_load = isinstance(effect, TensorLoads)
    access = TmemAccess(ins, ins.operands[0 if is_load else -1], effect.packed)
    height = 32 if access.shape == "32x32b" else 16
    kind, stream_name = ("load", "tmem_load") if is_load else ("store", "tmem_store")

    def observed(warp: CheckedFragment, mask: int, taddr: LaneValues, *rest: Any):
        observer = warp.observer
        result = run(warp, mask, taddr, *rest)
        second = rest[0] if (is_load and rest) or len(rest) == 2 else 0
        row, column = split(of_first_lane(mask, taddr))
        row = 32 * (warp.index % 4) + row % 32
        spans = access.spans(column, second)
        agent = observer.agent(warp)
        stream = agent.stream(stream_name)
        places = " and ".join(f"[{columns.start}, {columns.stop})" for columns in spans)
        text = f"{'reads' if is_load else 'writes'} tensor-memory columns {places}"
        record = Record(agent, ins, stream.component, stream.next(), kind, text)
        agent.state.add(record)
        rules = observer.tensor(warp.cta)
        if is_load:
            agent.roles.add("epilogue")
            agent.loads[id(ins)] = record
        for columns in spans:
            if is_load:
                rules.read(record, halves_of(row, height), columns, partly=True)
            else:
                rules.write(record, halves_of(row, height), columns)
        return result

    return observed


@observes(WaitsForTensor, look=all_operands)
def wait(call: Call[WaitsForTensor], warp: CheckedFragment, mask: int) -> None:
    """Observe tcgen05.wait: the warp's own loads or stores of tensor memory are complete."""
    call.run(warp, mask)
    agent = warp.observer.agent(warp)
    stream = agent.stream("tmem_load" if call.effect.loads else "tmem_store")
    agent.learn(stream.component, stream.issued)


def registers_read(warp: CheckedFragment, loads: tuple) -> None:
    """An instruction reads registers that tcgen05.ld fill: those loads are now complete."""
    observer = warp.observer
    trail = observer.trail
    if trail is not None:
        trail.step(("registers", id(loads), warp.cta.rank, warp.index))
        if trail.follows:
            return
    agent = observer.agent(warp)
    for load in loads:
        record = agent.loads.get(id(load))
        if record is not None and not agent.knows(HB, record.component, record.step):
            agent.learn(record.component, record.step)


LoadsInFlight = dict[str, frozenset]  # register -> ids of the loads that may still fill it


def first_reads(blocks: list[Block]) -> dict[int, tuple[Instr, ...]]:
    """id of an instruction -> the tcgen05.ld instructions whose registers it reads first: on
    some path between there is no tcgen05.wait::ld and no other reader. Empty for kernels with
    tcgen05 fences, which must execute tcgen05.wait::ld (vector_clocks.py).

    Compiled public kernels without these fences rely on that register dependency in place of
    tcgen05.wait::ld: it tells them that they may write or hand over the columns that they have
    read. The checker assumes that the loads of a warp complete in order.
    """
    ops = [op for block in blocks for op in block.ops]
    loads = {id(op.ins): op.ins for op in ops if _is_load(op)}
    if any(isinstance(op.ins.effect, FencesTensor) for op in ops):
        return {}
    found: dict[int, frozenset] = {}
    states: list[LoadsInFlight] = [{} for _ in blocks]
    work = [b.index for b in blocks if any(map(_is_load, b.ops))]
    while work:
        index = work.pop()
        after = _through(blocks[index], states[index], found)
        for successor in blocks[index].successors:
            if successor != EXIT and _merge(states[successor], after):
                work.append(successor)
    return {key: tuple(loads[i] for i in sorted(read)) for key, read in found.items()}


def _is_load(op: Op) -> bool:
    return isinstance(op.ins.effect, TensorLoads)


def _merge(state: LoadsInFlight, other: LoadsInFlight) -> bool:
    """Add the loads that another path leaves open to `state`. Returns whether any is new."""
    changed = False
    for register, loads in other.items():
        have = state.get(register, frozenset())
        if not loads <= have:
            state[register], changed = have | loads, True
    return changed


def _through(block: Block, before: LoadsInFlight, found: dict[int, frozenset]) -> LoadsInFlight:
    """The state after a block. A move passes an open register on and is no read of it."""
    state = dict(before)
    for op in block.ops:
        effect = op.ins.effect
        if isinstance(effect, WaitsForTensor) and effect.loads:
            state.clear()
            continue
        read = frozenset().union(*(state.get(r.name, ()) for r in op.srcs)) if state else ()
        left = frozenset((id(op.ins),)) if _is_load(op) else frozenset(read)
        if left and not _is_load(op) and not isinstance(effect, Moves):
            found[id(op.ins)] = found.get(id(op.ins), frozenset()) | left
            state = {r: rest for r, loads in state.items() if (rest := loads - left)}
            left = frozenset()
        for register in op.dsts:
            if left:
                state[register.name] = left
            elif op.ins.pred is None:
                state.pop(register.name, None)
    return state
