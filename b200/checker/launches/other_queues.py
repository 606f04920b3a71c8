"""Work of other queues: what no event orders after it runs beside it.

Launches run one after the other here; on a GPU those of two queues run at the same time unless an
event, a wait of the host, or the legacy default queue orders them (CUDA programming guide,
"Streams"). So each launch leaves a footprint, and a later one that is not ordered after it is
checked against that. Two atomics do not conflict, nor do two strong accesses.

Copies, fills and torch's own functions are work of a queue, too (Act), and the host is one more
that has to wait before it touches memory that a copy of a queue uses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from b200.checker import words
from b200.checker.finding import Finding
from b200.chip.describe import mnemonic
from b200.chip.global_memory import Region
from b200.chip.tensors import LiveTensors
from b200.effects import Copies, Effect, Ordered, Updates
from b200.program.module import Instr
from b200.program.names import readable

if TYPE_CHECKING:
    from b200.checker.agent import Agent
    from b200.checker.launches.dependent_launch import Footprint
    from b200.checker.observer import Observer

BRANCHES = 1 << 60  # numbers above it are no queues: branches of a graph
ALLOCATOR = {"cudaMallocAsync": "allocates", "cudaFreeAsync": "frees"}


@dataclass
class Beside:
    """A launch in `queue`. earlier: (queue, footprint) of the launches that are not ordered before
    it. missed: why an event does not order it after a queue, "" where none seems to be meant to.
    footprint: its own, once it has run.
    """

    queue: int
    earlier: list[tuple[int, Footprint]] = field(default_factory=lambda: [])
    missed: Callable[[int], str] = lambda queue: ""
    footprint: Footprint | None = None


@dataclass(frozen=True, eq=False)
class Act:
    """What a queue, or the host, does beside launches. text: "torch.add". loc: "file:line"."""

    text: str
    loc: str


class ActAccess(NamedTuple):
    """What an Act touches of an allocation. index: as Footprint.add takes it."""

    region: Region
    index: Any
    write: bool


class Conflict(NamedTuple):
    """An earlier access that one conflicts with: of whom, by what, and "writes" or "reads"."""

    kernel: str
    ins: Instr | None
    how: str


def named(queue: int) -> str:
    return f"branch {queue - BRANCHES} of a graph" if queue > BRANCHES else f"queue {queue:#x}"


def commute(one: Instr | Act | None, other: Instr | Act | None) -> bool:
    """Whether two accesses may meet: both are atomic, or both strong."""
    if not isinstance(one, Instr) or not isinstance(other, Instr):
        return False
    effects = (one.effect, other.effect)
    strong = all(isinstance(effect, Ordered) and effect.strong for effect in effects)
    return strong or all(map(_combines, effects))


def may_meet(ins: Instr | Act) -> bool:
    """Whether an access may meet some others."""
    if not isinstance(ins, Instr):
        return False
    effect = ins.effect
    return _combines(effect) or isinstance(effect, Ordered) and effect.strong


def _combines(effect: Effect) -> bool:
    """Whether memory is changed by an atomic operation."""
    return isinstance(effect, Updates) or isinstance(effect, Copies) and effect.operation != ""


def _missing(other: int, kernel: str, queue: int, what: str) -> str:
    """What would order work of a queue after that of another one."""
    if max(other, queue) > BRANCHES:
        return (
            f"missing: an edge of the graph from {kernel} to {what}: an event of the capture, "
            "cudaGraphAddDependencies; or memory of its own for each branch"
        )
    return (
        f"missing: an event that {named(other)} records after {kernel} and {named(queue)} waits "
        f"for before {what} (cudaStreamWaitEvent, Stream.wait_stream); or memory of its own for "
        "each queue"
    )


def tell(observer: Observer, agent: Agent, access: ActAccess, ins: Instr, beside: Beside) -> None:
    """Report an access that conflicts with other queues' work."""
    done, mine = "written" if access.write else "read", named(beside.queue)
    for queue, footprint in beside.earlier:
        for kernel, old, how in footprint.conflicts(access, ins):
            how, kernel = ALLOCATOR.get(kernel, how), readable(kernel)
            observer.found(
                "global",
                f"global memory is {done} that {kernel}, work of another queue, {how}, with no "
                "event to order the two",
                f"this access: {words.line(ins)}: {mnemonic(ins)}, by {words.name(agent)}, in "
                f"{mine}",
                f"{kernel} {how} it at {words.line(old)}, in {named(queue)}",
                f"in {observer.operand(access.region.base)}",
                *filter(None, (beside.missed(queue),)),
                _missing(queue, kernel, beside.queue, "this launch"),
                at=ins,
                other=old,
            )


def against(
    act: Act,
    queue: int | None,
    accesses: Iterable[ActAccess],
    earlier: list[tuple[int, Footprint]],
    missed: Callable[[int], str],
) -> list[Finding]:
    """What is wrong with an act: accesses that conflict with earlier work that it is not ordered
    after. queue: the act's; None: the host's own. missed: as in Beside.
    """
    found: dict[tuple, Finding] = {}
    for access in accesses:
        for other, footprint in earlier:
            for conflict in footprint.conflicts(access, act):
                finding = _finding(act, queue, access, other, conflict, missed(other))
                found.setdefault((finding.diagnosis, finding.other), finding)
    return list(found.values())


def _finding(
    act: Act, queue: int | None, access: ActAccess, other: int, conflict: Conflict, why: str
) -> Finding:
    does, its = "writes" if access.write else "reads", named(other)
    name, old, how = conflict
    does, how, name = ALLOCATOR.get(act.text, does), ALLOCATOR.get(name, how), readable(name)
    if queue is None:
        diagnosis = f"the host {does} memory that {name} {how}, for which it has not waited"
        missing = (
            f"missing: a wait of the host before this: for {its}, or for an event that it records "
            f"after {name} (cudaDeviceSynchronize, torch.cuda.synchronize, Event.synchronize)"
        )
        mine = "by the host"
    else:
        mine = f"in {named(queue)}"
        diagnosis = (
            f"{act.text} {does} memory that {name}, work of another queue, {how}, with no event to "
            "order the two"
        )
        missing = _missing(other, name, queue, "this")
    region = access.region
    details = (
        f"this access: {act.loc}: {act.text}, {mine}",
        f"{name} {how} it at {words.line(old)}, in {its}",
        f"in {LiveTensors.variable(region.base, region.size) or region.name}",
        *filter(None, (why,)),
        missing,
    )
    return Finding("global", diagnosis, details, act.loc, words.line(old))
