"""Launches of other queues: a launch that no event orders after them runs beside them.

Launches run one after the other here; on a GPU those of two queues run at the same time unless an
event, a wait of the host, or the legacy default queue orders them (CUDA programming guide,
"Streams"). So each launch leaves a footprint, and a later one that is not ordered after it is
checked against that. Two atomics do not conflict, nor do two strong accesses.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from b200.checker import naming as words
from b200.chip.describe import mnemonic
from b200.program.module import Instr
from b200.program.names import readable

if TYPE_CHECKING:
    from b200.checker.dependent_launch import Footprint

STRONG = ("volatile", "relaxed", "acquire", "release", "acq_rel", "mmio")


@dataclass
class Beside:
    """A launch in `queue`. earlier: (queue, footprint) of the launches that are not ordered before
    it. footprint: its own, once it has run.
    """

    queue: int
    earlier: list[tuple[int, Footprint]] = field(default_factory=list)
    footprint: Footprint | None = None


def commute(one: Instr | None, other: Instr | None) -> bool:
    """Whether two accesses may meet: both are atomic, or both strong."""
    if one is None or other is None:
        return False
    return all(ins.mods[0] in ("atom", "red") or ins.has("reduce") for ins in (one, other)) or all(
        ins.has(*STRONG) or ins.mods[0] in ("atom", "red") for ins in (one, other)
    )


def tell(
    observer, agent, region, ins: Instr, write: bool, queues, kernel: str, old, how: str
) -> None:
    """Report an access that conflicts with one of a launch of another queue. queues: (this
    launch's, the other's). how: "writes" or "reads".
    """
    mine, its = (f"queue {queue:#x}" for queue in queues)
    kernel = readable(kernel)
    observer.found(
        "global",
        f"global memory is {'written' if write else 'read'} that {kernel}, a launch of another "
        f"queue, {how}, with no event to order the two",
        (
            f"this access: {words.line(ins)}: {mnemonic(ins)}, by {words.name(agent)}, in {mine}",
            f"{kernel} {how} it at {words.line(old)}, in {its}",
            f"in {observer.operand(region.base)}",
            f"missing: an event that {its} records after {kernel} and {mine} waits for before this "
            "launch (cudaStreamWaitEvent, Stream.wait_stream); or memory of its own for each queue",
        ),
        ins,
        old,
    )
