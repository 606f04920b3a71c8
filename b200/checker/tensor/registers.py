"""Rule: a reader of a register that tcgen05.ld fills must wait for the load (PTX ISA 9.7.16.6).

Compiled public kernels without tcgen05 fences rely on that register dependency in place of
tcgen05.wait::ld: it tells them that they may write or hand over the columns that they have read. A
kernel with fences must execute tcgen05.wait::ld (see vector_clocks.py). A look at the control flow,
before the kernel runs, finds the instructions that read such a register first. The checker assumes
that the loads of a warp complete in order.
"""

from __future__ import annotations

from b200.effects import FencesTensor, Moves, TensorLoads, WaitsForTensor
from b200.program.analysis import EXIT, Block, Op
from b200.program.module import Instr

State = dict[str, frozenset]  # register -> ids of the loads that may still fill it


def first_reads(blocks: list[Block]) -> dict[int, tuple[Instr, ...]]:
    """id of an instruction -> the tcgen05.ld instructions whose registers it reads first: on
    some path between there is no tcgen05.wait::ld and no other reader. Empty for kernels with
    tcgen05 fences.
    """
    ops = [op for block in blocks for op in block.ops]
    loads = {id(op.ins): op.ins for op in ops if _is_load(op)}
    if any(isinstance(op.ins.effect, FencesTensor) for op in ops):
        return {}
    found: dict[int, frozenset] = {}
    states: list[State] = [{} for _ in blocks]
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


def _merge(state: State, other: State) -> bool:
    """Add the loads that another path leaves open to `state`. Returns whether any is new."""
    changed = False
    for register, loads in other.items():
        have = state.get(register, frozenset())
        if not loads <= have:
            state[register], changed = have | loads, True
    return changed


def _through(block: Block, before: State, found: dict[int, frozenset]) -> State:
    """The state after a block. A move passes an open register on and does not count as a read
    of it.
    """
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
