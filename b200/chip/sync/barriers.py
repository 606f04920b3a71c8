"""Barriers of a CTA and of a cluster (PTX ISA 9.7.13.1 barrier.cta, 9.7.13.3 barrier.cluster)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from b200.effects import ArrivesInCluster, MeetsInCta, WaitsInCluster
from b200.errors import Fault, Unsupported
from b200.program.module import Instr, Loc, Reg
from b200.registry import FULL, Blocked, LaneValues, Run, Waitable, lanes, warp

if TYPE_CHECKING:
    from b200.chip.fragment import Fragment
    from b200.chip.state import CTA

MAX_BARRIERS = 16


class NamedBarrier(Waitable):
    """One of a CTA's 16 barriers: which threads have arrived, of how many, in this generation.

    came: for reports, source line with its callers -> warps that have come from there in this
    generation. mixed: the same of the latest generation in which all warps of the CTA met, from
    several lines.
    """

    __slots__ = tuple("cta number generation arrived expected votes result came mixed".split())

    def __init__(self, cta: CTA, number: int):
        super().__init__()
        self.cta, self.number = cta, number
        self.generation = self.arrived = self.expected = 0
        self.votes: list[tuple[int, int]] = []
        self.result: tuple[tuple[int, int], ...] = ()  # votes of the latest generation
        self.came: dict[Loc, list[int]] = {}
        self.mixed: dict[Loc, list[int]] = {}

    def arrive(self, count: int, threads: int, f: Fragment, ins: Instr) -> None:
        """`count` threads arrive; `threads` take part (0: all threads of the CTA). ins: by this."""
        if self.arrived and threads != self.expected:
            raise Fault(
                f"barrier {self.number} is used with {threads or 'all'} threads while others"
                f" arrived for {self.expected or 'all'}"
            )
        self.touch()
        self.expected = threads
        self.arrived += count
        if ins.loc is not None:
            self.came.setdefault(ins.loc, []).append(f.index)
        self.check()

    def check(self) -> None:
        """Complete the generation if all are there; warps that have exited are not waited for."""
        needed = max(self.needed, 1)
        if self.arrived > needed:
            raise Fault(
                f"{self.arrived} threads arrived at barrier {self.number}, which waits for {needed}"
            )
        if self.arrived == needed:
            self.generation += 1
            self.arrived, self.result, self.votes = 0, tuple(self.votes), []
            if len(self.came) > 1 and not self.expected:
                self.mixed = self.came
            self.came = {}
            self.notify()

    @property
    def needed(self) -> int:
        return self.expected or 32 * sum(1 for w in self.cta.warps if w.live)

    def describe(self) -> str:
        arrived = f"{self.arrived} of {self.needed} threads have arrived"
        return f"barrier {self.number} of the CTA: {arrived}"


def barrier_of(warp: Fragment, number: int) -> NamedBarrier:
    if not 0 <= number < MAX_BARRIERS:
        raise Fault(f"barrier {number}: a CTA has barriers 0 to {MAX_BARRIERS - 1}")
    found = warp.cta.named_barriers.get(number)
    if found is None:
        found = warp.cta.named_barriers[number] = NamedBarrier(warp.cta, number)
    return found


def _scalar(x: LaneValues, warp: Fragment) -> int:
    """A barrier's number or count as an int; it must be the same in all lanes of the warp."""
    if isinstance(x, int):
        return x
    values = {int(v) for i, v in enumerate(lanes(x, x.dtype)) if warp.mask >> i & 1}
    if len(values) > 1:
        raise Fault(f"the operand of a barrier differs between lanes: {sorted(values)}")
    return values.pop()


def _count(warp: Fragment, threads: int, aligned: bool) -> int:
    """Threads that arrive with this fragment. Those that have exited arrive with the others of
    their warp; where its parts go their own ways, with the part that has its lowest lane.
    """
    if threads % 32:
        raise Fault(f"the thread count of a barrier is {threads}: must be a multiple of 32")
    if warp.mask != warp.state.live and warp.is_apart:
        lowest = warp.live & -warp.live & warp.mask
        return warp.mask.bit_count() + (32 - warp.live.bit_count() if lowest else 0)
    if aligned and warp.mask != warp.state.live:
        raise Fault(
            "an aligned barrier is executed by a part of the warp: all its threads must execute it"
            f" together (active lanes {warp.mask:#010x} of {warp.state.live:#010x})"
        )
    return 32 if warp.mask == warp.state.live else warp.mask.bit_count()


def _aligned(ins: Instr) -> bool:
    return ins.mods[0] == "bar" or ins.has("aligned")


