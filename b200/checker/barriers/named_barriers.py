"""Named barriers: a warp may use one again only if it is ordered after the previous use.

PTX ISA 9.7.13.1: a barrier may be used again once it is complete. A warp may arrive for the next
use without knowing of every arrival of the previous use. Its arrival may then be counted into the
previous use: two groups of warps share one number, or the count is lower than the threads that use
the barrier.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from b200.checker import words
from b200.checker.accesses import Meeting
from b200.checker.vector_clocks import HB

if TYPE_CHECKING:
    from b200.checker.agent import Agent
    from b200.checker.observer import Observer
    from b200.program.module import Instr


def arrived(
    observer: Observer,
    agent: Agent,
    ins: Instr,
    number: int,
    threads: int,
    now: Meeting,
    before: Meeting | None,
) -> None:
    """A warp arrives at barrier `number` for `threads` threads (0: all of the CTA)."""
    now.arrivals.append((agent, agent.epoch, ins, threads))
    late = (
        (other, where, count)
        for other, epoch, where, count in (before.arrivals if before is not None else ())
        if other is not agent and not agent.knows(HB, other.component, epoch)
    )
    if before is None or (first := next(late, None)) is None:
        return
    other, where, count = first
    users = {a for a, *_ in (*before.arrivals, *now.arrivals)}
    alone = len({i.text for _, _, i, _ in (*before.arrivals, *now.arrivals)}) == 1
    if where is ins or alone and threads:
        diagnosis = (
            f"barrier {number} of the CTA counts {threads} threads, but {32 * len(users)} or more "
            "use it at once"
        )
        missing = f"missing: a count of all threads that meet there, or a number for each {threads}"
    else:
        diagnosis = (
            f"barrier {number} of the CTA is used again with nothing to order it after the "
            "previous use"
        )
        missing = "missing: a number of its own for each group of warps, or a barrier between"
    this, there = words.line(ins), words.line(where)
    observer.found(
        "protocol",
        diagnosis,
        f"this access: {this}: for {threads or 'all'} threads, by {words.name(agent)}",
        f"used before: {there}: for {count or 'all'} threads, by {words.name(other)}",
        missing,
        at=ins,
        other=where,
    )
