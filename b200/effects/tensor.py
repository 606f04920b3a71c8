"""Effects on tensor memory and tensormaps."""

from __future__ import annotations

from dataclasses import dataclass

from b200.effects.base import NOTHING, SYNCHRONISES, Effect, Ordered, Properties, spaces
from b200.effects.registers import Hints


@dataclass(frozen=True, kw_only=True)
class AllocatesTensor(Effect):
    """tcgen05.alloc (9.7.16.7). pair: of .cta_group::2."""

    always = SYNCHRONISES
    pair: bool


@dataclass(frozen=True, kw_only=True)
class FreesTensor(Effect):
    """tcgen05.dealloc."""

    always = SYNCHRONISES
    pair: bool


@dataclass(frozen=True, kw_only=True)
class EndsAllocation(Effect):
    """tcgen05.relinquish_alloc_permit."""

    always = SYNCHRONISES


@dataclass(frozen=True, kw_only=True)
class TensorLoads(Effect):
    """tcgen05.ld (9.7.16.8). packed: .pack::16b, two cells a register. registers: of a lane."""

    always = Properties(reads=("tensor",), gives=True)
    packed: bool
    registers: int


@dataclass(frozen=True, kw_only=True)
class TensorStores(Effect):
    """tcgen05.st; as TensorLoads, with .unpack::16b."""

    always = Properties(writes=("tensor",))
    packed: bool
    registers: int


@dataclass(frozen=True, kw_only=True)
class WaitsForTensor(Effect):
    """tcgen05.wait (9.7.16.8). loads: ::ld, else ::st."""

    always = NOTHING
    loads: bool


@dataclass(frozen=True, kw_only=True)
class FencesTensor(Effect):
    """tcgen05.fence (9.7.16.11). before: ::before_thread_sync."""

    always = NOTHING
    before: bool


@dataclass(frozen=True, kw_only=True)
class EditsTensormap(Effect):
    """tensormap.replace (9.7.9.28). space: of the tensormap."""

    space: str

    def _answers(self) -> Properties:
        return Properties(writes=spaces(self.space))


@dataclass(frozen=True, kw_only=True)
class PublishesTensormap(Ordered):
    """tensormap.cp_fenceproxy (9.7.13): copies an edited tensormap to global memory."""

    always = Properties(reads=("shared",), writes=("global",))


@dataclass(frozen=True, kw_only=True)
class PrefetchesTensormap(Hints):
    """prefetch.tensormap."""
