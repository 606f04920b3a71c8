"""Effects of loads, stores and atomics: the lanes access memory at their addresses."""

from __future__ import annotations

from dataclasses import dataclass

from b200.effects.base import Effect, Ordered, Properties, spaces


@dataclass(frozen=True, kw_only=True)
class Access(Ordered):
    """The lanes access memory at their addresses.

    space: "global", "shared", "shared::cluster", "local", "param", "const" or "generic". nbytes:
    bytes of a lane, or of a matrix row that a lane names. bits: of an element.
    cached: whether the L1 may keep what is loaded; policies: eviction priorities asked of L1 or L2
    ("evict_first", "evict_last", "no_allocate").
    """

    space: str
    nbytes: int
    bits: int
    cached: bool = True
    policies: frozenset[str] = frozenset()

    @property
    def private(self) -> bool:
        """Whether nobody else can see the access: a thread's own memory, or what nobody writes."""
        return self.space in ("param", "const", "local")

    @property
    def in_constant_bank(self) -> bool:
        """Whether it is an operand of other instructions in SASS."""
        return self.space in ("param", "const")


@dataclass(frozen=True, kw_only=True)
class Loads(Access):
    """ld, ldu (9.7.9). constant: ld.global.nc, of what nobody writes meanwhile."""

    constant: bool = False

    def _answers(self) -> Properties:
        return Properties(reads=spaces(self.space), gives=True, answers=self.strong, lanes=True)


@dataclass(frozen=True, kw_only=True)
class Stores(Access):
    """st (9.7.9)."""

    def _answers(self) -> Properties:
        peer = self.space == "shared::cluster"
        return Properties(writes=spaces(self.space), lanes=True, adds=peer)


@dataclass(frozen=True, kw_only=True)
class Fills(Effect):
    """st.bulk (9.7.9.13): the lanes write zeros to shared memory, weakly, from their addresses on,
    as many bytes as an operand says. space: "shared::cta" or "generic". No Access: what asks those
    for `nbytes` knows no size that differs between lanes and executions.
    """

    space: str

    def _answers(self) -> Properties:
        return Properties(writes=("shared",), lanes=True, sized=True)


@dataclass(frozen=True, kw_only=True)
class Updates(Access):
    """atom, red (9.7.13.5, 9.7.13.6): a read-modify-write of one `operation`, as "add". returns:
    it gives the old value, and somebody reads that (program/unread.py). floats: of elements that
    are floating-point numbers.
    """

    operation: str
    floats: bool
    returns: bool

    @property
    def changes(self) -> bool:
        return False  # it may change nothing, and says so itself

    def _answers(self) -> Properties:
        there = spaces(self.space)
        adds = self.floats and not self.space.startswith("shared")
        return Properties(
            reads=there, writes=there, gives=self.returns, answers=True, lanes=True, adds=adds
        )


@dataclass(frozen=True, kw_only=True)
class MatrixLoads(Access):
    """ldmatrix (9.7.14.5.15). addresses: how many lanes, the lowest, give the address of a row."""

    addresses: int

    def _answers(self) -> Properties:
        return Properties(reads=spaces(self.space), gives=True, answers=self.strong, lanes=True)


@dataclass(frozen=True, kw_only=True)
class MatrixStores(Access):
    """stmatrix (9.7.14.5.16); as MatrixLoads."""

    addresses: int

    def _answers(self) -> Properties:
        peer = self.space == "shared::cluster"
        return Properties(writes=spaces(self.space), lanes=True, adds=peer)
