"""Every order of a small program, carried out over the chip's own steps. It shares no code with
b200/explore: states are saved and put back field by field, and nothing is left out.

The programs are those of small_programs.py: a warp never diverges, each operation begins a block,
and no operation is asynchronous. A step is one block of one warp. A warp that has to wait tries
again, which changes nothing. It becomes late at any time, and stays so: the one time that a program
can tell.
"""

from __future__ import annotations

import random

import numpy as np
import torch

from b200.chip.global_memory import GlobalMemory
from b200.chip.launch import Shape
from b200.chip.machine import Machine
from b200.chip.order import InOrder
from b200.chip.placement import Placement
from b200.errors import Fault
from b200.program.analysis import EXIT
from b200.program.parse import parse
from b200.program.translate import translate
from b200.registry import Blocked
from tests.b200.explore.small_programs import LATE, Program, ptx

FREE, HANGS, FAULTS, MANY = "free", "hangs", "faults", "too many states"
LIMIT = 60_000  # states
IDLE = 40  # steps in a row that lead to no new state: all warps wait


def truth(program: Program) -> str:
    """What can come of a program: "free" if every order ends well."""
    return _carried_out(program, EveryOrder)


def ends_well(program: Program) -> bool:
    """Whether one order, drawn at random, ends well."""
    return _carried_out(program, OneOrder) == FREE


def _carried_out(program: Program, kind: type[EveryOrder]) -> str:
    module = parse(ptx(program))
    words = torch.zeros(2, dtype=torch.int32)
    memory = GlobalMemory()
    memory.register(words.data_ptr(), 8, "flags")
    order = kind(words.numpy())
    machine = Machine(memory, order)
    cluster = (2, 1, 1) if program.cluster else (1, 1, 1)
    shape = Shape((program.ctas, 1, 1), (program.threads, 1, 1), cluster, 0)
    parameters = words.data_ptr().to_bytes(8, "little")
    code = translate(module, module.kernels["k"])
    machine.launch(code, shape, parameters)
    return order.verdict


