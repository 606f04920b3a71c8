"""The machine with a clock: the earliest fragment or event in simulated time runs next.

A heap holds fragments of warps and events (completions of asynchronous effects). A fragment runs
block after block until its time has passed the next entry's. The order of effects between warps may
differ from that of the plain machine, as it may on hardware; a correct kernel gives the same
results.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Iterable, Iterator

from b200.chip.contents import Contents
from b200.chip.fragment import Fragment, WarpState
from b200.chip.global_memory import GlobalMemory
from b200.chip.launch import Arguments, Launch
from b200.chip.machine import Machine
from b200.chip.meeting import let_others_go
from b200.chip.operations import Action, Operation
from b200.chip.order import InOrder
from b200.chip.placement import Placement
from b200.chip.state import Cluster
from b200.chip.sync.mbarrier import MBarrier
from b200.chip.time_limits import TimeLimits
from b200.clock.accesses import Accesses
from b200.clock.constants import Constants
from b200.clock.memory_system import MemorySystem, Server
from b200.clock.options import Options
from b200.clock.sm import SubCore
from b200.clock.taint import depends_on_arithmetic
from b200.clock.timeline import Timeline
from b200.clock.units import Units
from b200.clock.writer import TimedWriter
from b200.effects import AllocatesTensor, TensorLoads, TensorStores
from b200.errors import EmulatorError, Fault
from b200.program.analysis import EXIT
from b200.program.module import Instr
from b200.program.translated import Translated
from b200.registry import Clock, Waitable

WAITS = {
    "MBarrier": "an mbarrier",
    "NamedBarrier": "a CTA barrier",
    "ClusterBarrier": "the cluster barrier",
    "Copy": "an asynchronous copy",
    "Pool": "tensor memory",
    "AnyOf": "an mbarrier",
}


LIMIT = 1 << 20  # clk that a wait blocks which would for ever: the system's limit, here our choice
LOOKS = 1 << 14  # of such waits in a launch
TENSOR_MEMORY = (AllocatesTensor, TensorLoads, TensorStores)
RESERVED = 2 << 30  # bytes from which memory is taken to be reserved, not used: a copy touches it


def core_of(state: WarpState) -> SubCore:
    """The sub-core of a warp. The warps of a CTA go to one after the other. The first goes to the
    one with the fewest, so that CTAs of one warp take all four: where registers limit an SM's CTAs,
    cuda_occupancy.h counts warps of CTAs, not CTAs rounded up to four warps.
    """
    cta = state.cta
    return cta.sm.cores[(cta.first_core + state.index) % 4]


class TimedFragment(Fragment):
    """A fragment with a simulated time in clk. Generated code calls its methods."""

    __slots__ = ("clock", "core", "held", "woken_by")

    def __init__(self, machine: Machine, state: WarpState, mask: int, pc: int = 0):
        super().__init__(machine, state, mask, pc)
        assert isinstance(machine.order, Timed)
        self.clock = machine.order
        self.core = core_of(state)
        self.held = 0.0  # clk that its lanes meet the others of their warp later
        self.woken_by: Waitable | None = None

    def arrive_or_exit(self, pc: int) -> int | None:
        if self.held and pc == self.reconv:
            self.time += self.held
            self.held = 0.0
        return super().arrive_or_exit(pc)

    def spend(self, clk: float, pipes: tuple[tuple[int, float], ...]) -> None:
        """Issue instructions, which takes at least `clk`. They also take the sub-core's issue port
        and its `pipes` (number in PIPES, clk), which the sub-core's warps share.
        """
        core, time, wait = self.core, self.time, 0.0
        free, busy, others = core.free, core.busy, core.warps - 1
        for pipe, width in pipes:
            behind = free[pipe] - time
            if behind > 0:
                most = width * others
                behind = behind if behind < most else most
                wait = wait if wait > behind else behind
                free[pipe] += width
            else:
                free[pipe] = time + width
            busy[pipe] += width
        self.time = Clock.now = time + wait + clk

    def need(self, registers: tuple[int, ...], ins: Instr) -> None:
        """Wait for loads whose results `ins` is about to read."""
        ready = self.state.ready
        at = max(ready.get(r, 0.0) for r in registers)
        if at > self.time:
            self.clock.stall(self, at, ins, "loads")

    def loaded(self, registers: tuple[int, ...]) -> None:
        """Note that these registers are ready when the load that was just issued is complete."""
        at = self.state.load_done
        for r in registers:
            self.state.ready[r] = at

    def hand_on(self, dst: int, *sources: int) -> None:
        self.state.ready[dst] = max(self.state.ready.get(src, 0.0) for src in sources)

    def read_clock(self, name: str) -> int:
        if name.startswith("globaltimer"):
            now = int(self.time / self.clock.options.clock_ghz)
            return now >> 32 if name.endswith("_hi") else now
        return int(self.time) >> 32 if name == "clock_hi" else int(self.time)


class Timed(InOrder):
    """The order of simulated time; `launch.time` is its record (timeline.py).

    end: at which ends of their ranges the constants are, "nominal", "low" or "high". Of the present
    or latest launch are constants, chip, placement, record, accesses, units and in_quarters:
    whether warps reach tensor memory. A warp reaches the quarter of its number in the CTA (PTX ISA
    9.7.16.8), and so is on the sub-core of that number.
    """

    plain = False
    fragment_type = TimedFragment
    writer_type = TimedWriter
    constants: Constants
    chip: MemorySystem
    placement: Placement
    record: Timeline
    accesses: Accesses
    units: Units
    in_quarters: bool

    def __init__(self, options: Options | None = None):
        super().__init__()
        self.options = options or Options()
        self.end = "nominal"
        self.heap: list[tuple[float, int, TimedFragment | Action]] = []
        self.numbers = itertools.count()  # of entries of the heap: those of one time keep order

    def again(self, dependent: bool) -> Timed:
        return Timed(self.options)

    def launch(
        self, carry_out: Callable[[], Launch], code: Translated, arguments: Arguments
    ) -> Launch:
        """Run a grid. With the option `sweep_constants` run it also with the constants at the ends
        of their ranges; then global memory is put back, except allocations of RESERVED bytes and
        more.
        """
        ends: dict[str, float] = {}
        if self.options.sweep_constants:
            memory = self.machine.memory
            before = Contents(r for r in memory.allocations() if r.size < RESERVED)
            for self.end in ("low", "high"):
                ends[self.end] = self._once(carry_out, code).time.time_us
                before.put_back()
        self.end = "nominal"
        launch = self._once(carry_out, code)
        if ends:
            launch.time.low_us = min(ends["low"], launch.time.time_us)
            launch.time.high_us = max(ends["high"], launch.time.time_us)
        return launch

    def _once(self, carry_out: Callable[[], Launch], code: Translated) -> Launch:
        options = self.options
        self.constants = options.gpu.constants(self.end, options.constants)
        self.chip = MemorySystem(
            self.constants, options.clock_ghz, options.dirty_l2, options.cold, options.gpu.gpcs
        )
        self.placement = options.gpu.placement()
        self.heap, self.numbers = [], itertools.count()
        self.record = Timeline(options.trace)
        self.accesses = Accesses(self.machine.memory, self.chip, self.constants, self.record)
        effects = (op.ins.effect for block in code.structure for op in block.ops)
        self.in_quarters = any(isinstance(effect, TENSOR_MEMORY) for effect in effects)
        arithmetic = options.arithmetic or depends_on_arithmetic(code.structure) is not None
        self.units = Units(self.accesses, self.at, arithmetic)
        Clock.now = Server.now = 0.0
        try:
            launch = carry_out()
        finally:
            Clock.now = 0.0
        self.record.finish(self, launch)
        launch.time = self.record
        return launch

    def clusters(self, every: Iterator[Cluster]) -> Iterable[Cluster]:
        first = next(every)
        count = math.prod(first.grid.grid) // math.prod(first.grid.cluster)
        return self.options.gpu.clusters(itertools.chain([first], every), count)

    def issue(self, operation: Operation, warp: TimedFragment, apply: Action) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        self.units.issue(operation, warp, apply)

    def cancel_next(self) -> None:
        """Every cluster starts: what it takes to ask is not modelled."""

    def wait_passed(self, warp: Fragment) -> None:
        """Time decides who runs."""

    # --- the queue --------------------------------------------------------------------------------
    def enqueue(self, warp: TimedFragment) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        if not warp.queued:
            warp.queued = True
            heapq.heappush(self.heap, (warp.time, next(self.numbers), warp))

    def at(self, time: float, action: Action) -> None:
        """Call `action()` at a simulated time."""
        heapq.heappush(self.heap, (time, next(self.numbers), action))

    def wake(self, warp: TimedFragment, waitable: Waitable) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Let the fragment look again, at the time when it can have noticed the event."""
        warp.woken_by = waitable
        if waitable.time > warp.time:
            ins = self.machine.code.structure[warp.pc].ops[0].ins
            what = WAITS.get(type(waitable).__name__, "another warp")
            barrier = waitable if isinstance(waitable, MBarrier) else None
            self.stall(warp, waitable.time, ins, what, barrier)
        self.enqueue(warp)

    def stall(
        self, warp: Fragment, until: float, ins: Instr, what: str, barrier: MBarrier | None = None
    ) -> None:
        """Stop the fragment at an instruction until a time, and record the wait for `what`."""
        self.record.stalled(warp, warp.time, until, ins, what, barrier)
        warp.time = until

    # --- CTAs -------------------------------------------------------------------------------------
    def run(self, waiting: Iterator[Cluster], launch: Launch) -> None:
        machine = self.machine
        machine.next_cluster = next(waiting, None)
        machine.limits = TimeLimits(LOOKS, LIMIT)
        start = self.constants.cta_start_us * 1e3 * self.options.clock_ghz
        self._start_clusters(start, launch)
        heap, pop = self.heap, heapq.heappop
        while heap or let_others_go(machine) or machine.limits.pass_by(machine):
            time, _, item = pop(heap)
            if isinstance(item, TimedFragment):
                item.queued = False
                self.take_turn(item, launch)
            else:
                Clock.now = Server.now = time
                try:
                    item()
                except Fault as fault:
                    text = f"{fault}\n  in an asynchronous operation"
                    raise EmulatorError("fault", text) from None
        for cluster in machine.ended():
            machine.resident.remove(cluster)
        if machine.resident or machine.next_cluster is not None:
            self.raise_stuck(launch)

    def _start_clusters(self, at: float, launch: Launch) -> None:
        """Start clusters while there is room."""
        machine = self.machine
        dispatch = self.constants.cta_dispatch_ns * self.options.clock_ghz
        while machine.next_cluster is not None:
            sms = self.placement.place(launch)
            if sms is None:
                return
            Clock.now = at
            machine.admit(machine.next_cluster, launch, sms)
            self.record.started(machine.next_cluster, at)
            at += dispatch * len(sms)
            machine.next_cluster = next(machine.waiting, None)

    def new_warp(self, state: WarpState) -> None:
        """Called for each warp before its fragment is made."""
        if state.index == 0 and not self.in_quarters:
            warps = [core.warps for core in state.cta.sm.cores]
            state.cta.first_core = warps.index(min(warps))
        core_of(state).warps += 1

    def exits(self, state: WarpState, lanes: int) -> None:
        state.end = max(state.end, Clock.now)
        if state.live:
            return
        cta = state.cta
        core_of(state).warps -= 1
        if cta.exited_warps == len(cta.warps):
            cta.end = max(w.end for w in cta.warps)
            cluster = cta.cluster
            ends = [other.end for other in cluster.ctas if other.end is not None]
            if len(ends) == len(cluster.ctas):
                self.at(max(ends), lambda: self._finished(cluster))

    def _finished(self, cluster: Cluster) -> None:
        """A cluster's CTAs are gone: their SMs take the next ones."""
        c, launch = self.constants, cluster.grid
        self.record.ended(cluster)
        self.machine.resident.remove(cluster)
        self.placement.release([cta.sm for cta in cluster.ctas], launch)
        relaunch = c.cluster_relaunch if len(cluster.ctas) > 1 else c.cta_relaunch
        self._start_clusters(Clock.now + relaunch, launch)

    # --- a turn -----------------------------------------------------------------------------------
    def run_blocks(self, warp: TimedFragment) -> int | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Run blocks of a fragment until another fragment or an event is earlier."""
        machine, R, heap = self.machine, warp.register_file, self.heap
        blocks, hits = machine.code.blocks, machine.hits
        seen = self.record.blocks[warp.index]
        pc = warp.pc
        while True:
            warp.pc = pc
            hits[pc] += 1
            seen.add(pc)
            Clock.now = Server.now = warp.time
            pc = blocks[pc](warp, R)
            if pc == EXIT or pc == warp.reconv:
                Clock.now = warp.time
                pc = warp.arrive_or_exit(pc)
                if pc is None:
                    return None
            if heap and heap[0][0] < warp.time:
                return pc


def timed_machine(memory: GlobalMemory, options: Options | None = None) -> Machine:
    """A machine whose launches take simulated time."""
    return Machine(memory, Timed(options))
