"""Effects on registers alone, and hints."""

from __future__ import annotations

from dataclasses import dataclass

from b200.effects.base import APART, SILENT, Effect, Properties


@dataclass(frozen=True, kw_only=True)
class Computes(Effect):
    """Arithmetic, logic, comparisons (9.7.1 to 9.7.8). uniform: whether the uniform datapath takes
    it where the operands are the same in all lanes.
    """

    always = APART
    uniform: bool = False


@dataclass(frozen=True, kw_only=True)
class Moves(Computes):
    """mov, cvta, mapa (9.7.9). source: "register", "constant" or "other"; a copy of a register is
    ready when its source is.
    """

    source: str = "other"


@dataclass(frozen=True, kw_only=True)
class Converts(Computes):
    """cvt (9.7.9.21) to numbers of a format, such as "e2m1" or "f32"."""

    target: str


@dataclass(frozen=True, kw_only=True)
class Exchanges(Effect):
    """shfl, vote, match, redux (9.7.9.8, 9.7.13): the lanes exchange values, and meet."""

    always = APART


@dataclass(frozen=True, kw_only=True)
class Elects(Effect):
    """elect.sync (9.7.13): the lanes meet."""

    always = APART


@dataclass(frozen=True, kw_only=True)
class MultipliesInWarp(Effect):
    """mma.sync (9.7.14.5): the lanes meet. inputs: the formats of A and B."""

    always = APART
    inputs: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Transposes(Effect):
    """movmatrix (9.7.14.5.17)."""

    always = SILENT


@dataclass(frozen=True, kw_only=True)
class LooksAtLanes(Effect):
    """activemask (9.7.13), isspacep of shared memory (9.7.9.20): a question about where it runs."""

    always = SILENT


@dataclass(frozen=True, kw_only=True)
class Jumps(Effect):
    """bra, brx (9.7.12). leaves: ret and exit, which end the thread."""

    always = SILENT
    leaves: bool = False


@dataclass(frozen=True, kw_only=True)
class Traps(Effect):
    """trap (9.7.19)."""

    always = SILENT


@dataclass(frozen=True, kw_only=True)
class Hints(Effect):
    """prefetch, applypriority, createpolicy (9.7.9): changes no result. policies: as of Access."""

    always = SILENT
    policies: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True)
class Discards(Effect):
    """discard (9.7.9): the bytes have no value from then on."""

    always = Properties(writes=("global",))


@dataclass(frozen=True, kw_only=True)
class CountsEvents(Effect):
    """pmevent (9.7.19.4): events of a performance monitor, which nobody reads here."""

    always = SILENT


@dataclass(frozen=True, kw_only=True)
class Sleeps(Effect):
    """nanosleep (9.7.19)."""

    always = SILENT


@dataclass(frozen=True, kw_only=True)
class CallsSystem(Effect):
    """A call of what is no part of the PTX: vprintf, __assertfail (9.7.12)."""

    always = Properties(silent=True)

    @property
    def changes(self) -> bool:
        return True
