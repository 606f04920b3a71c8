"""The record of a timed launch: times of its events, waits of its warps, how busy the units were.

Times are kept in clk and handed out in microseconds.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from b200.chip.describe import mnemonic
from b200.effects import SetsRegisters
from b200.program.module import Instr

if TYPE_CHECKING:
    from b200.chip.fragment import Fragment
    from b200.chip.launch import Launch
    from b200.chip.state import CTA, Cluster
    from b200.chip.sync.mbarrier import MBarrier
    from b200.clock.timed import Timed, TimedFragment


@dataclass(frozen=True)
class Wait:
    """A wait of a warp, in clk. what: for an mbarrier, loads, ...; barrier: its name and place, ""
    where it is no mbarrier.
    """

    cta: int
    warp: int
    start: float
    end: float
    ins: Instr
    what: str
    barrier: str

    @property
    def line(self) -> str:
        """Where in the source."""
        return str(self.ins.loc) if self.ins.loc else mnemonic(self.ins)


class CtaTime(NamedTuple):
    """When a CTA ran, in clk. place: its index in the grid. end: None while it runs."""

    number: int
    place: tuple[int, int, int]
    sm: int
    start: float
    end: float | None

    @property
    def until(self) -> float:
        """The end of a CTA that has run."""
        assert self.end is not None
        return self.end


class Busy(NamedTuple):
    """A unit worked for a traced CTA, in clk."""

    cta: int
    unit: str
    start: float
    end: float
    what: str


class Timeline:
    """The times of one launch.

    time_us: from the start of the kernel to its end. low_us, high_us: the same with the constants
    at the ends of their ranges (equal to time_us if that was not asked for). load_batches: for each
    CTA, how many loads came before its first MMA, and how many between that and the first MMA after
    them. signalled: for each CTA and source, the mbarriers on which its loads complete.
    asked_bytes: written by st to global memory; sent_bytes: of the whole sectors that these touch.
    dependent: whether the launch may start before the one before it has ended. triggered, waited:
    for each CTA, when its first warp executed griddepcontrol.launch_dependents, and .wait.
    resumed: whether a CTA had MMAs after it had stored what it read from tensor memory. (MMAs after
    the read alone do not count: a kernel with two products may read one before the other is done.)
    The rest is for `profile.py`, `strip.py` and `draw.py`.
    """

    def __init__(self, trace: int):
        self.trace = trace
        self.stalls: dict[tuple[int, int], float] = defaultdict(float)
        self.places: dict[tuple[int, int], tuple[Instr, str]] = {}
        self.spans: list[Wait] = []  # of traced CTAs
        self.units: list[Busy] = []
        self.commits: list[tuple[int, int]] = []  # (CTA, how many `units` were there before it)
        self.ctas: list[CtaTime] = []
        self.exits: dict[tuple[int, int], float] = {}  # (CTA, warp) of traced CTAs -> its exit
        self.first_issue: dict[int, float] = {}
        self.first_data: dict[int, float] = {}
        self.first_mma: dict[int, float] = {}
        self.last_mma: dict[int, float] = {}
        self.last_store: dict[int, float] = {}
        self.first_result: dict[int, float] = {}  # stored after tensor memory was read
        self.load_batches: dict[int, list[int]] = {}
        self.signalled: dict[tuple[int, int], set[int]] = defaultdict(set)
        self.asked_bytes = self.sent_bytes = 0
        self.dependent = False
        self.triggered: dict[int, float] = {}
        self.waited: dict[int, float] = {}
        self.resumed = False
        self._readers: set[int] = set()  # CTAs that have read tensor memory
        self._loads: dict[int, int] = defaultdict(int)  # of a CTA since its last MMA
        self.low_us = self.high_us = self.time_us = 0.0
        self.blocks: dict[int, set[int]] = defaultdict(set)  # warp index -> blocks it has executed
        self.tmem_columns = 0

    # --- called while the launch runs -------------------------------------------------------------
    def started(self, cluster: Cluster, at: float) -> None:
        for cta in cluster.ctas:
            cta.number = len(self.ctas)
            self.ctas.append(CtaTime(cta.number, cta.index, cta.sm.index, at, None))
            cta.traced = cta.number < self.trace

    def ended(self, cluster: Cluster) -> None:
        for cta in cluster.ctas:
            self.ctas[cta.number] = self.ctas[cta.number]._replace(end=cta.end)
            if cta.traced:
                self.exits |= {(cta.number, warp.index): warp.end for warp in cta.warps}

    def stalled(
        self,
        warp: Fragment,
        start: float,
        end: float,
        ins: Instr,
        what: str,
        barrier: MBarrier | None = None,
    ) -> None:
        """A warp waited for `what` at an instruction, from `start` to `end`."""
        key = (warp.index, id(ins))
        self.stalls[key] += end - start
        if key not in self.places:
            self.places[key] = (ins, what)
        if warp.cta.traced:
            place = barrier.place() if barrier is not None else ""
            number, index = warp.cta.number, warp.index
            self.spans.append(Wait(number, index, start, end, ins, what, place))

    def unit(self, cta: CTA, name: str, start: float, end: float, what: str) -> None:
        if cta.traced:
            self.units.append(Busy(cta.number, name, start, end, what))

    def committed(self, cta: CTA) -> None:
        """A tcgen05.commit behind the MMAs so far."""
        if cta.traced:
            self.commits.append((cta.number, len(self.units)))

    def loads(self, warp: TimedFragment, at: float, source: int, mbarrier: int) -> None:
        """A copy from the tensor or address `source` is issued."""
        self.first_issue.setdefault(warp.cta.number, at)
        self._loads[warp.cta.number] += 1
        self.signalled[warp.cta.number, source].add(mbarrier)

    def landed(self, warp: TimedFragment, at: float, nbytes: int) -> None:
        number = warp.cta.number
        if number not in self.first_data or at < self.first_data[number]:
            self.first_data[number] = at

    def mma(self, warp: TimedFragment, start: float, done: float) -> None:
        number = warp.cta.number
        self.first_mma.setdefault(number, start)
        self.last_mma[number] = done
        if number in self.first_result and start > self.first_result[number]:
            self.resumed = True
        if loads := self._loads.pop(number, 0):
            batches = self.load_batches.setdefault(number, [])
            if len(batches) < 2:
                batches.append(loads)

    def read_tmem(self, warp: TimedFragment) -> None:
        self._readers.add(warp.cta.number)

    def sends(self, asked: int, sectors: int) -> None:
        """A warp's st wrote `asked` bytes of global memory, which touch `sectors` bytes in whole
        sectors.
        """
        self.asked_bytes += asked
        self.sent_bytes += sectors

    def stored(self, warp: TimedFragment, done: float) -> None:
        number = warp.cta.number
        self.last_store[number] = done
        if number in self._readers:
            self.first_result.setdefault(number, warp.time)

    def depends(self, warp: TimedFragment, waits: bool) -> None:
        """A warp executes griddepcontrol.wait, or .launch_dependents."""
        (self.waited if waits else self.triggered).setdefault(warp.cta.number, warp.time)

    # --- afterwards -------------------------------------------------------------------------------
    def finish(self, clock: Timed, launch: Launch) -> None:
        """Called at the end of the launch: take what the record needs of its clock."""
        self.ghz = clock.options.clock_ghz
        self.c, self.chip, self.sms = clock.constants, clock.chip, clock.placement.sms
        machine = clock.machine
        self.dependent = machine.shape.dependent
        self.code, self.launch, self.hits = machine.code, launch, machine.hits
        self.options = clock.options
        self.executed = {
            index: [op.ins for block in sorted(blocks) for op in machine.code.structure[block].ops]
            for index, blocks in sorted(self.blocks.items())
        }
        ends = [cta.end for cta in self.ctas if cta.end is not None]
        self.end: float = max(ends, default=0.0)
        if clock.accesses.last_store:
            self.end = max(self.end, clock.accesses.last_store + clock.constants.store_drain)
        self.time_us = self.low_us = self.high_us = self.us(self.end)

    def us(self, clk: float) -> float:
        return clk / self.ghz / 1e3

    def median_us(self, times: dict[int, float]) -> float | None:
        """Microseconds from the start of the kernel to a time: the median over its first CTAs."""
        first = min((cta.start for cta in self.ctas), default=0.0) + 1e3
        early = [at for number, at in times.items() if self.ctas[number].start <= first]
        return self.us(float(np.median(early))) if early else None

    @property
    def registers(self) -> str:
        """A text of what is known of the registers: ptxas decides, PTX only gives bounds."""
        threads = int(np.prod(self.launch.block))
        effects = (op.ins.effect for block in self.code.structure for op in block.ops)
        changed = sorted({each.count for each in effects if isinstance(each, SetsRegisters)})
        text = f"at most {min(255, 65536 // threads // 8 * 8)} registers a thread"
        return text + (f", set to {', '.join(map(str, changed))} by setmaxnreg" if changed else "")

    @property
    def used_sms(self) -> int:
        return len({cta.sm for cta in self.ctas})
