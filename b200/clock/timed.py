"""The machine with a clock: the earliest fragment or event in simulated time runs next.

A heap holds fragments of warps and events (completions of asynchronous effects). A fragment runs
block after block until its time has passed the next entry's. The order of effects between warps may
differ from that of the plain machine, as it may on hardware; a correct kernel gives the same
results.
"""

from __future__ import annotations

import gc
import heapq
import itertools

from b200.chip.contents import Contents
from b200.chip.fragment import Fragment
from b200.chip.launch import Launch
from b200.chip.meeting import let_others_go
from b200.chip.operations import Effect
from b200.chip.state import Cluster, GlobalMemory
from b200.chip.sync.mbarrier import MBarrier
from b200.clock.memory_system import Memory, Server
from b200.clock.options import Options
from b200.clock.sm import SubCore
from b200.clock.taint import depends_on_arithmetic
from b200.clock.timeline import Timeline
from b200.clock.units import Units
from b200.clock.writer import TimedWriter
from b200.errors import EmulatorError, Fault
from b200.program.analysis import EXIT
from b200.registry import Clock, Waitable

WAITS = {
    "MBarrier": "an mbarrier",
    "NamedBarrier": "a CTA barrier",
    "ClusterBarrier": "the cluster barrier",
    "Copy": "an asynchronous copy",
    "Pool": "tensor memory",
    "AnyOf": "an mbarrier",
}


RESERVED = 2 << 30  # bytes from which memory is taken to be reserved, not used: a copy touches it


class TimedFragment(Fragment):
    """A fragment with a simulated time in clk. Generated code calls its methods."""

    __slots__ = ("core", "held", "woken_by")

    machine: TimedMachine

    def __init__(self, machine, state, mask: int, pc: int = 0):
        super().__init__(machine, state, mask, pc)
        self.core = state.cta.sm.cores[state.index % 4]
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

    def need(self, registers: tuple[int, ...], ins) -> None:
        """Wait for loads whose results `ins` is about to read."""
        ready = self.state.ready
        at = max(ready.get(r, 0.0) for r in registers)
        if at > self.time:
            self.machine.stall(self, at, ins, "loads")

    def loaded(self, registers: tuple[int, ...]) -> None:
        """Note that these registers are ready when the load that was just issued is complete."""
        at = self.state.load_done
        for r in registers:
            self.state.ready[r] = at

    def hand_on(self, dst: int, src: int) -> None:
        self.state.ready[dst] = self.state.ready.get(src, 0.0)

    def read_clock(self, name: str) -> int:
        if name.startswith("globaltimer"):
            now = int(self.time / self.machine.options.clock_ghz)
            return now >> 32 if name.endswith("_hi") else now
        return int(self.time) >> 32 if name == "clock_hi" else int(self.time)


