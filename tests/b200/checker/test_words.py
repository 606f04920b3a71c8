"""How things are said: at the call, once, and not once a CTA."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import pytest
import torch

from b200.checker import words
from b200.chip.describe import call
from b200.program.module import Instr, Loc
from tests.planted_bugs import waits
from tests.planted_bugs import words as planted_words
from tests.planted_bugs.case import PlantedBug


def planted(bugs, name: str) -> PlantedBug:
    (found,) = (c for c in bugs if c.name == name)
    return found


def called(*frames: tuple[str, int]) -> Instr:
    """An instruction with these lines, innermost first."""
    loc = None
    for file, line in reversed(frames):
        loc = Loc(file, line, loc)
    return Instr("mbarrier.try_wait", (), loc=loc)


def test_a_wait_in_a_helper_is_told_where_it_is_called():
    assert call(called(("k.cu", 8))) == "k.cu:8"
    assert call(called(("k.cu", 8), ("k.cu", 34))) == "k.cu:34"
    assert call(called(("k.cu", 8), ("k.cu", 34), ("k.cu", 60))) == "k.cu:34"
    library = ("pipeline.py", 8), ("pipeline.py", 12), ("k.py", 3), ("k.py", 40)
    assert call(called(*library)) == "k.py:3"
    assert call(Instr("bar.sync", ())) == "(no line information)"


def many(found: PlantedBug, ctas: int, cluster: int) -> PlantedBug:
    return dataclasses.replace(
        found,
        grid=(ctas, 1, 1),
        cluster=(cluster, 1, 1),
        args=lambda: [torch.zeros(64, dtype=torch.int32)],
    )


def test_the_cause_of_a_deadlock_is_told_once():
    """And not once a CTA or cluster."""
    hangs = planted(waits.PLANTED, "named_barrier_counts_too_many")
    for ctas, cluster in ((1, 1), (6, 1), (6, 2)):
        _, outcome = many(hangs, ctas, cluster).run(True)
        lines = outcome.error.splitlines()
        assert outcome.error_kind == "deadlock"
        assert sum("its count is higher than" in line for line in lines) == 1, outcome.error
        assert not any(line.startswith("  or:") for line in lines), outcome.error
        assert sum("waits for barrier 1 of the CTA" in line for line in lines) == 1, outcome.error


def test_who_waited_twice_is_told_in_the_first_line():
    _, outcome = planted(planted_words.PLANTED, "one_parity_twice").run(True)
    first = outcome.error.splitlines()[0]
    assert "has waited twice in a row for parity 1" in first


def test_an_instruction_without_a_line():
    assert words.line(None) == words.line(Instr("ret", ())) == "(no line information)"
    assert words.line(called(("k.py", 3))) == "k.py:3"


def test_operands_are_named_by_the_load_that_brought_them():
    """Whichever record of the launch it is; 0 stands for none."""
    loads = [None, *(SimpleNamespace(source=name) for name in ("first", "", "third"))]
    agent = SimpleNamespace(state=SimpleNamespace(records=loads))

    def told(*parts):
        return words.operands(SimpleNamespace(parts=parts, agent=agent))

    assert told(("A", 1), ("B", 3)) == " (A: first, B: third)"
    assert told(("", 3)) == " (of third)"
    assert told(("A", 0), ("B", 2)) == told(("A", 4)) == told() == ""


@pytest.mark.parametrize("n", range(4))
@pytest.mark.parametrize("committed", range(1, 5))
@pytest.mark.parametrize("group", range(4))
def test_a_wait_group_that_leaves_the_copy_under_way(group, committed, n):
    """wait_group N waits for all groups but the N latest (PTX ISA 9.7.9.25.3)."""
    ins = called(("k.py", 9))
    copies = SimpleNamespace(waits=[(n, committed, ins, 0)], group=lambda step: group, component=3)
    old = SimpleNamespace(agent=SimpleNamespace(streams={"bulk": copies}), component=3, step=5)
    enough = [i for i in range(committed) if group in range(committed - i)]
    told = words.too_many_left(old, "wait_group")
    if n in enough or not enough:
        assert told == ""
    else:
        assert told.startswith(f"wait_group {max(enough)} in place of {n} at k.py:9")
