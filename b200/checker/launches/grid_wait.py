"""Rule: CTAs that wait for one another must all be resident.

A launch that fits into the GPU is resident as a whole if nothing else runs. Work of another queue
may hold SMs, and two such launches may each hold a half. A cooperative launch starts only when all
of its CTAs can (CUDA programming guide, "Grid Synchronization").
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from b200.checker import words
from b200.checker.finding import PORTABILITY
from b200.checker.memory.release_acquire import Pending
from b200.effects import Loads

if TYPE_CHECKING:
    from b200.checker.observer import Observer


def look(observer: Observer, cooperative: bool) -> None:
    """Report a launch beside work of other queues whose CTAs have waited for one another."""
    beside = observer.checker.beside
    if beside is None or not beside.earlier or cooperative:
        return
    pair = _mutual(observer.globals.order.received)
    if pair is None:
        return
    one, other = pair
    queue, footprint = beside.earlier[0]
    observer.found(
        "deadlock",
        "CTAs of an ordinary launch wait for one another, and work of another queue may hold the "
        "SMs that some of them need",
        _waits(one),
        _waits(other),
        f"beside it: {footprint.kernel}, in queue {queue:#x}, which no event orders",
        "missing: a cooperative launch (cudaLaunchCooperativeKernel), which starts when all "
        "of its CTAs can; or an event between the two queues",
        at=one.ins,
        severity=PORTABILITY,
    )


def _waits(read: Pending) -> str:
    who, whom = words.name(read.agent), words.name(read.signal.agent)
    return f"{who} waits at {words.line(read.ins)} for {whom}"


def _mutual(received: dict[object, list[Pending]]) -> tuple[Pending, Pending] | None:
    """Reads of signals by which two CTAs of different clusters have waited for each other."""
    seen: dict[tuple[object, object], Pending] = {}
    for cta, all_of_it in received.items():
        for read in all_of_it:
            sender = read.signal.agent.cta
            if not isinstance(read.ins.effect, Loads) or sender.cluster is read.agent.cta.cluster:
                continue
            back = seen.get((sender, cta))
            if back is not None:
                return back, read
            seen.setdefault((cta, sender), read)
    return None
