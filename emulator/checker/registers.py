"""Registers that tcgen05.ld fills later: they may be read behind tcgen05.wait::ld only (PTX ISA
9.7.16.8).

Which instructions could read one too early is found before the kernel runs, on its control flow;
whether they do is seen when they are executed. A kernel that waits in time has none and pays
nothing.
"""

from __future__ import annotations

from ..analysis import EXIT, Block, Op
from ..program import Instr

State = dict[str, frozenset]  # register -> ids of the loads that may still fill it


def early_reads(blocks: list[Block]) -> dict[int, tuple[Instr, ...]]:
    """id of an instruction -> the tcgen05.ld whose registers it reads with no tcgen05.wait::ld on
    some path between.
    """
    loads = {id(op.ins): op.ins for block in blocks for op in block.ops if _is_load(op)}
    found: dict[int, frozenset] = {}
    states: list[State] = [{} for _ in blocks]
    work = [b.index for b in blocks if any(map(_is_load, b.ops))]
    while work:
        index = work.pop()
        after = _through(blocks[index], states[index], found)
        for successor in blocks[index].successors:
            if successor != EXIT and _merge(states[successor], after):
                work.append(successor)
    return {key: tuple(loads[i] for i in sorted(early)) for key, early in found.items()}


def _is_load(op: Op) -> bool:
    return op.ins.mods[:2] == ("tcgen05", "ld")


def _merge(state: State, other: State) -> bool:
    """Add what another path leaves open; whether anything is new."""
    changed = False
    for register, loads in other.items():
        have = state.get(register, frozenset())
        if not loads <= have:
            state[register], changed = have | loads, True
    return changed


def _through(block: Block, before: State, found: dict[int, frozenset]) -> State:
    """The state behind a block. A move hands an open register on and is no use of it."""
    state = dict(before)
    for op in block.ops:
        if op.ins.mods[:2] == ("tcgen05", "wait::ld"):
            state.clear()
            continue
        left = frozenset((id(op.ins),)) if _is_load(op) else _open(state, op)
        if left and not _is_load(op) and op.ins.mods[0] != "mov":
            found[id(op.ins)] = found.get(id(op.ins), frozenset()) | left
            left = frozenset()
        for register in op.dsts:
            if left:
                state[register.name] = left
            elif op.ins.pred is None:
                state.pop(register.name, None)
    return state


def _open(state: State, op: Op) -> frozenset:
    """Loads that may still fill what an instruction reads. A guarded one keeps its destination."""
    if not state:
        return frozenset()
    kept = {r.name for r in op.dsts} if op.ins.pred is not None else ()
    read = (state.get(r.name, frozenset()) for r in op.srcs if r.name not in kept)
    return frozenset().union(*read)
