"""Bytes that a hung mbarrier waits for: what was announced, what came, and where the rest went."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from b200.chip.sync.barrier_record import BarrierHistory
from b200.chip.sync.mbarrier import MBarrier
from b200.program.module import Instr

if TYPE_CHECKING:
    from b200.chip.machine import Machine


def wrong_bytes(b: MBarrier) -> str:
    """Why the bytes of a phase never add up."""
    if b.pending == 0 and b.tx > 0:
        return (
            "more bytes were announced by expect_tx than the copies of the phase bring, "
            f"{b.tx} too many"
        )
    if b.pending == 0:
        return (
            f"the copies of the phase bring more bytes than expect_tx announced, {-b.tx} too many"
        )
    return (
        f"copies have brought {-b.tx} bytes that no expect_tx announced in this phase: an "
        "expect_tx is missing or too small, so an earlier phase ended before all its bytes were "
        "there"
    )


def announced_and_brought(machine: Machine, b: MBarrier) -> tuple[str, ...]:
    """What was announced and brought last, a line each."""
    history = machine.barrier_history(b)
    if history is None:
        return ()
    return (
        f"announced: {_sums(history.announced) or 'nothing'}",
        f"brought: {_sums(history.brought) or 'nothing'}",
        *_of_peers(machine, b, history),
    )


def _of_peers(machine: Machine, b: MBarrier, history: BarrierHistory) -> list[str]:
    """Where an mbarrier lacks bytes: what copies have brought to the one in the same place of other
    CTAs of the cluster, by instructions that have brought nothing here.
    """
    found: list[str] = []
    here = {id(ins) for ins, _ in history.brought}
    for cta in b.cta.cluster.ctas if b.tx > 0 else ():
        peer = cta.mbarriers.get(b.offset) if cta is not b.cta else None
        other = machine.barrier_history(peer) if peer is not None else None
        brought = [step for step in other.brought if id(step[0]) not in here] if other else []
        if brought:
            found.append(
                f"CTA rank {cta.rank} has its own mbarrier there: brought {_sums(brought)}, to "
                f"that CTA and not to rank {b.cta.rank}; do both take the same branch?"
            )
    return found


def _sums(steps: Sequence[tuple[Instr, int]]) -> str:
    """ "16384 + 2048 bytes at FILE:3": bytes in the order in which they came, by the line."""
    found: dict[str, list[str]] = {}
    for ins, nbytes in steps[-4:]:
        found.setdefault(str(ins.loc), []).append(str(nbytes))
    return ", ".join(f"{' + '.join(parts)} bytes at {loc}" for loc, parts in found.items())
