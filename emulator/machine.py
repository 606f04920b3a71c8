"""The machine: grid -> clusters -> CTAs -> warps -> fragments, and the scheduler that runs them.

A fragment is the part of a warp whose lanes execute together. A divergent branch splits it; the
parts run independently (a lane that waits does not stop its siblings) and meet again at the
branch's post-dominator, as compiled code does. A fragment runs until it must wait or its turn is
over. When nothing can run, the launch is deadlocked and the report says who waits for what.

Clusters start in order and run to their end one after the other; further clusters join while the
resident ones wait or are long in running, up to what the GPU holds, so grid-wide waiting works as
well.
"""

from __future__ import annotations

import functools
import itertools
from collections import deque
from dataclasses import dataclass, field

import numpy as np
from threadpoolctl import ThreadpoolController

from . import report
from .errors import EmulatorError, Fault, Unsupported
from .hardware import MAX_CLUSTER, MAX_THREADS, PARAM_BYTES, SM_COUNT, SMEM_OPT_IN
from .registry import FULL, Blocked, Clock, Waitable
from .spaces import LOCAL_WINDOW, PARAM_WINDOW, SHARED_WINDOW, WINDOW_MASK
from .state import CTA, RANK_SHIFT, Cluster, GlobalMemory
from .translate import EXIT, Translated

TURN = 4096  # blocks a fragment executes before others get a turn


@dataclass
class Launch:
    """What one launch was and did.

    smem_bytes: dynamic + static shared memory of a CTA. seconds: wall clock of the emulation.
    counters: how many instructions were executed by warps, by opcode without modifiers' values
    ("tcgen05.mma", "cp.async.bulk.tensor").
    """

    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int]
    smem_bytes: int
    seconds: float = 0.0
    counters: dict[str, int] = field(default_factory=dict)


class ClusterBarrier(Waitable):
    """barrier.cluster: all threads of the cluster that have not exited arrive once a phase."""

    __slots__ = ("cluster", "phase", "arrived", "expected")

    def __init__(self, cluster: Cluster, expected: int):
        super().__init__()
        self.cluster, self.phase, self.arrived, self.expected = cluster, 0, 0, expected

    def arrive(self, lanes: int):
        self.touch()
        self.arrived += lanes
        self.check()

    def drop(self, lanes: int):
        self.expected -= lanes
        self.check()

    def check(self):
        if self.expected and self.arrived >= self.expected:
            self.phase, self.arrived = self.phase + 1, 0
            self.notify()

    def describe(self) -> str:
        return (
            f"the cluster barrier, phase {self.phase}: {self.arrived} of {self.expected} threads"
            f" have arrived, {self.expected - self.arrived} are missing"
        )


class WarpState:
    """What the fragments of a warp share."""

    def __init__(self, cta: CTA, index: int, lanes: int, registers: list, special: dict):
        self.cta, self.index, self.special = cta, index, special
        self.live = (1 << lanes) - 1
        self.R = registers.copy()  # arrays are replaced, never written to
        self.fragments: list[Fragment] = []
        self.cluster_arrived = 0  # lanes between barrier.cluster.arrive and .wait
        self.cluster_phase = 0
        self.local: np.ndarray | None = None


@dataclass(eq=False)
class Join:
    """Where lanes that parted meet: `waiting` lanes are due at block `pc`, `arrived` are there."""

    pc: int
    waiting: int
    arrived: int
    parent: Join | None
    parent_pc: int
    time: float = 0.0  # simulated, of the latest arrival


