"""Observes edits and copies of tensormaps, and fences for them.

Each function is a wrapper of instrument.py: `wrap(ins, effect, run)` returns an observed
function of the form of `run`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from b200.checker.barriers.fences import orders_memory
from b200.checker.memory.lane_acquires import part_of
from b200.checker.memory.parts import WINDOW, lane_addresses
from b200.checker.memory.shadow import ALL_LANES
from b200.checker.memory.shared_accesses import shared_access
from b200.checker.scopes import CTA, scope_of
from b200.checker.steps import rule
from b200.effects import EditsTensormap, FencesTensormap, PublishesTensormap
from b200.program.module import Instr
from b200.registry import Run

if TYPE_CHECKING:
    from b200.checker.checked import CheckedFragment


@rule(EditsTensormap)
def replace(ins: Instr, effect: EditsTensormap, run: Run) -> Run:
    """Observe tensormap.replace, which edits a tensormap in shared or global memory."""
    in_shared = effect.space == "shared"

    def observed(warp: CheckedFragment, lane: int, address: int, *operands):
        observer = warp.observer
        observer.ins = ins
        if not in_shared and address & WINDOW == 0:
            observer.unwritten.writes(np.array([address], np.int64), 128)
        result = run(warp, lane, address, *operands)
        if in_shared:
            shared_access(
                warp,
                ins,
                np.array([address], np.int64),
                128,
                True,
                ALL_LANES,
                text="edits a tensormap in shared memory",
            )
        elif address & WINDOW == 0:
            observer.globals.maps.edited(observer.agent(warp), address)
        return result

    return observed


@rule(PublishesTensormap)
def copy(ins: Instr, effect: PublishesTensormap, run: Run) -> Run:
    """Observe tensormap.cp_fenceproxy, which writes a tensormap in global memory, and then is a
    release fence of the tensormap proxy.
    """
    scope = scope_of(ins, CTA)

    def observed(warp: CheckedFragment, mask: int, dst, src, size):
        observer = warp.observer
        observer.ins = ins
        observer.unwritten.writes(lane_addresses(mask, dst), 128)
        result = run(warp, mask, dst, src, size)
        at = np.array([int(lane_addresses(mask, src)[0])], np.int64)
        shared_access(
            warp, ins, at, 128, False, ALL_LANES, text="copies a tensormap out of shared memory"
        )
        agent = observer.agent(warp)
        observer.globals.maps.edited(agent, int(lane_addresses(mask, dst)[0]))
        agent.fence_release(scope)
        return result

    return observed


@rule(FencesTensormap)
def fence(ins: Instr, effect: FencesTensormap, run: Run) -> Run:
    """Observe fence.proxy.tensormap::generic. A release one and relaxed writes behind it
    synchronise with relaxed reads and an acquire one behind these (PTX ISA 9.7.13.4).
    """
    scope = scope_of(ins, CTA)

    def observed(warp: CheckedFragment, lane: int, address: int | None = None, size: int = 128):
        run(warp, lane, address, size)
        observer = warp.observer
        agent = observer.agent(warp)
        agent.lanes = 1 << lane
        agent.lane_acquire = part_of(warp, agent.lanes, ins)
        orders_memory(observer, agent, agent.lanes, effect.order, scope)
        agent.lane_acquire = None
        if address is not None:
            observer.globals.maps.fenced(agent, address)

    return observed
