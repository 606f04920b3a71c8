"""atom and red of CTAs abreast.

In shared memory each CTA updates its own. In global memory several CTAs may update one place, so
its contents depend on who comes first. But nobody sees more of it than what is there in the end,
where no result is used and nobody reads the place (ledger.py):

- Integer operations that commute leave the same in any order. They are carried out at once.
- All others are kept, and carried out when all CTAs have come to their end, CTA after CTA. That is
  the order of CTAs that run one after the other, as long as all of them take the same turns, or
  each updates a place once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from b200.chip.abreast.accesses import SPACES, AccessPlace, AccessSeen, chosen_lanes, place_of
from b200.chip.abreast.dropped import NotAbreast
from b200.chip.fragment import Fragment
from b200.effects import Updates
from b200.program.analysis import Op
from b200.program.meeting import Kind
from b200.program.module import TYPE_BITS
from b200.registry import DTYPES, FULL, UFUNCS, LaneValues, Run, as_bools

if TYPE_CHECKING:
    from b200.chip.abreast.machine import AbreastFragment

COMMUTE = ("u32", "s32", "b32", "u64", "s64", "b64")
GRANULE = 8  # bytes
LATER = ("", "")  # the way of all that is kept to the end: it is carried out in order


@dataclass(frozen=True, slots=True, eq=False)
class _Later:
    """An update by a warp, kept to the end. narrow: the run function of one CTA. kinds: of its
    arguments (forms.py). at: the addresses of the lanes in the mask.
    """

    narrow: Run
    kinds: list[Kind]
    warp: Fragment
    mask: int
    args: tuple[Any, ...]
    at: np.ndarray
    nbytes: int

    def places(self, width: int) -> np.ndarray:
        """(CTA, granule of 8 bytes) of all that it updates, as numbers, each once."""
        lanes = np.flatnonzero(as_bools(self.mask, width))
        low, high = self.at // GRANULE, (self.at + self.nbytes - 1) // GRANULE
        return np.unique(np.concatenate((low, high)) * width + np.tile(lanes // 32, 2))


@dataclass(eq=False)
class InTurn:
    """The updates that are kept to the end."""

    kept: list[_Later] = field(default_factory=list[_Later])

    def carry_out(self, machine: Any) -> None:
        """All of the first CTA, then all of the next one. Raises NotAbreast."""
        if self.kept and not (machine.alone and (machine.in_step or self._each_once(machine))):
            raise NotAbreast("CTAs take turns of their own, and the order of their atomics shows")
        for i in range(machine.n) if self.kept else ():
            for number, later in enumerate(self.kept):
                for _, seat, lanes in machine.seats(later.warp, later.mask & FULL << 32 * i):
                    parts = [part_of(k, a, i) for k, a in zip(later.kinds, later.args)]
                    found = later.narrow(seat, lanes, *parts)
                    machine.view.updated(number, i, seat, lanes, parts[0], found)

    def _each_once(self, machine: Any) -> bool:
        """Whether no CTA updates a place by two of them."""
        places = np.concatenate([later.places(machine.width) for later in self.kept])
        return np.unique(places).size == places.size


def part_of(kind: Kind | None, value: Any, i: int) -> Any:
    """What CTA i has of an operand."""
    if isinstance(value, tuple):
        parts = cast("tuple[Any, ...]", value)  # isinstance does not say what it is of
        kinds = kind if isinstance(kind, tuple) else (kind,) * len(parts)
        return tuple(part_of(k, v, i) for k, v in zip(kinds, parts, strict=True))
    if isinstance(value, np.ndarray):
        return cast(np.ndarray, value)[32 * i : 32 * i + 32]
    return value >> 32 * i & FULL if kind == "pred" and value is not None else value


def update(op: Op, kinds: list[Kind], alone: Run, seen: AccessSeen | None) -> Run:
    """kinds: of the arguments of its run function. alone: carries the update out in each CTA by
    itself. seen: is told what lanes give, as other arguments, unless the update is kept to the end.
    """
    ins, narrow = op.ins, op.made
    effect = ins.effect
    assert isinstance(effect, Updates)
    space, kind = SPACES.get(effect.space, effect.space), ins.types[-1]
    size, nbytes = min(TYPE_BITS[kind] // 8, 8), effect.nbytes
    wide = _wide(effect, kind)
    # Whoever looks at the run asks whether each update changes anything: of these it is the same in
    # any order.
    at_once = wide is not None and (seen is None or effect.operation in ("add", "xor"))
    way = LATER
    if at_once:
        way = effect.operation, kind if effect.operation in ("min", "max") else ""

    def run(warp: AbreastFragment, mask: int, address: LaneValues, *args: Any):
        machine = warp.machine
        chosen = chosen_lanes(mask, machine.width)
        place = place_of(warp, space, address, chosen, nbytes, size)
        if place.space == "local":
            raise NotAbreast("an atomic in local memory")
        if place.region is None:
            if seen is not None:
                seen(warp, mask, place, ())
            if wide is None or effect.returns:
                return alone(warp, mask, address, *args)
        else:
            if effect.returns:
                raise NotAbreast(f"{ins.opcode}: its result depends on which CTA comes first")
            if seen is not None:
                seen(warp, mask, place, args[:1] if at_once else ())
            index = place.index + np.arange(nbytes // size)[:, None]
            machine.ledger.updates(place.region, place.items, index, way)
            if not at_once:
                later = _Later(narrow, kinds, warp, mask, (address, *args), place.at, nbytes)
                machine.in_turn.kept.append(later)
                warp.spin = None
                return None
        assert wide is not None
        value: LaneValues = args[0]
        if isinstance(value, np.ndarray) and chosen is not None:
            value = value[chosen]
        if wide(place, value):
            warp.spin = None
        return None

    return run


def _wide(effect: Updates, kind: str) -> Callable[[AccessPlace, Any], bool] | None:
    """Carries out updates that commute: f(place, value of each lane) -> whether that changes
    anything. None for all others.
    """
    ufunc = UFUNCS.get(effect.operation)
    if ufunc is None or kind not in COMMUTE or 8 * effect.nbytes != effect.bits:
        return None
    plain = DTYPES[effect.bits]
    dtype = np.dtype(f"i{effect.nbytes}") if kind[0] == "s" else np.dtype(plain)
    ones = (1 << effect.bits) - 1

    def change(place: AccessPlace, value: LaneValues) -> bool:
        items, index = place.items.view(dtype), place.index
        before = items[index]
        if isinstance(value, np.ndarray):
            value = value.astype(plain, copy=False).view(dtype)
        else:
            value = np.array(value & ones, plain).view(dtype)
        ufunc.at(items, index, value)
        return bool((items[index] != before).any())

    return change
