"""The machine: grid -> clusters -> CTAs -> warps, and the scheduler that runs their fragments.

A fragment (fragment.py) runs until it must wait or its turn is over. When nothing can run, the
launch is deadlocked and the report says who waits for what.

Clusters start in order and run to their end one after the other. Further clusters join while the
resident ones wait or run long, up to what the GPU holds, so waiting across the grid works, too.
"""

from __future__ import annotations

import functools
import itertools
from collections import deque
from collections.abc import Iterator, Sequence
from typing import NoReturn

import numpy as np
from threadpoolctl import ThreadpoolController

from b200.chip import describe as report
from b200.chip import instruction_set as _instruction_set  # noqa: F401  registers every unit
from b200.chip.budget import Budget
from b200.chip.fragment import ClusterBarrier, Fragment, WarpState
from b200.chip.launch import (
    RESERVED_SMEM,
    Launch,
    check_limits,
    special_registers,
    thread_registers,
)
from b200.chip.meeting import let_others_go, never_complete
from b200.chip.operations import Effect, Operation
from b200.chip.placement import Placement, Seat, shares_sm
from b200.chip.polls import name_polls
from b200.chip.spin import LOOK, Spinning
from b200.chip.standing_clock import clocks_at, clocks_go_on
from b200.chip.state import CTA, Cluster, GlobalMemory
from b200.chip.sync.barrier_record import BarrierHistory, WaitedTwice
from b200.chip.sync.mbarrier import MBarrier
from b200.chip.tensor import int8_product
from b200.errors import EmulatorError, Fault, Unsupported
from b200.hardware import SMEM_LENT
from b200.program.analysis import EXIT
from b200.program.module import Instr
from b200.program.translated import Translated
from b200.registry import QUIET, Blocked, Waitable
from b200.spaces import LOCAL_WINDOW, PARAM_WINDOW, SHARED_WINDOW, WINDOW_MASK

TURN = 4096  # blocks a fragment executes before others get a turn
CANCEL_FAILS = 4  # of so many requests of cluster launch control one fails early


