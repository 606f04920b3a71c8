"""Effects of mbarriers (PTX ISA 9.7.13.15), barriers, fences, register pools and grids."""

from __future__ import annotations

from dataclasses import dataclass

from b200.effects.base import APART, NOTHING, SYNCHRONISES, Effect, Ordered, Properties
from b200.effects.registers import Computes


@dataclass(frozen=True, kw_only=True)
class InitsMbarrier(Effect):
    """mbarrier.init."""

    always = SYNCHRONISES


@dataclass(frozen=True, kw_only=True)
class InvalidatesMbarrier(Effect):
    """mbarrier.inval."""

    always = SYNCHRONISES


@dataclass(frozen=True, kw_only=True)
class Arrives(Ordered):
    """mbarrier.arrive, arrive_drop. expects: .expect_tx, with a number of bytes. drops: the latter.
    space: of the mbarrier.
    """

    always = SYNCHRONISES
    space: str
    expects: bool = False
    drops: bool = False


@dataclass(frozen=True, kw_only=True)
class ExpectsBytes(Effect):
    """mbarrier.expect_tx."""

    always = SYNCHRONISES


@dataclass(frozen=True, kw_only=True)
class CompletesBytes(Effect):
    """mbarrier.complete_tx."""

    always = SYNCHRONISES


@dataclass(frozen=True, kw_only=True)
class ReadsMbarrierState(Computes):
    """mbarrier.pending_count, of the state that an arrival returned."""

    always = Properties(answers=True)


@dataclass(frozen=True, kw_only=True)
class WaitsForPhase(Ordered):
    """mbarrier.test_wait, try_wait: looks whether a phase is over. shift: the bit of the operand
    that has the phase's parity.
    """

    always = Properties(synchronises=True, answers=True)
    shift: int

    @property
    def by_token(self) -> bool:
        """Whether the operand is the state that an arrival returned, not a parity."""
        return self.shift != 0


@dataclass(frozen=True, kw_only=True)
class MeetsInWarp(Effect):
    """bar.warp.sync (9.7.13.2): the lanes see each other's writes."""

    always = APART


@dataclass(frozen=True, kw_only=True)
class MeetsInCta(Effect):
    """bar, barrier (9.7.13.1). waits: not .arrive. counted: the operand after the barrier's number
    is a number of threads.
    """

    always = Properties(synchronises=True, apart=True)
    waits: bool
    counted: bool


@dataclass(frozen=True, kw_only=True)
class ArrivesInCluster(Effect):
    """barrier.cluster.arrive (9.7.13.3)."""

    always = SYNCHRONISES
    relaxed: bool


@dataclass(frozen=True, kw_only=True)
class WaitsInCluster(Effect):
    """barrier.cluster.wait."""

    always = SYNCHRONISES


@dataclass(frozen=True, kw_only=True)
class FencesMemory(Ordered):
    """fence, membar (9.7.13.4)."""

    always = APART


@dataclass(frozen=True, kw_only=True)
class FencesProxy(Effect):
    """fence.proxy (9.7.13.4): the async proxy sees what the generic proxy has done before. shared,
    far: of shared, of global memory; neither for .alias. own: of the CTA's own shared memory alone.
    order: of .async::generic, which is a
    fence of the cluster's memory, too; else "".
    """

    always = NOTHING
    shared: bool
    far: bool
    own: bool = False
    order: str = ""


@dataclass(frozen=True, kw_only=True)
class FencesInits(Effect):
    """fence.mbarrier_init."""

    always = NOTHING


@dataclass(frozen=True, kw_only=True)
class FencesTensormap(Ordered):
    """fence.proxy.tensormap::generic (9.7.13.4)."""

    always = NOTHING


@dataclass(frozen=True, kw_only=True)
class SetsRegisters(Effect):
    """setmaxnreg (9.7.19.5). count: registers of a thread from then on."""

    always = SYNCHRONISES
    count: int


@dataclass(frozen=True, kw_only=True)
class OrdersGrids(Effect):
    """griddepcontrol (9.7.13). waits: .wait, else .launch_dependents."""

    always = NOTHING
    waits: bool
