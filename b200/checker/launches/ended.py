"""Rules of a launch that has ended: its CTAs have waited for one another; it has stored nothing.

CTAs that wait for one another must all be resident. A launch that fits into the GPU is resident as
a whole if nothing else runs. Work of another queue may hold SMs, and two such launches may each
hold a half. A cooperative launch starts only when all of its CTAs can (CUDA programming guide,
"Grid Synchronization").

A launch that stores nothing is legal: its sizes are 0 (an empty batch), or no thread reaches its
stores. More often a size has arrived wrongly: an argument is missing, swapped, or of another type
than the kernel's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from b200.checker import words
from b200.checker.finding import NOTE, PORTABILITY
from b200.checker.memory.release_acquire import SignalRead
from b200.effects import Copies, Loads, Stores, Updates
from b200.program.module import Instr, Kernel

if TYPE_CHECKING:
    from b200.checker.observer import Observer


def mutual_waits(observer: Observer, cooperative: bool) -> None:
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


def _waits(read: SignalRead) -> str:
    who, whom = words.name(read.agent), words.name(read.signal.agent)
    return f"{who} waits at {words.line(read.ins)} for {whom}"


def _mutual(received: dict[object, list[SignalRead]]) -> tuple[SignalRead, SignalRead] | None:
    """Reads of signals by which two CTAs of different clusters have waited for each other."""
    seen: dict[tuple[object, object], SignalRead] = {}
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


SCALARS = (4, 8)  # bytes of a parameter that may be a size


def stores_global(ins: Instr) -> bool:
    """Whether an instruction writes global memory, judged by its state space."""
    effect = ins.effect
    if isinstance(effect, (Stores, Updates)):
        return effect.space == "global"
    return isinstance(effect, Copies) and effect.target == "global"


def idle(observer: Observer, kernel: Kernel, params: bytes) -> None:
    """Report a launch that has ended and has not written global memory (observer.wrote)."""
    if observer.wrote:
        return
    blocks = observer.machine.code.structure
    stores = [op.ins for block in blocks for op in block.ops if stores_global(op.ins)]
    if not stores:
        return
    zeros = [
        parameter.name
        for parameter in kernel.params
        if parameter.size in SCALARS
        and not any(params[parameter.offset : parameter.offset + parameter.size])
    ]
    lines = ", ".join(dict.fromkeys(words.line(ins) for ins in stores))
    observer.found(
        "coverage",
        "the launch stores nothing: no thread has come to a store of global memory",
        f"stores: {lines}",
        f"parameters that are 0: {', '.join(zeros) or 'none of 4 or 8 bytes'}",
        "missing: sizes that are not 0, or guards that let a thread through",
        at=stores[0],
        severity=NOTE,
    )
