"""What an effect is to whoever looks at a run: the questions that every watcher asks.

The checker, the clock and the explorer ask `properties(effect)` where they would else keep lists of
classes. A class of effects.py without a line here is a LookupError, and a test names it
(tests/b200/test_properties.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from b200 import effects as e
from b200.effects import Access, Effect

Spaces = tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Properties:
    """The answers of one effect.

    reads: memories whose contents it hands on, to registers or to other memory: of "shared",
    "global", "tensor", "local", "param" and "const". writes: memories that it writes. generic
    addresses name both of "shared" and "global". gives: whether registers get what it reads.
    synchronises: others wait for it, or it waits for others. answers: what it gives may be another
    value in another order, whatever memory holds. lanes: each lane has an address of its own, and
    so a space of its own where addresses are generic. adds: it gives a value to a sum of several,
    or sends one to another CTA. sized: operands that are no addresses say which bytes it accesses.
    apart: it accesses no memory, and orders accesses of threads, if at all, within their CTA.
    """

    reads: Spaces = ()
    writes: Spaces = ()
    gives: bool = False
    synchronises: bool = False
    answers: bool = False
    lanes: bool = False
    adds: bool = False
    sized: bool = False
    apart: bool = False


@lru_cache(maxsize=4096)
def properties(effect: Effect) -> Properties:
    """The properties of an effect. LookupError for a class without an answer."""
    answer = ANSWERS.get(type(effect))
    if answer is None:
        raise LookupError(f"{type(effect).__name__} has no line in b200/properties.py")
    return answer if isinstance(answer, Properties) else answer(effect)


def changes(effect: Effect) -> bool:
    """Whether an instruction changes something each time it is executed: a warp that does so does
    more than poll. An update may change nothing, and says so itself.
    """
    answers = properties(effect)
    if isinstance(effect, e.Updates):
        return False
    own = isinstance(effect, (e.CallsSystem, e.CommitsGroup, e.WaitsForGroups))
    return bool(answers.writes) or answers.synchronises and not answers.answers or own


def spaces(space: str) -> Spaces:
    """The memories that an address of a state space may name; "" and "L2" name none."""
    if space == "generic":
        return "shared", "global"
    return (space.split("::")[0],) if space not in ("", "L2") else ()


def _loads(effect: Access) -> Properties:
    return Properties(reads=spaces(effect.space), gives=True, answers=effect.strong, lanes=True)


def _stores(effect: Access) -> Properties:
    peer = effect.space == "shared::cluster"
    return Properties(writes=spaces(effect.space), lanes=True, adds=peer)


def _updates(effect: e.Updates) -> Properties:
    there = spaces(effect.space)
    adds = effect.floats and not effect.space.startswith("shared")
    return Properties(
        reads=there, writes=there, gives=effect.returns, answers=True, lanes=True, adds=adds
    )


def _copies(effect: e.Copies) -> Properties:
    return Properties(
        reads=spaces(effect.source),
        writes=spaces(effect.target),
        synchronises=effect.signals == "mbarrier",
        adds=effect.operation != "" or effect.to_peer,
        sized=effect.source != "",  # of st.async the other operand is its value
    )


NOTHING = Properties()  # an order of what others do
APART = Properties(apart=True)  # registers alone, or an order within a CTA
SYNCHRONISES = Properties(synchronises=True)
ANSWERS: dict[type[Effect], Properties | Callable[[Any], Properties]] = {
    # --- registers alone, and what only orders or hints
    **dict.fromkeys((e.Computes, e.Moves, e.Converts, e.Exchanges, e.Elects), APART),
    **dict.fromkeys((e.MultipliesInWarp, e.Transposes, e.LooksAtLanes, e.Jumps, e.Traps), APART),
    **dict.fromkeys((e.Hints, e.PrefetchesTensormap, e.Sleeps), APART),
    **dict.fromkeys((e.MeetsInWarp, e.FencesMemory), APART),
    **dict.fromkeys((e.CallsSystem, e.FencesProxy, e.FencesInits), NOTHING),
    **dict.fromkeys((e.FencesTensormap, e.FencesTensor, e.OrdersGrids), NOTHING),
    **dict.fromkeys((e.CommitsGroup, e.WaitsForGroups, e.WaitsForTensor), NOTHING),
    # --- memory
    e.Loads: _loads,
    e.MatrixLoads: _loads,
    e.Stores: _stores,
    e.MatrixStores: _stores,
    e.Updates: _updates,
    e.Fills: Properties(writes=("shared",), lanes=True, sized=True),
    e.Discards: Properties(writes=("global",)),
    e.Copies: _copies,
    # --- tensor memory and tensormaps
    e.TensorLoads: Properties(reads=("tensor",), gives=True),
    e.TensorStores: Properties(writes=("tensor",)),
    e.Multiplies: Properties(reads=("shared", "tensor"), writes=("tensor",)),
    e.CopiesToTensor: Properties(reads=("shared",), writes=("tensor",)),
    e.ShiftsRows: Properties(reads=("tensor",), writes=("tensor",)),
    e.EditsTensormap: lambda effect: Properties(writes=spaces(effect.space)),
    e.PublishesTensormap: Properties(reads=("shared",), writes=("global",)),
    # --- synchronisation
    **dict.fromkeys((e.InitsMbarrier, e.InvalidatesMbarrier, e.Arrives), SYNCHRONISES),
    **dict.fromkeys((e.ExpectsBytes, e.CompletesBytes, e.ArrivesBehindCopies), SYNCHRONISES),
    e.MeetsInCta: Properties(synchronises=True, apart=True),
    **dict.fromkeys((e.ArrivesInCluster, e.WaitsInCluster), SYNCHRONISES),
    **dict.fromkeys((e.AllocatesTensor, e.FreesTensor, e.EndsAllocation), SYNCHRONISES),
    **dict.fromkeys((e.Commits, e.SetsRegisters), SYNCHRONISES),
    e.WaitsForPhase: Properties(synchronises=True, answers=True),
    e.RequestsWork: Properties(writes=("shared",), synchronises=True, answers=True),
    e.ReadsRequest: Properties(answers=True),
    e.ReadsMbarrierState: Properties(answers=True),
}
