"""The machine: grid -> clusters -> CTAs -> warps, and what their instructions ask of it.

A machine is put together: global memory, an order (order.py: who runs next, and when asynchronous
operations take effect), and watchers (watcher.py: the checker, the explorer). Results do not depend
on watchers.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, TypeVar

import numpy as np
from threadpoolctl import ThreadpoolController  # pyright: ignore[reportMissingTypeStubs]  see _Threads

from b200.chip import describe
from b200.chip import instruction_set as _units  # noqa: F401  # pyright: ignore[reportUnusedImport]  it registers
from b200.chip.budget import Budget
from b200.chip.child_grids import ChildGrids
from b200.chip.fragment import ClusterBarrier, Fragment, WarpState
from b200.chip.global_memory import GlobalMemory
from b200.chip.launch import (
    RESERVED_SMEM,
    Launch,
    Shape,
    check_limits,
    special_registers,
    thread_registers,
)
from b200.chip.operations import Action, Operation
from b200.chip.order import InOrder
from b200.chip.placement import Seat, shares_sm
from b200.chip.spin import Spinning
from b200.chip.standing_clock import ClockWait, clocks_at
from b200.chip.state import CTA, Cluster
from b200.chip.sync.barrier_record import BarrierHistory, SlippedWait
from b200.chip.sync.mbarrier import MBarrier
from b200.chip.tensor import int8_product
from b200.chip.time_limits import TimeLimits
from b200.chip.watcher import Watcher
from b200.errors import EmulatorError, Fault
from b200.hardware import SMEM_LENT
from b200.program.module import Instr
from b200.program.translated import Translated
from b200.spaces import LOCAL_WINDOW, PARAM_WINDOW, SHARED_WINDOW, WINDOW_MASK

W = TypeVar("W", bound=Watcher)


T = TypeVar("T")


def _of_all(asked: Iterable[type[T] | None], looks: Sequence[object]) -> type[T] | None:
    """The class that is of all those that an order and watchers ask for, None if none does.
    ValueError if none of them is: who sees a run in a way of its own does not go with the others.
    """
    types = [each for each in asked if each is not None]
    for kind in types:
        if all(issubclass(kind, each) for each in types):
            return kind
    if types:
        together = ", ".join(type(look).__name__ for look in looks)
        why = f"no one of {', '.join(each.__name__ for each in types)} is all of them"
        raise ValueError(f"{together} do not go together in a machine: {why}")
    return None


class _Threads(Protocol):
    """threadpoolctl's controller, which has no types."""

    def limit(self, *, limits: int, user_api: str) -> AbstractContextManager[object]: ...