def gather(warp: Fragment, mask: int, ins: Instr) -> None:
    """Bring the warp together at an aligned barrier (Fragment.gather)."""
    if warp.token is None and mask == warp.mask and _aligned(ins):
        warp.gather()


def _all(action: str) -> tuple[str, ...]:
    """The names of barrier.cta with an action: `.cta` may be left out."""
    return tuple(f"{name}.{action}" for name in ("bar", "bar.cta", "barrier", "barrier.cta"))


@warp(*_all("sync"), states=MeetsInCta(waits=True, counted=True), may_block=True)
def barrier_sync(ins: Instr) -> Run:
    """bar{.cta}.sync a{, b}; barrier{.cta}.sync{.aligned} a{, b}"""
    aligned = _aligned(ins)

    def run(warp: Fragment, mask: int, number: LaneValues, threads: LaneValues = 0) -> None:
        gather(warp, mask, ins)
        bar = barrier_of(warp, _scalar(number, warp))

        def arrive() -> None:
            count = _scalar(threads, warp)
            bar.arrive(_count(warp, count, aligned), count, warp, ins)

        wait(warp, bar, arrive)

    return run


def wait(warp: Fragment, bar: NamedBarrier, arrive: Callable[[], None]) -> None:
    """Arrive once, then wait for the generation's end (executed again when woken)."""
    if warp.token is None:
        warp.token = (bar, bar.generation)
        arrive()
    if warp.token[0].generation == warp.token[1]:
        raise Blocked(bar)
    warp.token = None


@warp(*_all("arrive"), states=MeetsInCta(waits=False, counted=True))
def barrier_arrive(ins: Instr) -> Run:
    """bar{.cta}.arrive a, b"""
    aligned = _aligned(ins)

    def run(warp: Fragment, mask: int, number: LaneValues, threads: LaneValues) -> None:
        threads, bar = _scalar(threads, warp), barrier_of(warp, _scalar(number, warp))
        bar.arrive(_count(warp, threads, aligned), threads, warp, ins)

    return run


def _reduces(ins: Instr) -> MeetsInCta:
    return MeetsInCta(waits=True, counted=len(ins.operands) == 4)


@warp(*_all("red"), states=_reduces, out=1, may_block=True, uniform="always")
def barrier_red(ins: Instr) -> Run:
    """bar{.cta}.red.{popc,and,or} d, a{, b}, {!}c: predicate c reduced over all threads."""
    aligned = _aligned(ins)
    op = next((m for m in ins.mods if m in ("popc", "and", "or")), None)
    if op is None:
        raise Unsupported("bar.red has no operation")
    operand = ins.operands[-1]
    if isinstance(operand, Reg) and operand.type != "pred":
        raise Unsupported("bar.red needs a predicate as its operand")

    def run(warp: Fragment, mask: int, number: LaneValues, *rest: Any):
        gather(warp, mask, ins)
        threads, pred = (_scalar(rest[0], warp), rest[1]) if len(rest) == 2 else (0, rest[0])
        bar = barrier_of(warp, _scalar(number, warp))

        def arrive() -> None:
            bar.votes.append(((pred & mask).bit_count(), mask.bit_count()))
            bar.arrive(_count(warp, threads, aligned), threads, warp, ins)

        wait(warp, bar, arrive)
        true, total = (sum(v[i] for v in bar.result) for i in (0, 1))
        if op == "popc":
            return true
        return FULL if (true == total if op == "and" else true > 0) else 0

    return run


@warp("barrier.cluster.arrive", states=lambda ins: ArrivesInCluster(relaxed=ins.has("relaxed")))
def cluster_arrive(ins: Instr) -> Run:
    """barrier.cluster.arrive{.release|.relaxed}{.aligned}: once for each thread and phase."""
    aligned = ins.has("aligned")

    def run(warp: Fragment, mask: int) -> None:
        state = warp.state
        if aligned:
            _count(warp, 0, True)
        if state.cluster_arrived & mask:
            raise Fault("barrier.cluster.arrive twice without barrier.cluster.wait in between")
        state.cluster_arrived |= mask
        barrier = warp.cta.cluster.barrier
        state.cluster_phase = barrier.phase
        barrier.arrive(mask.bit_count())

    return run


@warp("barrier.cluster.wait", states=WaitsInCluster(), may_block=True)
def cluster_wait(ins: Instr) -> Run:
    """barrier.cluster.wait{.acquire}{.aligned}"""

    def run(warp: Fragment, mask: int) -> None:
        state = warp.state
        if mask & ~state.cluster_arrived:
            raise Fault("barrier.cluster.wait without barrier.cluster.arrive before it")
        barrier = warp.cta.cluster.barrier
        if barrier.phase == state.cluster_phase:
            raise Blocked(barrier)
        state.cluster_arrived &= ~mask

    return run
