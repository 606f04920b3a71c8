"""A lost update: two warps load a number, change it and store it again, and one change is lost.

Nothing but an atomic helps there: a barrier between the two leaves each to overwrite the other.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from b200.checker import words
from b200.effects import Loads, Stores
from b200.program.analysis import registers_of
from b200.program.module import Addr, Instr


def lost_update(body: Iterable[Any], one: Instr, other: Instr) -> str:
    """What is missing where two accesses are load and store of one update, or ""."""
    for store in (one, other):
        load = _loaded_before(body, store)
        if load is not None and {one.key, other.key} <= {load.key, store.key}:
            return (
                f"missing: an atomic (atomicAdd, red) for the load at {words.line(load)} and the"
                f" store at {words.line(store)}: another may change the number between the two,"
                " and its change is lost"
            )
    return ""


def _loaded_before(body: Iterable[Any], store: Instr) -> Instr | None:
    """The load in front of a store, with no branch between, at the same address by the same
    registers, from whose value what is stored is computed.
    """
    if not isinstance(store.effect, Stores) or not _address(store):
        return None
    wanted = {reg.name for operand in store.operands[1:] for reg in registers_of(operand)}
    given = frozenset(wanted)
    for ins in reversed(_straight(body, store)):
        made = {reg.name for reg in registers_of(ins.operands[0])} if ins.operands else set()
        if not made & wanted:
            continue
        if isinstance(ins.effect, Loads) and _address(ins) == _address(store):
            return None if made & given else ins
        if ins.pred is None:
            wanted -= made
        wanted |= {reg.name for operand in ins.operands[1:] for reg in registers_of(operand)}
    return None


def _straight(body: Iterable[Any], store: Instr) -> list[Instr]:
    """The instructions that lead to a store from the label or branch before."""
    found: list[Instr] = []
    for item in body:
        if not isinstance(item, Instr) or item.mods[0] in ("bra", "brx"):
            found = []
        elif item.key == store.key:
            return found
        else:
            found.append(item)
    return []


def _address(ins: Instr) -> str:
    """The address of a load or store as it is written."""
    found = next((operand for operand in ins.operands if isinstance(operand, Addr)), None)
    return "" if found is None else repr(found)