class TimedMachine(Units):
    """A Machine whose launches take simulated time; `launch.time` is its record (timeline.py)."""

    fragment_type = TimedFragment  # so methods may take these where Machine's take any Fragment
    writer_type = TimedWriter

    def __init__(self, memory: GlobalMemory, options: Options | None = None):
        super().__init__(memory)
        self.options = options or Options()
        self.end = "nominal"
        self.warm: list = []  # allocations that the L2 holds when the next launch starts

    def cancel_next(self) -> None:
        """Every cluster starts: what it takes to ask is not modelled."""

    def wait_passed(self, fragment) -> None:
        """Time decides who runs."""

    def launch(self, code, grid, block, cluster, dynamic_smem: int, params: bytes) -> Launch:
        """Run a grid. With the option `sweep_constants` run it also with the constants at the ends
        of their ranges; then global memory is put back, except allocations of RESERVED bytes and
        more.
        """
        arguments = (code, grid, block, cluster, dynamic_smem, params)
        ends = {}
        if self.options.sweep_constants:
            before = Contents(r for r in self.memory.allocations() if r.size < RESERVED)
            for self.end in ("low", "high"):
                ends[self.end] = self._once(*arguments).time.time_us
                before.put_back()
        self.end = "nominal"
        launch = self._once(*arguments)
        if ends:
            launch.time.low_us = min(ends["low"], launch.time.time_us)
            launch.time.high_us = max(ends["high"], launch.time.time_us)
        return launch

    def _once(self, code, grid, block, cluster, dynamic_smem: int, params: bytes) -> Launch:
        options = self.options
        self.constants = self.c = options.gpu.constants(self.end, options.constants)
        self.chip = Memory(
            self.c, options.clock_ghz, options.dirty_l2, options.cold, options.gpu.gpcs
        )
        for region in self.warm:
            self.chip.warm(region)
        self.placement = options.gpu.placement()
        self.heap: list = []
        self.order = itertools.count()
        self.last_store = 0.0
        self.record = Timeline(options.trace)
        self.arithmetic = options.arithmetic or depends_on_arithmetic(code.structure) is not None
        Clock.now = Server.now = 0.0
        collecting = gc.isenabled()
        gc.disable()  # the queue holds many objects that live on: looking for cycles costs a tenth
        try:
            launch = super().launch(code, grid, block, cluster, dynamic_smem, params)
        finally:
            Clock.now = 0.0
            if collecting:
                gc.enable()
        self.record.finish(self, launch)
        launch.time = self.record
        return launch

    # --- the queue --------------------------------------------------------------------------------
    def enqueue(self, fragment: Fragment) -> None:
        if not fragment.queued:
            fragment.queued = True
            heapq.heappush(self.heap, (fragment.time, next(self.order), fragment))

    def at(self, time: float, action: Effect) -> None:
        """Call `action()` at a simulated time."""
        heapq.heappush(self.heap, (time, next(self.order), action))

    def wake(self, fragment: TimedFragment, waitable: Waitable) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Let the fragment look again, at the time when it can have noticed the event."""
        fragment.woken_by = waitable
        if waitable.time > fragment.time:
            ins = self.code.structure[fragment.pc].ops[0].ins
            what = WAITS.get(type(waitable).__name__, "another warp")
            barrier = waitable if isinstance(waitable, MBarrier) else None
            self.stall(fragment, waitable.time, ins, what, barrier)
        self.enqueue(fragment)

    def stall(
        self, fragment: Fragment, until: float, ins, what: str, barrier: MBarrier | None = None
    ) -> None:
        """Stop the fragment at an instruction until a time, and record the wait for `what`."""
        self.record.stalled(fragment, fragment.time, until, ins, what, barrier)
        fragment.time = until

    def core(self, fragment: TimedFragment) -> SubCore:
        return fragment.core

    # --- CTAs -------------------------------------------------------------------------------------
    def _run(self, waiting, launch: Launch):
        self.waiting, self.the_launch = waiting, launch
        self.left = 0
        self.next_cluster = next(waiting, None)
        start = self.c.cta_start_us * 1e3 * self.options.clock_ghz
        self._start_clusters(start)
        heap, pop = self.heap, heapq.heappop
        while heap or let_others_go(self):
            time, _, item = pop(heap)
            if isinstance(item, TimedFragment):
                item.queued = False
                self._turn(item, launch)
            else:
                Clock.now = Server.now = time
                try:
                    item()
                except Fault as fault:
                    raise EmulatorError(
                        "fault", f"{fault}\n  in an asynchronous operation"
                    ) from None
        self.resident = [
            c for c in self.resident if any(w.live for cta in c.ctas for w in cta.warps)
        ]
        if self.resident or self.next_cluster is not None:
            self._raise_stuck(launch)

    def _start_clusters(self, at: float):
        """Start clusters while there is room."""
        dispatch = self.c.cta_dispatch_ns * self.options.clock_ghz
        while self.next_cluster is not None:
            sms = self.placement.place(self.the_launch)
            if sms is None:
                return
            Clock.now = at
            self._admit(self.next_cluster, self.the_launch, sms)
            self.record.started(self.next_cluster, at)
            at += dispatch * len(sms)
            self.next_cluster = next(self.waiting, None)

    def new_warp(self, cta, state) -> None:
        """Called for each warp before its fragment is made."""
        cta.sm.cores[state.index % 4].warps += 1

    def lanes_exited(self, state, lanes: int) -> None:
        super().lanes_exited(state, lanes)
        state.end = max(state.end, Clock.now)
        if state.live:
            return
        cta = state.cta
        cta.sm.cores[state.index % 4].warps -= 1
        if cta.exited_warps == len(cta.warps):
            cta.end = max(w.end for w in cta.warps)
            cluster = cta.cluster
            ends = [other.end for other in cluster.ctas if other.end is not None]
            if len(ends) == len(cluster.ctas):
                self.at(max(ends), lambda: self._finished(cluster))

    def _finished(self, cluster: Cluster):
        """A cluster's CTAs are gone: their SMs take the next ones."""
        self.record.ended(cluster)
        self.resident.remove(cluster)
        self.placement.release([cta.sm for cta in cluster.ctas], self.the_launch)
        clustered = len(cluster.ctas) > 1
        relaunch = self.c.cluster_relaunch if clustered else self.c.cta_relaunch
        self._start_clusters(Clock.now + relaunch)

    # --- a turn -----------------------------------------------------------------------------------
    def run_blocks(self, f: TimedFragment) -> int | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Run blocks of a fragment until another fragment or an event is earlier."""
        blocks, hits, R, heap = self.code.blocks, self.hits, f.R, self.heap
        seen = self.record.blocks[f.index]
        pc = f.pc
        while True:
            f.pc = pc
            hits[pc] += 1
            seen.add(pc)
            Clock.now = Server.now = f.time
            pc = blocks[pc](f, R)
            if pc == EXIT or pc == f.reconv:
                Clock.now = f.time
                pc = f.arrive_or_exit(pc)
                if pc is None:
                    return None
            if heap and heap[0][0] < f.time:
                return pc
