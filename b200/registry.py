"""The table of instructions: every PTX mnemonic the emulator executes, and who executes it.

Which forms there are, isa/forms says. A unit registers a *factory* under the first words of forms.
The factory runs once for each instruction of a program, when the program is translated; it decodes
the modifiers, which are those of a form, and returns what is executed each time. The longest prefix
(in whole dot-separated parts) wins, so `cvt.pack` can stand beside `cvt`. With the factory it
registers what the instruction does to the world, an effect (b200/effects) or `states(ins)`, which
returns it. Whoever looks at a run reads effects, no opcodes: a new instruction is a row and a
factory, and everything that looks at runs sees it.

A factory has one of three styles:

    @pure(prefix, states=effect)         factory(ins) -> Pure
        No state: arithmetic, logic, conversions, moves.
    @lane(prefix, states=effect, out=n)  factory(ins) -> run(warp, lane, *args)
        Called for each active lane, with plain Python ints: registers as unsigned bit patterns.
        For instructions that one thread issues.
    @warp(prefix, states=effect, out=n)  factory(ins) -> run(warp, mask, *args)
        Called once for the warp; `mask` is an int with a bit for each active lane. An argument is
        LaneValues: an int where the translator knows it to be the same in all lanes, else a numpy
        array of 32 elements (uint16, uint32, uint64); `lanes(x, dtype)` makes an array of either.

Arguments arrive in the order of the PTX text, destinations left out: an address `[r+imm]` is the
sum, an address with coordinates `[map, {c0, c1}]` is two arguments (int, tuple), a vector `{a, b}`
is a tuple, an immediate is an int (floats as bit patterns), `_` is None. A predicate argument is a
bool in `lane` style and an int mask in `warp` and `pure` style. Results: `out` values, a tuple when
`out` > 1 or when the destination is a vector.

A run function that cannot proceed raises `Blocked(waitable)`; the instruction is executed again
when the waitable is notified (`may_block=True` is required at registration so that the block is cut
there).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import DTypeLike

from b200.effects import Effect, Jumps, Traps
from b200.errors import Unsupported
from b200.isa import grammar

FULL = 0xFFFFFFFF
DTYPES = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}
# Operations of integers that commute, as instructions name them.
UFUNCS = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}

Run = Callable[..., Any]  # what a factory of style lane or warp makes
States = Effect | Callable[[Any], Effect]  # an effect, or what tells the effect of an instruction
Factory = TypeVar("Factory", bound=Callable[..., Any])


@dataclass(frozen=True)
class Narrowing:
    """The conversion of floats to a format whose largest finite number is smaller, or hardly so.

    source, target: "f64", "f32", "f16", "bf16". values: how many operands, from the first on, are
    converted; the last of them goes to the lowest bits of the result.
    """

    source: str
    target: str
    values: int


@dataclass(frozen=True)
class Pure:
    """A stateless instruction.

    ins, outs: PTX types of sources and destinations ("u32", "b64", "f16x2", "pred", ...). The
        translator hands over bit patterns of that width; "pred" is an int mask of 32 bits.
    vector: arrays of shape (32,), unsigned bit patterns -> array or tuple; predicates as int masks.
        Without predicates also of shape (32 n,): each element by itself (program/packing.py).
    scalar: the same on Python ints, predicates as 0 or FULL. None where the result is computed as
        a vector even from uniform operands (all floating point).
    expr, vexpr: Python source with {0}, {1}, ... for the operands, inlined in place of a call of
        scalar or vector. Operands of vexpr are arrays, or ints that fit the type, never all ints.
    narrows: of a conversion that may make infinities of finite values.
    """

    ins: tuple[str, ...]
    outs: tuple[str, ...]
    vector: Callable[..., Any] | None
    scalar: Callable[..., Any] | None = None
    expr: str | None = None
    vexpr: str | None = None
    narrows: Narrowing | None = None


@dataclass(frozen=True)
class Entry:
    style: str
    prefix: tuple[str, ...]
    factory: Callable[..., Any]  # (ins) -> Pure, or a Run
    states: States
    out: int = 1
    may_block: bool = False
    # Are results the same in all lanes? "never", "always", "args": if the arguments are, or
    # "group": if the membermask, the last operand, is.
    uniform: str = "never"
    # Do the registers of a vector come as one array [registers, 32], not as an array each?
    rows: bool = False


TABLE: dict[tuple[str, ...], Entry] = {}
INLINE_NAMES: dict[str, object] = {}  # what the source in Pure.expr and Pure.vexpr may call
# Control flow, which the translator carries out itself, by mnemonic.
FLOW: dict[str, Effect] = {
    **dict.fromkeys(("bra", "brx"), Jumps()),
    **dict.fromkeys(("ret", "exit"), Jumps(leaves=True)),
    "trap": Traps(),
}


def _register(
    style: str, prefixes: tuple[str, ...], states: States, **options: Any
) -> Callable[[Factory], Factory]:
    def add(factory: Factory) -> Factory:
        for prefix in prefixes:
            key = tuple(prefix.split("."))
            assert key not in TABLE, f"{prefix} is registered twice"
            TABLE[key] = Entry(style, key, factory, states, **options)
        return factory

    return add


def pure(*prefixes: str, states: States) -> Callable[[Factory], Factory]:
    return _register("pure", prefixes, states, uniform="args")


def lane(
    *prefixes: str, states: States, out: int = 0, may_block: bool = False, uniform: str = "never"
) -> Callable[[Factory], Factory]:
    return _register("lane", prefixes, states, out=out, may_block=may_block, uniform=uniform)


def warp(
    *prefixes: str,
    states: States,
    out: int = 0,
    may_block: bool = False,
    uniform: str = "never",
    rows: bool = False,
) -> Callable[[Factory], Factory]:
    options = {"out": out, "may_block": may_block, "uniform": uniform, "rows": rows}
    return _register("warp", prefixes, states, **options)


@lru_cache(maxsize=8192)
def find(opcode: str) -> Entry | None:
    """The entry of an instruction; None for control flow. Unsupported, with the reason, for an
    opcode that no modelled form has. LookupError for a row without a factory.
    """
    form = grammar.match(opcode)
    if form is None or form.reason:
        raise Unsupported(f"{opcode}: {grammar.refusal(opcode)}")
    parts = tuple(form.name.split("."))
    if parts[0] in FLOW:
        return None
    for n in range(len(parts), 0, -1):
        if (entry := TABLE.get(parts[:n])) is not None:
            return entry
    raise LookupError(f"{opcode} has a row in b200/isa/forms, and no factory in b200/chip")


def effect_of(ins: Any) -> Effect:
    """What an instruction does to the world."""
    entry = find(ins.opcode)
    if entry is None:
        return FLOW[ins.mods[0]]
    return entry.states if isinstance(entry.states, Effect) else entry.states(ins)


class Blocked(Exception):
    """Raised by a run function that must wait: executed again after `waitable.notify()`. None: it
    is executed again at once.
    """

    def __init__(self, waitable: Waitable | None):
        self.waitable = waitable


# What `spin` of a fragment is that waits for nothing and has changed nothing since it was set so.
# An instruction with an effect sets it to None; a failed wait leaves its own mark
# (sync/mbarrier_instructions.py): for each wait that has failed since, how often, and its barriers.
QUIET = (None, 0)
FailedWaits: TypeAlias = "dict[tuple[object, ...], tuple[int, tuple[Waitable, ...]]]"
Spin: TypeAlias = "tuple[None, int] | FailedWaits | None"


class Clock:
    """Simulated time of what is being executed, in SM cycles; the timing model moves it
    (b200/clock).
    """

    now = 0.0


class Wakes(Protocol):
    """A fragment of a warp that waits."""

    def wake(self) -> None: ...


class Waitable:
    """Something fragments of warps wait on; `notify` makes them runnable again.

    signal: simulated time of the latest signal; time: of the latest completion. Without the timing
    model both are 0.
    """

    __slots__ = ("waiters", "signal", "time")

    def __init__(self):
        self.waiters: list[Wakes] = []
        self.signal = self.time = 0.0

    def describe(self) -> str:
        """What it is, for a report of a deadlock."""
        raise LookupError(f"{type(self).__name__} does not say what it is")

    def touch(self) -> None:
        """A signal has come: what it completes is complete no earlier than now."""
        if Clock.now > self.signal:
            self.signal = Clock.now

    def notify(self) -> None:
        self.time = Clock.now if Clock.now > self.signal else self.signal
        if self.waiters:
            waiters, self.waiters = self.waiters, []
            for fragment in waiters:
                fragment.wake()


# An operand of a warp as its run function gets it: a number where all lanes have the same, else an
# array with an element for each lane.
LaneValues: TypeAlias = int | np.ndarray


def lanes(x: LaneValues, dtype: DTypeLike) -> np.ndarray:
    """An argument as an array of 32 elements of `dtype`, an unsigned type. A negative immediate is
    its two's complement.
    """
    if isinstance(x, np.ndarray):
        return x if x.dtype == dtype else x.astype(dtype)
    return np.full(32, x & (1 << 8 * np.dtype(dtype).itemsize) - 1, dtype)


def no_effect(warp: object, mask: int, *operands: Any) -> None:
    """The run function of an instruction that has nothing to do here."""


@lru_cache(maxsize=4096)
def active(mask: int) -> list[int]:
    """The lanes of a mask, lowest first. One list for all who ask, not to be changed."""
    return [i for i in range(32) if mask >> i & 1]


_BOOLS: dict[int, dict[int, np.ndarray]] = {32: {}}  # number of lanes -> mask -> its array


def as_bools(mask: int, n: int = 32) -> np.ndarray:
    """A mask of n lanes, a multiple of 32, as a read-only boolean array."""
    cache = _BOOLS.get(n)
    if cache is None:
        cache = _BOOLS[n] = {}
    found = cache.get(mask)
    if found is None:
        found = np.unpackbits(
            np.frombuffer(int(mask).to_bytes(n // 8, "little"), np.uint8), bitorder="little"
        ).view(bool)
        found.flags.writeable = False
        if len(cache) < 4096:
            cache[mask] = found
    return found


def as_mask(bools: np.ndarray) -> int:
    """A boolean array with an element for each lane as an int mask."""
    return int.from_bytes(np.packbits(bools, bitorder="little").tobytes(), "little")


def lanes_text(mask: int) -> str:
    """ "all lanes", "lane 3", "lanes 0-15, 20"."""
    if mask == FULL:
        return "all lanes"
    runs = [(run.start(), run.end() - 1) for run in re.finditer("1+", f"{mask & FULL:b}"[::-1])]
    text = ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
    return f"lane{'' if text.isdigit() else 's'} {text}"
