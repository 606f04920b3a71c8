"""Effects of asynchronous operations: what `Machine.issue` gets (chip/operations.py)."""

from __future__ import annotations

from dataclasses import dataclass

from b200.effects.base import NOTHING, SYNCHRONISES, Effect, Properties, spaces


@dataclass(frozen=True, kw_only=True)
class Copies(Effect):
    """cp.async, cp.async.bulk, cp.async.bulk.tensor and their cp.reduce (9.7.9.25, 9.7.9.27),
    st.async (9.7.9.12), red.async (9.7.13.7).

    source, target: state spaces; "" for registers, "L2" for a prefetch. bulk: a TMA copy. signals:
    what tells of its end: "mbarrier", or the thread's groups of "bulk" or "cp.async" copies; "" for
    nothing. operation: of a reduction; floats: on floating-point numbers, as far as the instruction
    says it. multicast: to several CTAs.
    """

    source: str
    target: str
    signals: str
    bulk: bool = False
    operation: str = ""
    floats: bool = False
    multicast: bool = False

    @property
    def to_peer(self) -> bool:
        """Whether it goes from this CTA to the shared memory of another."""
        return self.target == "shared::cluster" and self.source in ("", "shared::cta")

    def _answers(self) -> Properties:
        return Properties(
            reads=spaces(self.source),
            writes=spaces(self.target),
            synchronises=self.signals == "mbarrier",
            adds=self.operation != "" or self.to_peer,
            sized=self.source != "",  # of st.async the other operand is its value
        )


@dataclass(frozen=True, kw_only=True)
class ArrivesBehindCopies(Effect):
    """cp.async.mbarrier.arrive (9.7.13.15). counted: .noinc, the phase counts it already."""

    always = SYNCHRONISES
    counted: bool


@dataclass(frozen=True, kw_only=True)
class CommitsGroup(Effect):
    """cp.async.commit_group, cp.async.bulk.commit_group (9.7.9.25). bulk: the latter."""

    always = NOTHING
    bulk: bool

    @property
    def changes(self) -> bool:
        return True


@dataclass(frozen=True, kw_only=True)
class WaitsForGroups(Effect):
    """wait_group, wait_all of the same. sources: .read, until the sources have been read.
    everything: wait_all, of copies in no group, too.
    """

    always = NOTHING
    bulk: bool
    sources: bool = False
    everything: bool = False

    @property
    def changes(self) -> bool:
        return True


@dataclass(frozen=True, kw_only=True)
class CoreOperation(Effect):
    """An operation in the tensor core's queue (9.7.16). pair: of .cta_group::2."""

    pair: bool


@dataclass(frozen=True, kw_only=True)
class Multiplies(CoreOperation):
    """tcgen05.mma (9.7.16.10). buffer: the collector of A, "a", or with .ws of B, "b0" to "b3".
    usage: "fill", "use", "lastuse" or "discard".
    """

    always = Properties(reads=("shared", "tensor"), writes=("tensor",))
    buffer: str
    usage: str


@dataclass(frozen=True, kw_only=True)
class CopiesToTensor(CoreOperation):
    """tcgen05.cp (9.7.16.9)."""

    always = Properties(reads=("shared",), writes=("tensor",))


@dataclass(frozen=True, kw_only=True)
class ShiftsRows(CoreOperation):
    """tcgen05.shift (9.7.16.9)."""

    always = Properties(reads=("tensor",), writes=("tensor",))


@dataclass(frozen=True, kw_only=True)
class Commits(CoreOperation):
    """tcgen05.commit (9.7.16.12): arrives when earlier operations are complete. multicast: at the
    mbarriers of the CTAs in a mask.
    """

    always = SYNCHRONISES
    multicast: bool


@dataclass(frozen=True, kw_only=True)
class RequestsWork(Effect):
    """clusterlaunchcontrol.try_cancel (9.7.13.16)."""

    always = Properties(writes=("shared",), synchronises=True, answers=True)


@dataclass(frozen=True, kw_only=True)
class ReadsRequest(Effect):
    """clusterlaunchcontrol.query_cancel. success: .is_canceled."""

    always = Properties(answers=True)
    success: bool
