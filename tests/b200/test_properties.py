"""Every class of b200/effects has an answer from each watcher. A new class fails here, by its name."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from b200 import effects
from b200.checker.instrument import WRAPPERS
from b200.chip import instruction_set  # noqa: F401  registers every unit
from b200.clock import wait
from b200.effects import Access, Computes, CoreOperation, Effect, Jumps, MeetsInCta, Ordered, Traps
from b200.explore import instructions
from b200.registry import FLOW, TABLE

GROUPS = {Effect, Ordered, Access, CoreOperation}  # of which no instruction is one
CLASSES = [
    each
    for each in vars(effects).values()
    if isinstance(each, type) and issubclass(each, Effect) and each not in GROUPS
]
VALUES = {"order": "relaxed", "space": "generic", "source": "global", "target": "shared::cta"}
VALUES |= {"signals": "mbarrier", "inputs": (), "operation": "add"}


def example(kind: type[Effect]) -> Effect:
    """An effect of a class, which does all that the class may do."""
    missing = dataclasses.MISSING
    names = [f for f in dataclasses.fields(kind) if f.default is missing]
    return kind(**{f.name: VALUES.get(f.name, 16 if f.type == "int" else True) for f in names})


def named(kinds) -> list[str]:
    return sorted(kind.__name__ for kind in kinds)


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_every_class_has_properties(kind):
    assert example(kind).properties is not None


def test_a_class_without_properties_is_named():
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Floods(Effect):
        pass

    with pytest.raises(LookupError, match="Floods does not say"):
        _ = Floods().properties


def test_the_checker_has_a_rule_for_every_class():
    registers = {kind for kind in CLASSES if issubclass(kind, (Computes, Jumps, Traps))}
    silent = {kind for kind in CLASSES if example(kind).properties.silent}
    known = {*WRAPPERS, *silent, *registers}
    assert named(set(CLASSES) - known) == ["Discards"]  # says so (test_incomplete.py)


def test_the_clock_knows_the_time_of_every_class():
    tables = (wait.WAITS, wait.ONCE_A_WARP, wait.FIXED, wait.NARROW, wait.NO_TIME)
    known = {kind for table in tables for kind in table} | {MeetsInCta}
    asked = {kind: example(kind).properties for kind in CLASSES}
    derived = {kind for kind, it in asked.items() if it.lanes or it.apart or it.silent}
    assert named(set(CLASSES) - known - derived) == ["ReadsMbarrierState"]  # of registers, pure
    of = [kind for table in tables for kind in table]
    assert len(of) == len(set(of))


def test_the_explorer_records_every_class_that_synchronises():
    known = {*instructions.RECORDED, *instructions.AT_ISSUE, *instructions.WAITS}
    synchronise = {kind for kind in CLASSES if example(kind).properties.synchronises}
    assert named(synchronise ^ known) == []


def test_the_explorer_notes_every_class_that_writes_memory():
    """Else another order may leave another value there without a word."""
    operations = {effects.Copies, effects.RequestsWork}  # words.py: where they are issued
    # No value of a register is read from what these write.
    apart = {effects.Discards, effects.EditsTensormap, effects.PublishesTensormap}
    far = {"shared", "global"}
    wrote = {kind for kind in CLASSES if far & set(example(kind).properties.writes)}
    noted = {kind for kind in CLASSES if instructions.writes(example(kind))}
    assert named(wrote - operations - apart ^ noted) == []
    sized = {kind for kind in noted if not issubclass(kind, Access)}
    assert all(example(kind).properties.sized for kind in sized)  # _written_ranges


def test_what_reaches_beyond_the_threads_of_a_cta_is_not_apart():
    """PTX ISA 9.7.13.4 (proxies, clusters, grids), 9.7.9.25 and 9.7.16.8 (what was issued before)."""
    reaching = {kind for kind in CLASSES if not example(kind).properties.apart}
    memory = {kind for kind in CLASSES if set(of_memory(example(kind)))}
    others = {kind for kind in CLASSES if example(kind).properties.synchronises} - {MeetsInCta}
    answering = {kind for kind in CLASSES if example(kind).properties.answers}
    assert memory | others | answering <= reaching
    assert named(reaching - memory - others - answering) == [
        *("CallsSystem", "CommitsGroup", "FencesInits", "FencesProxy", "FencesTensor"),
        *("FencesTensormap", "OrdersGrids", "WaitsForGroups", "WaitsForTensor"),
    ]


def of_memory(effect: Effect) -> tuple[str, ...]:
    return effect.properties.reads + effect.properties.writes


def test_a_loop_around_what_leaves_nothing_behind_polls():
    """A copy, a write or a signal is progress; so is a group that is closed or waited for, and a
    call of the system. A load, a look at an mbarrier and a fence are none; an atomic says itself
    whether it has changed a value.
    """
    changing = {kind for kind in CLASSES if example(kind).changes}
    writing = {kind for kind in CLASSES if example(kind).properties.writes} - {effects.Updates}
    signals = {kind for kind in CLASSES if example(kind).properties.synchronises}
    signals -= {effects.WaitsForPhase}
    own = {effects.CallsSystem, effects.CommitsGroup, effects.WaitsForGroups}
    assert named(changing ^ (writing | signals | own)) == []


def test_every_instruction_states_one_of_these_classes():
    stated = {type(entry.states) for entry in TABLE.values() if isinstance(entry.states, Effect)}
    stated |= {type(effect) for effect in FLOW.values()}
    assert named(stated - set(CLASSES)) == []


def test_generic_addresses_may_name_both_memories():
    assert example(effects.Loads).properties.reads == ("shared", "global")
    assert example(effects.Stores).properties.writes == ("shared", "global")
    assert example(effects.Copies).properties.reads == ("global",)


@pytest.mark.parametrize(
    "words, files",
    [
        (
            ("Fills", "st.bulk", '"fill", 2'),
            [
                *("checker/memory/generic.py", "chip/memory/fill.py", "clock/rates.py"),
                *("effects/memory.py", "isa/forms/memory.txt"),
            ],
        ),
        (
            ("CountsEvents", "pmevent"),
            ["chip/alu/warp.py", "effects/registers.py", "isa/forms/memory.txt"],
        ),
    ],
    ids=["memory, five", "silent, three"],
)
def test_how_many_files_know_an_instruction(words, files):
    """docs/adding.md says so many. words: by which a file would know it."""
    package = Path(effects.__file__).parents[1]
    found = [path for end in ("*.py", "*.txt") for path in package.rglob(end)]
    known = {path for path in found if any(word in path.read_text() for word in words)}
    assert sorted(path.relative_to(package).as_posix() for path in known) == files