class Machine:
    """A GPU in software. `memory`: global memory. One launch runs at a time."""

    fragment_type = Fragment
    writer_type: type | None = None  # of the translator; None: the plain one
    turn = TURN
    keep_stores = False  # whether a machine that checks says in launch.stores who stored what

    def __init__(self, memory: GlobalMemory):
        self.memory = memory
        self.params = b""
        self.unwritten_smem = 0xFF  # a byte of shared memory that nothing has written, and the like
        self.unwritten_tmem = 0xFF  # likewise, of tensor memory
        self.symbols: dict[str, int] = {}
        self.budget = Budget()
        self.workspace = 0  # address of that of the next launch, if it is cooperative
        self.dependent = False  # whether the next launch may start before the one before has ended
        self.replicates = False  # Program.replicates, of the next launch
        self.queue: deque[Fragment] = deque()
        self.resident: list[Cluster] = []
        self.next_cluster: Cluster | None = None
        self.waiting: Iterator[Cluster] = iter(())
        self.started = 0  # clusters
        self.requests = 0  # of cluster launch control
        self.left = bytearray()  # a byte for each block of the turn: cleared, it ends
        self.gives_way = False  # whether the running fragment ends its turn for others of its CTA

    # --- what units use ---------------------------------------------------------------------------
    def issue(self, operation: Operation, warp: Fragment, apply: Effect) -> None:
        """A warp issues an asynchronous operation. `apply` is its effect, to be called exactly
        once; this machine calls it immediately.
        """
        apply()

    def barrier_history(self, mbarrier: MBarrier) -> BarrierHistory | None:
        """The recorded history of an mbarrier; None here, because this machine records nothing."""
        return None

    def waited_twice(self) -> list[WaitedTwice]:
        """Warps whose latest two waits passed with one parity; none here: nothing is recorded."""
        return []

    def load_generic(self, warp: Fragment, address: int, nbytes: int) -> bytes:
        """Bytes at a generic address; local memory is that of the lowest lane."""
        window, at = address & ~WINDOW_MASK, address & WINDOW_MASK
        if window == PARAM_WINDOW:
            if at + nbytes > len(self.params):
                raise Fault(
                    f"access of {nbytes} bytes at parameter offset {at} of {len(self.params)}"
                )
            return self.params[at : at + nbytes]
        if window == SHARED_WINDOW:
            cta, offset = warp.cta.cluster.locate(at, nbytes)
            return bytes(cta.smem.mem[offset : offset + nbytes])
        if window == LOCAL_WINDOW:
            raise Fault(f"a descriptor must not lie in local memory (address {at:#x})")
        region = self.memory.region(address, nbytes)
        return bytes(region.mem[address - region.base : address - region.base + nbytes])

    def undefined(
        self, what: str, missing: str, ins: Instr | None = None, wrong: bool = False
    ) -> None:
        """Called when an instruction does something that PTX leaves undefined and the chip defines.
        ins: the instruction, None for the running one. missing: what would be right. wrong: whether
        the chip does not define it, either: the result is bytes of `unwritten_smem`.
        """

    def wait_for_grids(self) -> None:
        """A warp waits for the previous launches (griddepcontrol.wait): raises Blocked while they
        run. In this machine they have always ended.
        """

    def cancel_next(self) -> Cluster | None:
        """Take the next cluster off the launch, for a warp that asks for its work (cluster launch
        control). Returns None if the request fails: where every cluster has started, and one in
        CANCEL_FAILS before, so that a kernel meets both answers, and clusters that others replace.
        """
        self.requests += 1
        return None if self.requests % CANCEL_FAILS == 0 else self.take_next()

    def take_next(self) -> Cluster | None:
        """The next cluster, which will not start; None if all have started."""
        cluster = self.next_cluster
        if cluster is not None:
            self.next_cluster = next(self.waiting, None)
            self.started += 1
        return cluster

    def settle(self) -> bool:
        """Called when no warp can run: let one delayed effect happen. False if there is none."""
        return False

    def next_fragment(self) -> Fragment:
        """The fragment that runs next, taken from the queue."""
        return self.queue.popleft()

    def wait_passed(self, fragment: Fragment) -> None:
        """A fragment need not wait for an mbarrier, or not any more. Where all warps of its CTA
        come, those that can run go on first: copies take no time here, so the first warp of a loop
        that all run could pass its waits two phases ahead of the others, which then hang.
        """
        if any(f.cta is fragment.cta for f in self.queue) and fragment.pc in self.code.common:
            self.left.clear()
            self.gives_way = True

    def new_warp(self, cta: CTA, state: WarpState) -> None:
        """A warp becomes resident."""

    def wake(self, fragment: Fragment, waitable: Waitable) -> None:
        """Let a fragment run again: `waitable`, for which it waited, has happened."""
        self.enqueue(fragment)

    def enqueue(self, fragment: Fragment) -> None:
        if not fragment.queued:
            fragment.queued = True
            self.queue.append(fragment)

    def lanes_exited(self, state: WarpState, lanes: int) -> None:
        self.spinning.progress()
        state.live &= ~lanes
        cta = state.cta
        cta.cluster.barrier.drop(bin(lanes).count("1"))
        if state.live == 0:
            cta.exited_warps += 1
            for barrier in cta.named_barriers.values():
                barrier.check()
            if cta.exited_warps == len(cta.warps):
                self.budget.see(cta)

    # --- a launch ---------------------------------------------------------------------------------
    def launch(
        self, code: Translated, grid, block, cluster, dynamic_smem: int, params: bytes, /
    ) -> Launch:
        """Run a grid to its end. Raises EmulatorError: fault, deadlock, unsupported, limit,
        internal.
        """
        self.code = code
        smem = code.static_smem + dynamic_smem
        launch = Launch(code.kernel.name, tuple(grid), tuple(block), tuple(cluster), smem)
        check_limits(launch, len(params))
        self.params, self.resident, self.queue = params, [], deque()
        self.hits = [0] * len(code.blocks)
        self.spinning, self.cycles = Spinning(self), 0
        self.budget = launch.budget = Budget.of(code, launch)
        waiting = self._clusters(launch)
        with (
            np.errstate(all="ignore"),
            _blas().limit(limits=1, user_api="blas"),
            int8_product.one_thread(),
        ):
            self._run(waiting, launch)
        launch.counters = report.count(code, self.hits)
        return launch

    def _clusters(self, launch: Launch) -> Iterator[Cluster]:
        """The grid's clusters, x fastest."""
        shape = launch.cluster
        counts = [g // c for g, c in zip(launch.grid, shape, strict=True)]
        for z, y, x in itertools.product(*(range(n) for n in reversed(counts))):
            yield Cluster(launch, (x, y, z), shape)

    def _admit(self, cluster: Cluster, launch: Launch, sms: Sequence[Seat]):
        """Make a cluster resident: its CTAs on their SMs, warps and their special registers."""
        nx, ny, nz = cluster.shape
        threads = launch.block[0] * launch.block[1] * launch.block[2]
        shares = shares_sm(launch, cluster.index)
        lent = 0 if self.code.special.isdisjoint(RESERVED_SMEM) else SMEM_LENT
        cluster.barrier = ClusterBarrier(cluster, threads * nx * ny * nz)
        for rank in range(nx * ny * nz):
            x, y, z = cluster.index
            index = (x * nx + rank % nx, y * ny + rank // nx % ny, z * nz + rank // (nx * ny))
            cta = CTA(cluster, rank, index, launch.smem_bytes, sms[rank], self.unwritten_smem)
            cta.threads, cta.shares_sm, cta.smem_lent = threads, shares, lent
            cta.unwritten_tmem = self.unwritten_tmem
            cluster.ctas.append(cta)
        for cta in cluster.ctas:
            shared = special_registers(launch, cluster, cta, self.workspace)
            for w in range(-(-threads // 32)):
                lanes = min(32, threads - 32 * w)
                state = WarpState(
                    cta,
                    w,
                    lanes,
                    self.code.initial,
                    {**shared, **clocks_at(self.cycles), **thread_registers(launch.block, w)},
                )
                cta.warps.append(state)
                self.new_warp(cta, state)
                self.enqueue(self.fragment_type(self, state, state.live))
        self.resident.append(cluster)
        self.started += 1

    def _run(self, waiting: Iterator[Cluster], launch: Launch):
        placement = Placement()
        self.started, self.requests, self.waiting = 0, 0, waiting
        self.next_cluster = next(waiting, None)
        while True:
            if not self.queue or self.spinning.all_stand():
                started = self.settle() or self._start_next(waiting, launch, placement)
                if started or let_others_go(self) or clocks_go_on(self):
                    self.spinning.progress()
                    continue
                for cluster in self._ended():
                    self.resident.remove(cluster)
                if self.resident:
                    self._raise_stuck(launch)
                return
            fragment = self.next_fragment()
            fragment.queued = False
            if self._turn(fragment, launch):
                self._start_next(waiting, launch, placement)

    def _raise_stuck(self, launch: Launch) -> NoReturn:
        """No warp can run, and some have not ended."""
        if (found := never_complete(self)) is not None:
            raise EmulatorError("fault", report.fault(self, launch, *found))
        name_polls(self)
        if (said := report.waits_for_host(self)) is not None:
            raise EmulatorError("unsupported", said)
        raise EmulatorError("deadlock", report.deadlock(self, launch))

    def _start_next(self, waiting: Iterator[Cluster], launch: Launch, placement: Placement) -> bool:
        """Start the next cluster if there is one and there is room for its CTAs."""
        if self.next_cluster is None:
            return False
        for cluster in self._ended():
            self.resident.remove(cluster)
            placement.release([cta.sm for cta in cluster.ctas], launch)
        sms = placement.place(launch)
        if sms is None:
            return False
        self._admit(self.next_cluster, launch, sms)
        self.next_cluster = next(waiting, None)
        return True

    def _ended(self) -> list[Cluster]:
        """Resident clusters of which no warp is left."""
        return [c for c in self.resident if not any(w.live for cta in c.ctas for w in cta.warps)]

    def _turn(self, f: Fragment, launch: Launch) -> bool:
        """Run a fragment until it waits, gives way or ends (False) or its turn is over (True)."""
        if self.spinning.stands(f):
            self.enqueue(f)
            return True
        f.spin = f.spin or QUIET
        self.gives_way = False
        try:
            pc = self.run_blocks(f)
        except Blocked as blocked:
            self.spinning.progress()
            self.hits[f.pc] -= 1
            if blocked.waitable is None:
                self.enqueue(f)
                return False
            f.waits_for = blocked.waitable
            blocked.waitable.waiters.append(f)
            return False
        except EmulatorError:
            raise
        except Exception as error:
            if not isinstance(error, Fault):
                said = report.internal(self, launch, f, error)
                raise EmulatorError("internal", said) from error
            kind = "unsupported" if isinstance(error, Unsupported) else "fault"
            raise EmulatorError(kind, report.fault(self, launch, f, error)) from None
        if f.spin is not QUIET:
            self.spinning.progress()
        if pc is None:
            self.spinning.joins[f.state] += 1
            return False
        f.pc = pc
        self.enqueue(f)
        return not self.gives_way

    def run_blocks(self, f: Fragment) -> int | None:
        """Run blocks of a fragment. Returns the block that it goes on with in its next turn; None
        if it has ended or another fragment of its warp goes on.
        """
        first = min(self.spinning.before_look(f), self.turn)
        pc = self._run_some(f, f.pc, first)
        if pc is None or first == self.turn or self.gives_way:
            return pc
        if f.spin is QUIET:
            f.pc = pc
            pc = self.spinning.look(f)
            if pc is None or self.gives_way or f.spin is QUIET and self.spinning.stands(f):
                return pc
        pc = self._run_some(f, pc, max(0, self.turn - first - LOOK))
        if pc is not None and f.spin is QUIET:
            f.pc = pc
            return self.spinning.went_on(f, self.turn)
        return pc

    def _run_some(self, f: Fragment, pc: int, count: int) -> int | None:
        """`count` blocks of run_blocks."""
        blocks, hits, R = self.code.blocks, self.hits, f.R
        self.left = left = bytearray(count)
        for _ in left:
            f.pc = pc
            hits[pc] += 1
            pc = blocks[pc](f, R)
            if pc == EXIT or pc == f.reconv:
                after = f.arrive_or_exit(pc)
                if after is None:
                    return None
                pc = after
        return pc


@functools.cache
def _blas() -> ThreadpoolController:
    """The products of one MMA are too small to share: threads would only wait for each other."""
    return ThreadpoolController()