class Machine:
    """A GPU in software. `memory`: global memory. One launch runs at a time.

    order: of turns and effects; the usual one if None. watchers: they are told what happens, in
    this order.
    """

    def __init__(
        self, memory: GlobalMemory, order: InOrder | None = None, watchers: Sequence[Watcher] = ()
    ):
        self.memory = memory
        self.order, self.watchers = order or InOrder(), tuple(watchers)
        self.params = b""
        self.unwritten_smem = 0xFF  # a byte of shared memory that nothing has written, and the like
        self.unwritten_tmem = 0xFF  # likewise, of tensor memory
        self.unwritten_local: int | None = None  # likewise, of local memory; None: the pattern
        self.freed_tmem: int | None = None  # a byte of deallocated columns; None: they keep theirs
        self.symbols: dict[str, int] = {}
        self.grids = ChildGrids()
        self.budget = Budget()
        self.resident: list[Cluster] = []
        self.next_cluster: Cluster | None = None
        self.waiting: Iterator[Cluster] = iter(())
        self.started = 0  # clusters
        looks = (self.order, *self.watchers)
        fragment_type = _of_all((each.fragment_type for each in looks), looks)
        self.fragment_type: type[Fragment] = fragment_type or Fragment
        self.writer_type = _of_all((each.writer_type for each in looks), looks)
        self.enqueue, self.wake = self.order.enqueue, self.order.wake
        self.wait_passed = self.order.wait_passed
        self.wait_for_grids, self.cancel_next = self.order.wait_for_grids, self.order.cancel_next
        for each in looks:
            each.attach(self)

    def watcher(self, kind: type[W]) -> W | None:
        """The watcher of a kind; None if there is none."""
        return next((each for each in self.watchers if isinstance(each, kind)), None)

    # --- what units use ---------------------------------------------------------------------------
    def issue(self, operation: Operation, warp: Fragment, apply: Action) -> None:
        """A warp issues an asynchronous operation. `apply` is its effect, which the order lets
        happen exactly once.
        """
        self.order.issue(operation, warp, self.watched(operation, warp, apply))

    def watched(self, operation: Operation, warp: Fragment, apply: Action) -> Action:
        """The effect of an operation that a warp issues, as those who watch want it carried out."""
        for watcher in self.watchers:
            apply = watcher.issued(operation, warp, apply)
        return apply

    def barrier_history(self, mbarrier: MBarrier) -> BarrierHistory | None:
        """The recorded history of an mbarrier; None if nobody records it."""
        for watcher in self.watchers:
            if (found := watcher.barrier_history(mbarrier)) is not None:
                return found
        return None

    def slipped_waits(self) -> list[SlippedWait]:
        """Warps whose waits do not go with the phases of an mbarrier, as far as it is recorded."""
        return [found for watcher in self.watchers for found in watcher.slipped_waits()]

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
        self, what: str, missing: str, ins: Instr | None = None, nobodys: str = ""
    ) -> None:
        """Called when an instruction does something that PTX leaves undefined and the chip defines.
        ins: the instruction, None for the running one. missing: what would be right. nobodys: ""
        or what the chip does not define, either: "shared" if the result is bytes of
        `unwritten_smem`, "local" if of local memory, "behind" if it is bytes behind an allocation
        (GlobalMemory.behind).
        """
        for watcher in self.watchers:
            watcher.undefined(what, missing, ins, nobodys)

    def take_next(self) -> Cluster | None:
        """The next cluster, which will not start; None if all have started."""
        cluster = self.next_cluster
        if cluster is not None:
            self.next_cluster = next(self.waiting, None)
            self.started += 1
        return cluster

    def lanes_exited(self, state: WarpState, lanes: int) -> None:
        self.spinning.progress()
        state.live &= ~lanes
        cta = state.cta
        cta.cluster.barrier.drop(lanes.bit_count())
        if state.live == 0:
            cta.exited_warps += 1
            for barrier in cta.named_barriers.values():
                barrier.check()
            if cta.exited_warps == len(cta.warps):
                self.budget.see(cta)
        self.order.exits(state, lanes)
        for watcher in self.watchers:
            watcher.exits(state, lanes)

    # --- a launch ---------------------------------------------------------------------------------
    def launch(self, code: Translated, shape: Shape, params: bytes) -> Launch:
        """Run a grid to its end. Raises EmulatorError: fault, deadlock, unsupported, limit,
        internal.
        """
        arguments = shape, params

        def carry_out() -> Launch:
            return self._carry_out(code, shape, params)

        for watcher in self.watchers:
            watcher.begins(code, arguments)
        try:
            launch = self.order.launch(carry_out, code, arguments)
        except EmulatorError as error:
            found = error
            for watcher in self.watchers:
                found = watcher.fails(found)
            if found is error:
                raise
            raise found from None
        finally:
            for watcher in self.watchers:
                watcher.over()
        for watcher in self.watchers:
            watcher.ends(launch, code, arguments)
        return launch

    def _carry_out(self, code: Translated, shape: Shape, params: bytes) -> Launch:
        self.code, self.shape = code, shape
        smem = code.static_smem + shape.smem
        launch = Launch(code.kernel.name, shape.grid, shape.block, shape.cluster, smem)
        check_limits(launch, len(params))
        self.params, self.resident, self.started = params, [], 0
        self.grids = ChildGrids()
        self.hits = [0] * len(code.blocks)
        self.spinning, self.cycles, self.wait = Spinning(self), 0, ClockWait()
        self.limits = TimeLimits()
        self.budget = launch.budget = Budget.of(code, launch)
        self.waiting = iter(self.order.clusters(self._clusters(launch)))
        with (
            np.errstate(all="ignore"),
            _blas().limit(limits=1, user_api="blas"),
            int8_product.one_thread(),
        ):
            self.order.run(self.waiting, launch)
        launch.counters = describe.count(code, self.hits)
        return launch

    def _clusters(self, launch: Launch) -> Iterator[Cluster]:
        """The grid's clusters, x fastest."""
        shape = launch.cluster
        counts = [g // c for g, c in zip(launch.grid, shape, strict=True)]
        for z, y, x in itertools.product(*(range(n) for n in reversed(counts))):
            yield Cluster(launch, (x, y, z), shape)

    def admit(self, cluster: Cluster, launch: Launch, sms: Sequence[Seat]) -> None:
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
            cta.unwritten_tmem, cta.freed_tmem = self.unwritten_tmem, self.freed_tmem
            cluster.ctas.append(cta)
        for cta in cluster.ctas:
            shared = special_registers(launch, cluster, cta, self.shape.workspace)
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
                self.order.new_warp(state)
                self.enqueue(self.fragment_type(self, state, state.live))
        self.resident.append(cluster)
        self.started += 1

    def warps(self) -> Iterator[WarpState]:
        """The warps of all resident clusters."""
        return (state for c in self.resident for cta in c.ctas for state in cta.warps)

    def fragments(self) -> Iterator[Fragment]:
        """The fragments of all resident clusters."""
        return (warp for state in self.warps() for warp in state.fragments)

    def ended(self) -> list[Cluster]:
        """Resident clusters of which no warp is left."""
        return [c for c in self.resident if not any(w.live for cta in c.ctas for w in cta.warps)]


@functools.cache
def _blas() -> _Threads:
    """The products of one MMA are too small to share: threads would only wait for each other."""
    return ThreadpoolController()