class Fragment:
    """Lanes of a warp that execute together; this is the `warp` that units are handed."""

    __slots__ = tuple(
        """
        state machine cta index special params symbols rank_bits mask pc reconv join spin token
        waits_for queued time
        """.split()
    )

    def __init__(self, machine: Machine, state: WarpState, mask: int, pc: int = 0):
        self.machine, self.state, self.mask, self.pc = machine, state, mask, pc
        self.cta, self.index, self.special = state.cta, state.index, state.special
        self.params, self.symbols = machine.params, machine.symbols
        self.rank_bits = state.cta.rank << RANK_SHIFT
        self.reconv, self.join = EXIT, None
        self.spin = self.token = self.waits_for = None
        self.queued = False
        self.time = Clock.now  # simulated time it has reached; only the timing model moves it
        state.fragments.append(self)

    @property
    def R(self) -> list:
        return self.state.R

    @property
    def live(self) -> int:
        """Lanes of the warp that have not exited."""
        return self.state.live

    def wake(self):
        """Called by the waitable this fragment waits for."""
        waitable, self.waits_for = self.waits_for, None
        self.machine.wake(self, waitable)

    def split(self, taken: int, target: int, after: int, meet: int) -> int:
        """Divergent branch: `taken` lanes go to `target`, the others to `after`, both as far as
        `meet`.
        """
        others = self.mask & ~taken
        join = Join(meet, self.mask, 0, self.join, self.reconv)
        self.join, self.reconv = join, meet
        if target == meet != EXIT:
            join.arrived, self.mask = taken, others
            return after
        self.mask = taken
        if after == meet != EXIT:
            join.arrived = others
        else:
            sibling = type(self)(self.machine, self.state, others, after)
            sibling.join, sibling.reconv, sibling.time = join, meet, self.time
            self.machine.enqueue(sibling)
        return target

    def retire(self, lanes: int):
        """Some lanes exit, the fragment goes on."""
        self.mask &= ~lanes
        self._leave(lanes)

    def arrive_or_exit(self, pc: int) -> int | None:
        """The fragment is at the end of its region or of the kernel: the block to go on with, None
        if it ends.
        """
        while True:
            if pc == EXIT:
                self.state.fragments.remove(self)
                self._leave(self.mask)
                return None
            join = self.join
            if join is None or pc != self.reconv:
                return pc
            join.arrived |= self.mask
            self.time = join.time = max(join.time, self.time)
            if join.arrived != join.waiting:
                self.state.fragments.remove(self)
                return None
            self.mask, self.join, self.reconv = join.waiting, join.parent, join.parent_pc
            if self.reconv != pc:
                return pc

    def _leave(self, lanes: int):
        """Lanes have exited: nobody waits for them any more."""
        join = self.join
        while join is not None:
            join.waiting &= ~lanes
            if join.waiting and join.waiting == join.arrived:
                rest = type(self)(self.machine, self.state, join.waiting, join.pc)
                rest.join, rest.reconv, rest.time = (
                    join.parent,
                    join.parent_pc,
                    max(join.time, self.time),
                )
                join.waiting = 0  # taken over
                pc = rest.arrive_or_exit(rest.pc) if rest.reconv == rest.pc else rest.pc
                if pc is not None:
                    rest.pc = pc
                    self.machine.enqueue(rest)
                break
            join = join.parent
        self.machine.lanes_exited(self.state, lanes)

    def trap(self):
        raise Fault("trap executed")