class EveryOrder(InOrder):
    """Tries every block of every warp in every state."""

    plain = False
    verdict = ""

    def __init__(self, words: np.ndarray):
        super().__init__()
        self.words = words

    def enqueue(self, warp) -> None:
        """Every warp that has not exited can always try."""

    def wait_passed(self, warp) -> None:
        """No turns here."""

    def run(self, waiting, launch) -> None:
        machine = self.machine
        machine.next_cluster = next(waiting, None)
        seats = Placement()
        while machine.next_cluster is not None:
            assert self.start_next(waiting, launch, seats)
        self.ctas = [cta for cluster in machine.resident for cta in cluster.ctas]
        self.warps = [(warp, warp.fragments[0]) for cta in self.ctas for warp in cta.warps]
        self.timed = "globaltimer" in machine.code.special
        self.late = False
        self.verdict = self._search()
        machine.resident.clear()

    def _search(self) -> str:
        first = self._save()
        behind: dict[tuple, list[tuple]] = {first: []}
        ended, work = [], [first]
        while work:
            state = work.pop()
            self._restore(state)
            if not any(warp.live for warp, _ in self.warps):
                ended.append(state)
            for i in range(len(self.warps)):
                self._restore(state)
                if not self.warps[i][0].live:
                    continue
                try:
                    self._step(*self.warps[i])
                except Fault:
                    return FAULTS
                after = self._save()
                if self._new(after, state, behind):
                    work.append(after)
                    if len(behind) > LIMIT:
                        return MANY
            if self.timed and not self.late:
                self._restore(state)
                self._passes(True)
                if self._new(after := self._save(), state, behind):
                    work.append(after)
        good, work = set(ended), ended
        while work:
            for state in behind[work.pop()]:
                if state not in good:
                    good.add(state)
                    work.append(state)
        return FREE if len(good) == len(behind) else HANGS

    @staticmethod
    def _new(after: tuple, state: tuple, behind: dict[tuple, list[tuple]]) -> bool:
        """Note that a step leads from `state` to `after`."""
        new = after not in behind
        behind.setdefault(after, []).append(state)
        return new

    def _passes(self, late: bool) -> None:
        """Set the time."""
        self.late = late
        for warp, _ in self.warps:
            warp.special["globaltimer"] = 2 * LATE if late else 0

    def _step(self, warp, fragment) -> None:
        fragment.spin = None
        try:
            after = self.machine.code.blocks[fragment.pc](fragment, fragment.register_file)
        except Blocked:
            return
        if after == EXIT:
            fragment.arrive_or_exit(EXIT)
        else:
            fragment.pc = after

    # --- states -----------------------------------------------------------------------------------
    def _save(self) -> tuple:
        ctas = []
        for cta in self.ctas:
            mbarriers = tuple(
                (at, b.phase, b.expected, b.pending, b.tx)
                for at, b in sorted(cta.mbarriers.items())
            )
            named = tuple(
                (number, b.generation, b.arrived, b.expected)
                for number, b in sorted(cta.named_barriers.items())
            )
            cluster = cta.cluster.barrier
            at_cluster = cluster.phase, cluster.arrived, cluster.expected
            ctas.append((cta.smem.u8.tobytes(), mbarriers, named, at_cluster, cta.exited_warps))
        warps = []
        for warp, f in self.warps:
            token = None if f.token is None else (f.token[0].number, f.token[1])
            registers = tuple(
                x if isinstance(x, int) else (x.dtype.str, x.tobytes()) for x in f.register_file
            )
            meets = warp.cluster_arrived, warp.cluster_phase
            warps.append((warp.live, f.pc, f.mask, token, meets, registers))
        return tuple(ctas), tuple(warps), self.words.tobytes(), self.late

    def _restore(self, state: tuple) -> None:
        ctas, warps, words, late = state
        if late != self.late:
            self._passes(late)
        self.words[:] = np.frombuffer(words, self.words.dtype)
        for cta, (smem, mbarriers, named, at_cluster, exited) in zip(self.ctas, ctas, strict=True):
            cta.smem.u8[:] = np.frombuffer(smem, np.uint8)
            kept = {at for at, *_ in mbarriers}
            for at in [at for at in cta.mbarriers if at not in kept]:
                self.gone = getattr(self, "gone", {}) | {(cta, at): cta.mbarriers.pop(at)}
            for at, *fields in mbarriers:
                if at not in cta.mbarriers:
                    cta.mbarriers[at] = self.gone[cta, at]
                b = cta.mbarriers[at]
                b.phase, b.expected, b.pending, b.tx = fields
                b.waiters.clear()
            have = {number: fields for number, *fields in named}
            for number, b in cta.named_barriers.items():
                b.generation, b.arrived, b.expected = have.get(number, (0, 0, 0))
                b.waiters.clear()
            barrier = cta.cluster.barrier
            barrier.phase, barrier.arrived, barrier.expected = at_cluster
            cta.exited_warps = exited
        for (warp, f), (live, pc, mask, token, meets, registers) in zip(
            self.warps, warps, strict=True
        ):
            warp.live, f.pc, f.mask = live, pc, mask
            f.token = None if token is None else (f.cta.named_barriers[token[0]], token[1])
            warp.cluster_arrived, warp.cluster_phase = meets
            warp.fragments[:] = [f] if live else []
            f.register_file[:] = [
                x if isinstance(x, int) else np.frombuffer(x[1], np.dtype(x[0])) for x in registers
            ]


class OneOrder(EveryOrder):
    """Tries one order."""

    def _search(self) -> str:
        rng, idle, seen = random.Random(0), 0, {self._save()}
        while any(warp.live for warp, _ in self.warps):
            if self.timed and rng.random() < 0.1:
                self._passes(True)
            warp, fragment = rng.choice([each for each in self.warps if each[0].live])
            try:
                self._step(warp, fragment)
            except Fault:
                return FAULTS
            after = self._save()
            idle = idle + 1 if after in seen else 0
            seen.add(after)
            if idle > IDLE:
                return HANGS
        return FREE
