"""The machine of n CTAs abreast."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np

from b200.chip.abreast.dropped import CtasDiffer, NotAbreast
from b200.chip.abreast.ledger import Ledger, typed_items
from b200.chip.abreast.updates import InTurn
from b200.chip.fragment import ClusterBarrier, Fragment, WarpState
from b200.chip.global_memory import Region
from b200.chip.launch import Launch, special_registers, thread_registers
from b200.chip.machine import Machine
from b200.chip.operations import Action, CpAsync, Operation
from b200.chip.order import PUT_OFF, InOrder
from b200.chip.placement import Seat
from b200.chip.spin import LONG, Spinning
from b200.chip.standing_clock import clocks_at
from b200.chip.state import CTA, Cluster
from b200.chip.time_limits import TimeLimits
from b200.chip.watcher import Abreast
from b200.errors import Fault
from b200.hardware import SMEM_BASE
from b200.program.module import Instr
from b200.program.translated import Translated
from b200.registry import FULL

POLLS = 4 * LONG  # blocks without any effect after which a warp that loads is taken to poll


class AbreastWarp(WarpState):
    """Warp w of all n CTAs. seats: for each CTA a fragment with the same number, for instructions
    that are carried out in each CTA by itself.
    """

    seats: list[Fragment]
    memory: Region | None = None  # local memory of all lanes


class AbreastFragment(Fragment):
    """Lanes of a warp of all n CTAs: each block counts for each CTA that executes it."""

    __slots__ = ("counted",)
    machine: Any  # an AbreastMachine

    @property
    def ctas(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        self.counted = self.machine.ctas_in(self.mask)
        return self.counted

    def split(self, taken: int, target: int, after: int, meet: int) -> int:
        self.machine.parts(self.mask, taken)
        return super().split(taken, target, after, meet)


class AbreastOrder(InOrder):
    """The turns of warps of n CTAs."""

    machine: Any  # an AbreastMachine

    def raise_failed(self, warp: Fragment, launch: Launch, error: Exception) -> NoReturn:
        """A fault of the program is one of CTAs that run one after the other, too. A failure of
        the emulator is told as one.
        """
        if isinstance(error, Fault):
            raise NotAbreast(f"{type(error).__name__}: {error}") from None
        super().raise_failed(warp, launch, error)

    def go(self, launch: Launch) -> None:
        """Run all warps to their end."""
        machine, turns = self.machine, 0
        while self.queue:
            if machine.spinning.all_stand():
                raise NotAbreast("all warps poll")
            fragment = self.next_fragment()
            fragment.queued = False
            turns += self.take_turn(fragment, launch)
            if turns == PUT_OFF:
                machine.alone = False
        if any(warp.live for warp in machine.lead.warps):
            raise NotAbreast("warps wait for ever")


class _Turns(Spinning):
    """Tells who polls, but for loops with a counter: who goes on for very long is given up."""

    def went_on(self, warp: Fragment, blocks: int) -> int | None:
        done = self.blocks[warp.state] = self.blocks.get(warp.state, 0) + blocks
        machine: Any = self.machine
        if done > POLLS and machine.ledger.read:
            raise NotAbreast("a warp may poll")
        return warp.pc


class AbreastMachine(Machine):
    """n clusters of one CTA each as one machine; `lead` is the CTA that stands for all.

    width: lanes of a warp. smem: the shared memory of all CTAs, one after the other. smem_offset,
    local_offset: where that of each lane begins. smem_items: item size -> shared memory as items,
    [CTAs, items]. smem_begins: item size -> the first item of each CTA.
    in_place, one_writer: as of the ledger. in_step: whether each CTA has taken the turns that it
    takes by itself. alone: whether no other CTA would have joined it there by now.
    """

    def __init__(
        self,
        machine: Machine,
        code: Translated,
        clusters: Sequence[Cluster],
        seat: Seat,
        in_place: frozenset[int] = frozenset(),
        one_writer: bool = True,
    ):
        self.turns = AbreastOrder()
        super().__init__(machine.memory, self.turns)
        self.n = n = len(clusters)
        self.numbers = np.arange(n)  # of the CTAs
        self.width, self.code = 32 * n, code
        self.clusters = [Cluster(c.grid, c.index, c.shape) for c in clusters]
        self.params, self.symbols = machine.params, machine.symbols
        self.shape, self.cycles = machine.shape, machine.cycles
        self.unwritten_smem = machine.unwritten_smem
        self.all_lanes = (1 << self.width) - 1
        self.every_cta = sum(1 << 32 * i for i in range(n))
        self.ledger = Ledger(n, in_place, one_writer)
        self.in_turn, self.in_step, self.alone = InTurn(), True, True
        self.view = Abreast()
        self.hits = [0] * len(code.blocks)
        self.spinning = _Turns(self)
        self.limits = TimeLimits()
        self.local_bytes = -(-code.local_bytes // 16) * 16
        self.local_offset = np.arange(self.width, dtype=np.int64) * self.local_bytes
        self._seat = seat
        self._ctas_in: dict[int, int] = {self.all_lanes: n}
        self._alike: dict[int, int] = {}
        self._parts: dict[int, list[tuple[int, int]]] = {}

    # --- masks ------------------------------------------------------------------------------------
    def words(self, mask: int) -> np.ndarray:
        """The lanes of each CTA in a mask: uint32 [n]."""
        return np.frombuffer(mask.to_bytes(4 * self.n, "little"), np.uint32)

    def ctas_in(self, mask: int) -> int:
        """How many CTAs have lanes in a mask."""
        found = self._ctas_in.get(mask)
        if found is None:
            found = int(np.count_nonzero(self.words(mask)))
            if len(self._ctas_in) < 4096:
                self._ctas_in[mask] = found
        return found

    def has_whole_ctas(self, mask: int) -> bool:
        """Whether a mask has all lanes or none of each CTA."""
        if mask == self.all_lanes:
            return True
        words = self.words(mask)
        return bool(((words == 0) | (words == FULL)).all())

    def alike(self, mask: int) -> int:
        """The lanes that a mask has of each CTA. Raises CtasDiffer if they differ."""
        lanes = self._alike.get(mask)
        if lanes is None:
            lanes = self._alike[mask] = mask & FULL
            if mask != lanes * self.every_cta:
                raise CtasDiffer("CTAs go different ways", self.words(mask))
        return lanes

    def parts(self, mask: int, taken: int) -> None:
        """Lanes of a warp part. Unless those of each CTA part in the same way, CTAs take turns of
        their own from now on.
        """
        for lanes in (mask, taken):
            if lanes != (lanes & FULL) * self.every_cta:
                self.in_step = False

    # --- what instructions use --------------------------------------------------------------------
    def seats(self, warp: Fragment, mask: int) -> list[tuple[int, Fragment, int]]:
        """(number of a CTA, its own fragment, the lanes of it) for each CTA in a mask."""
        parts = self._parts.get(mask)
        if parts is None:
            parts = [(i, m) for i, m in enumerate(self.words(mask).tolist()) if m]
            if len(self._parts) < 1024:
                self._parts[mask] = parts
        state: Any = warp.state
        live = self.words(state.live).tolist()
        found: list[tuple[int, Fragment, int]] = []
        for i, m in parts:
            seat = state.seats[i]
            seat.mask, seat.state.live, seat.spin = m, live[i], warp.spin
            found.append((i, seat, m))
        return found

    def local_of(self, warp: Fragment) -> Region:
        """Local memory of the lanes of a warp."""
        state: Any = warp.state
        if state.memory is None:
            data = np.full(self.width * self.local_bytes, 0xFF, np.uint8)
            state.memory = Region(0, data, "local memory")
        return state.memory

    def issue(self, operation: Operation, warp: Fragment, apply: Action) -> None:
        """A CTA issues an asynchronous operation, of which there is cp.async."""
        assert isinstance(operation, CpAsync)
        if operation.nbytes:
            low, high = int(operation.sources.min()), int(operation.sources.max())
            region = self.memory.region(low, high + operation.nbytes - low)
            if region.behind:
                raise NotAbreast("a copy that is not out of one allocation")
            self.ledger.reads(region)
        self.view.issued(operation, warp)
        apply()

    def undefined(
        self, what: str, missing: str, ins: Instr | None = None, nobodys: str = ""
    ) -> None:
        raise NotAbreast(what)

    def lanes_exited(self, state: WarpState, lanes: int) -> None:
        self.spinning.progress()
        state.live &= ~lanes
        if state.live == 0:
            self.lead.exited_warps += 1
            for barrier in self.lead.named_barriers.values():
                barrier.check()
        self.view.exits(state, lanes)

    # --- a run ------------------------------------------------------------------------------------
    def go(self, launch: Launch) -> None:
        """Run the CTAs to their end. Raises NotAbreast."""
        self._start(launch)
        self.turns.go(launch)
        self.in_turn.carry_out(self)

    def _start(self, launch: Launch) -> None:
        threads = launch.block[0] * launch.block[1] * launch.block[2]
        stride = (SMEM_BASE + launch.smem_bytes + 15) // 16 * 16
        memory = np.full((self.n, stride), self.unwritten_smem, np.uint8)
        self.smem = Region(0, memory.reshape(-1), "shared memory")
        begins = np.arange(self.n, dtype=np.int64) * stride
        self.smem_offset = np.repeat(begins, 32)
        self.smem_begins = {size: begins // size for size in (1, 2, 4, 8)}
        self.smem_items = {
            size: typed_items(self.smem, size).reshape(self.n, -1) for size in self.smem_begins
        }
        ctas = [self._cta(launch, cluster, row) for cluster, row in zip(self.clusters, memory)]
        first = self.clusters[0]
        cluster = Cluster(launch, first.index, first.shape)
        cluster.barrier = ClusterBarrier(cluster, 0)
        self.lead = self._cta(launch, cluster, memory[0])
        self.lead.threads = threads
        self.resident.append(cluster)
        common: dict[str, Any] = {
            **special_registers(launch, cluster, self.lead, self.shape.workspace)
        }
        indices = np.array([c.index for c in self.clusters], np.uint32)
        for i, axis in enumerate("xyz"):
            ids = indices[:, i]
            common[f"ctaid.{axis}"] = common[f"clusterid.{axis}"] = np.repeat(ids, 32)
        for index in range(-(-threads // 32)):
            own = thread_registers(launch.block, index)
            tiled: dict[str, Any] = {
                name: np.tile(x, self.n) if isinstance(x, np.ndarray) else x
                for name, x in own.items()
            }
            special = {**common, **clocks_at(self.cycles), **tiled}
            lanes = min(32, threads - 32 * index)
            state = AbreastWarp(self.lead, index, lanes, self.code.initial, special)
            state.live *= self.every_cta
            state.seats = []
            for cta in ctas:
                seat = WarpState(cta, index, lanes, [], {})
                cta.warps.append(seat)
                state.seats.append(Fragment(self, seat, seat.live))
            self.lead.warps.append(state)
            self.order.enqueue(AbreastFragment(self, state, state.live))

    def _cta(self, launch: Launch, cluster: Cluster, memory: np.ndarray) -> CTA:
        cta = CTA(cluster, 0, cluster.index, 0, self._seat)
        cta.smem_end = SMEM_BASE + launch.smem_bytes
        cta.smem = Region(0, memory, "shared memory")
        cluster.ctas.append(cta)
        return cta