class Machine:
    """A GPU in software. `memory`: global memory. One launch runs at a time."""

    fragment_type = Fragment
    writer_type: type | None = None  # of the translator; None: the plain one
    turn = TURN

    def __init__(self, memory: GlobalMemory):
        self.memory = memory
        self.params = b""
        self.symbols: dict[str, int] = {}
        self.queue: deque[Fragment] = deque()
        self.resident: list[Cluster] = []

    # --- what units use
    # -------------------------------------------------------------------------------------
    def issue(self, unit: str, warp: Fragment, apply, **facts):
        """An asynchronous effect of a unit; this policy lets it happen at once."""
        apply()

    def load_generic(self, warp: Fragment, address: int, nbytes: int) -> bytes:
        """Bytes at a generic address (global, shared, local of the lowest lane, kernel
        parameter).
        """
        window, at = address & ~WINDOW_MASK, address & WINDOW_MASK
        if window == PARAM_WINDOW:
            if at + nbytes > len(self.params):
                raise Fault(
                    f"access of {nbytes} bytes at parameter offset {at} of {len(self.params)}"
                )
            return self.params[at : at + nbytes]
        if window == SHARED_WINDOW:
            cta, offset = warp.cta.cluster.locate(at, warp.cta, nbytes)
            return bytes(cta.smem.mem[offset : offset + nbytes])
        if window == LOCAL_WINDOW:
            raise Fault(f"a descriptor in local memory (address {at:#x})")
        region = self.memory.region(address, nbytes)
        return bytes(region.mem[address - region.base : address - region.base + nbytes])

    def generic_to_shared(self, warp: Fragment, address: int) -> int:
        """The shared::cluster address a generic address stands for."""
        if address & ~WINDOW_MASK != SHARED_WINDOW:
            raise Fault(f"generic address {address:#x} is not in shared memory")
        return address & WINDOW_MASK

    def settle(self) -> bool:
        """No warp can run: let an asynchronous effect happen that was put off; False if there is
        none.
        """
        return False

    def next_fragment(self) -> Fragment:
        """The fragment that runs next, taken from the queue."""
        return self.queue.popleft()

    def new_warp(self, cta: CTA, state: WarpState):
        """A warp becomes resident."""

    def wake(self, fragment: Fragment, waitable: Waitable):
        """What a fragment waited for has happened."""
        self.enqueue(fragment)

    def enqueue(self, fragment: Fragment):
        if not fragment.queued:
            fragment.queued = True
            self.queue.append(fragment)

    def lanes_exited(self, state: WarpState, lanes: int):
        state.live &= ~lanes
        cta = state.cta
        cta.cluster.barrier.drop(bin(lanes).count("1"))
        if state.live == 0:
            cta.exited_warps += 1
            for barrier in cta.named_barriers.values():
                barrier.check()

    # --- a launch
    # -------------------------------------------------------------------------------------------
    def launch(
        self, code: Translated, grid, block, cluster, dynamic_smem: int, params: bytes
    ) -> Launch:
        """Run a grid to its end. EmulatorError (fault, deadlock, unsupported, limit) says what went
        wrong.
        """
        self.code = code
        smem = code.static_smem + dynamic_smem
        launch = Launch(code.kernel.name, tuple(grid), tuple(block), tuple(cluster), smem)
        check_limits(launch, len(params))
        self.params, self.resident, self.queue = params, [], deque()
        self.hits = [0] * len(code.blocks)
        waiting = self._clusters(launch)
        with np.errstate(all="ignore"), _blas().limit(limits=1, user_api="blas"):
            self._run(waiting, launch)
        launch.counters = report.count(code, self.hits)
        return launch

    def _clusters(self, launch: Launch):
        """The grid's clusters, x fastest."""
        shape = launch.cluster
        counts = [g // c for g, c in zip(launch.grid, shape, strict=True)]
        for z, y, x in itertools.product(*(range(n) for n in reversed(counts))):
            yield Cluster(launch, (x, y, z), shape)

    def _admit(self, cluster: Cluster, launch: Launch):
        """Make a cluster resident: its CTAs, warps and their special registers."""
        nx, ny, nz = cluster.shape
        threads = launch.block[0] * launch.block[1] * launch.block[2]
        cluster.barrier = ClusterBarrier(cluster, threads * nx * ny * nz)
        for rank in range(nx * ny * nz):
            at = (rank % nx, rank // nx % ny, rank // (nx * ny))
            index = tuple(
                c * n + a for c, n, a in zip(cluster.index, cluster.shape, at, strict=True)
            )
            cta = CTA(cluster, rank, index, launch.smem_bytes)
            cta.launch_smem, cta.threads = launch.smem_bytes, threads
            cluster.ctas.append(cta)
        for cta in cluster.ctas:
            shared = special_registers(launch, cluster, cta)
            for w in range(-(-threads // 32)):
                lanes = min(32, threads - 32 * w)
                state = WarpState(
                    cta,
                    w,
                    lanes,
                    self.code.initial,
                    {**shared, **thread_registers(launch.block, w)},
                )
                cta.warps.append(state)
                self.new_warp(cta, state)
                self.enqueue(self.fragment_type(self, state, state.live))
        self.resident.append(cluster)

    def _run(self, waiting, launch: Launch):
        limit = max(1, SM_COUNT // int(np.prod(launch.cluster)))
        while True:
            if not self.queue:
                if self.settle():
                    continue
                self.resident = [
                    c for c in self.resident if any(w.live for cta in c.ctas for w in cta.warps)
                ]
                if len(self.resident) < limit and (cluster := next(waiting, None)) is not None:
                    self._admit(cluster, launch)
                    continue
                if self.resident:
                    raise EmulatorError("deadlock", report.deadlock(self, launch))
                return
            fragment = self.next_fragment()
            fragment.queued = False
            if self._turn(fragment, launch) and len(self.resident) < limit:
                self.resident = [
                    c for c in self.resident if any(w.live for cta in c.ctas for w in cta.warps)
                ]
                if (cluster := next(waiting, None)) is not None:
                    self._admit(cluster, launch)

    def _turn(self, f: Fragment, launch: Launch) -> bool:
        """Run a fragment until it waits or ends (False) or its turn is over (True)."""
        blocks, hits, R = self.code.blocks, self.hits, f.state.R
        pc = f.pc
        try:
            for _ in range(self.turn):
                f.pc = pc
                hits[pc] += 1
                pc = blocks[pc](f, R)
                if pc == EXIT or pc == f.reconv:
                    pc = f.arrive_or_exit(pc)
                    if pc is None:
                        return False
        except Blocked as blocked:
            hits[f.pc] -= 1
            f.waits_for = blocked.waitable
            blocked.waitable.waiters.append(f)
            return False
        except EmulatorError:
            raise
        except Exception as error:
            kind = "unsupported" if isinstance(error, Unsupported) else "fault"
            if not isinstance(error, Fault):
                raise EmulatorError(
                    "unsupported", report.internal(self, launch, f, error)
                ) from error
            raise EmulatorError(kind, report.fault(self, launch, f, error)) from None
        f.pc = pc
        self.enqueue(f)
        return True


@functools.cache
def _blas() -> ThreadpoolController:
    """The products of one MMA are too small to share: threads would only wait for each other."""
    return ThreadpoolController()


def check_limits(launch: Launch, param_bytes: int):
    """Refuse what a B200 refuses, naming the limit."""
    threads = launch.block[0] * launch.block[1] * launch.block[2]
    ctas = launch.cluster[0] * launch.cluster[1] * launch.cluster[2]
    problems = []
    if not 1 <= threads <= MAX_THREADS:
        problems.append(f"{threads} threads a CTA, at most {MAX_THREADS} are possible")
    if launch.smem_bytes > SMEM_OPT_IN:
        problems.append(
            f"{launch.smem_bytes} bytes of shared memory a CTA, at most {SMEM_OPT_IN} are possible"
        )
    if ctas > MAX_CLUSTER:
        problems.append(f"{ctas} CTAs a cluster, at most {MAX_CLUSTER} are possible")
    if any(g < 1 for g in launch.grid):
        problems.append(f"grid {launch.grid} has an empty dimension")
    if any(g % c for g, c in zip(launch.grid, launch.cluster, strict=True)):
        problems.append(f"grid {launch.grid} is not a multiple of the cluster {launch.cluster}")
    if param_bytes > PARAM_BYTES:
        problems.append(
            f"{param_bytes} bytes of kernel parameters, at most {PARAM_BYTES} are possible"
        )
    if problems:
        raise EmulatorError("limit", f"launch of {launch.kernel} refused: " + "; ".join(problems))


def special_registers(launch: Launch, cluster: Cluster, cta: CTA) -> dict[str, int]:
    """Special registers that all warps of a CTA share."""
    out = {
        "smid": cta.rank,
        "nsmid": SM_COUNT,
        "gridid": 1,
        "nwarpid": 64,
        "dynamic_smem_size": launch.smem_bytes,
        "total_smem_size": launch.smem_bytes + 1024,
        "aggr_smem_size": launch.smem_bytes + 1024,
        "cluster_ctarank": cta.rank,
        "cluster_nctarank": len(cluster.ctas),
        "current_graph_exec": 0,
        "is_explicit_cluster": FULL if len(cluster.ctas) > 1 else 0,
        "clock": 0,
        "clock64": 0,
        "clock_hi": 0,
        "globaltimer": 0,
        "globaltimer_lo": 0,
        "globaltimer_hi": 0,
    }
    for i, axis in enumerate("xyz"):
        out[f"ctaid.{axis}"], out[f"nctaid.{axis}"], out[f"ntid.{axis}"] = (
            cta.index[i],
            launch.grid[i],
            launch.block[i],
        )
        out[f"clusterid.{axis}"] = cluster.index[i]
        out[f"nclusterid.{axis}"] = launch.grid[i] // cluster.shape[i]
        out[f"cluster_nctaid.{axis}"] = cluster.shape[i]
        out[f"cluster_ctaid.{axis}"] = cta.index[i] % cluster.shape[i]
    return out


_THREADS: dict[tuple, dict] = {}


def thread_registers(block, warp: int) -> dict:
    """Special registers of a warp's threads: tid varies between lanes."""
    key = (*block, warp)
    if key not in _THREADS:
        lane = np.arange(32, dtype=np.uint32)
        linear = lane + np.uint32(32 * warp)
        bit = np.uint32(1) << lane
        below = bit - np.uint32(1)
        _THREADS[key] = {
            "tid.x": linear % np.uint32(block[0]),
            "tid.y": linear // np.uint32(block[0]) % np.uint32(block[1]),
            "tid.z": linear // np.uint32(block[0] * block[1]),
            "laneid": lane,
            "warpid": warp,
            "lanemask_eq": bit,
            "lanemask_lt": below,
            "lanemask_le": below | bit,
            "lanemask_gt": ~(below | bit),
            "lanemask_ge": ~below,
        }
    return _THREADS[key]
