"""The checker's verdicts on order of memory, held against PTX's axioms (tests/litmus)."""

from __future__ import annotations

import re

import pytest
import torch

from tests import ROOT
from tests.b200.checker.test_checker import findings_of
from tests.litmus.axioms import Model
from tests.litmus.choices import CHOICES, choice_of
from tests.litmus.count import DRAWN, count
from tests.litmus.program import Op, Program, Thread
from tests.litmus.ptx import ORDERS, said, worst

PAGE = ROOT / "docs" / "reference" / "memory-order.md"
FEW = (None, "late", "random:1")  # orders of the daily sample
SOON, LATER = (
    range(2000, 2010),
    range(2010, 2030),
)  # of it: with every `pytest`, with the slow tests


def W(at: int, value: int = 1, order: str = "weak", scope: str = "gpu") -> Op:
    return Op("W", at, value, order, scope)


def R(at: int, order: str = "weak", scope: str = "gpu") -> Op:
    return Op("R", at, 0, order, scope)


def P(at: int, value: int = 1, order: str = "acquire", scope: str = "gpu") -> Op:
    return Op("P", at, value, order, scope)


def U(at: int, order: str = "relaxed", scope: str = "gpu") -> Op:
    return Op("U", at, 0, order, scope)


def F(order: str = "acq_rel", scope: str = "gpu") -> Op:
    return Op("F", 0, 0, order, scope)


def arrive(scope: str, order: str = "release") -> Op:
    return Op("MA", 0, 0, order, scope)


def wait(scope: str, order: str = "acquire") -> Op:
    return Op("MW", 0, 0, order, scope)


BAR, FENCE_PROXY, COPY = Op("B"), Op("FP"), Op("A")
MEET = [Op("CA", 0, 0, "release", "cluster"), Op("CW", 0, 0, "acquire", "cluster")]
PASS = [Op("CA", 0, 0, "relaxed", "cluster"), Op("CW", 0, 0, "acquire", "cluster")]


def program(*threads: list[Op], ctas=None, **how) -> Program:
    """Threads of CTAs of their own, or of `ctas`."""
    ctas = range(len(threads)) if ctas is None else ctas
    made = (Thread(cta, i, tuple(ops)) for i, (cta, ops) in enumerate(zip(ctas, threads)))
    return Program(tuple(made), **how)


def converged(*steps, space: str = "shared") -> Program:
    """Lanes of one warp: each step is {lane: operation}."""
    return Program.of_lanes([list(step.items()) for step in steps], space, "")


LANES = (0, 1, 31)
SYNC = dict.fromkeys(LANES, Op("S"))
ALL_READ = dict.fromkeys(LANES, R(0))
# Shape -> program, whether it has a race, what is said. The races of the literature first.
SHAPES = {
    "MP": (program([W(0), W(1, 1, "release")], [P(1), R(0)]), False, ""),
    "MP, relaxed flag": (program([W(0), W(1, 1, "relaxed")], [P(1), R(0)]), True, "error"),
    "MP, relaxed poll": (
        program([W(0), W(1, 1, "release")], [P(1, 1, "relaxed"), R(0)]),
        True,
        "error",
    ),
    "MP, narrow release": (
        program([W(0), W(1, 1, "release", "cta")], [P(1), R(0)]),
        True,
        "error",
    ),
    "MP, fences": (
        program([W(0), F(), W(1, 1, "relaxed")], [P(1, 1, "relaxed"), F(), R(0)]),
        False,
        "",
    ),
    "MP, fence.sc": (
        program([W(0), F("sc"), W(1, 1, "relaxed")], [P(1, 1, "relaxed"), F("sc"), R(0)]),
        False,
        "",
    ),
    "MP, narrow fence": (
        program([W(0), F(scope="cta"), W(1, 1, "relaxed")], [P(1), R(0)]),
        True,
        "error",
    ),
    "MP, release then a relaxed store there": (
        program([W(0), W(1, 1, "release"), W(1, 2, "relaxed")], [P(1, 2), R(0)]),
        False,
        "",
    ),
    "MP, a relaxed read then an acquire there": (
        program([W(0), W(1, 1, "release")], [P(1, 1, "relaxed"), R(1, "acquire"), R(0)]),
        False,
        "",
    ),
    "MP, strong data and a relaxed flag": (
        program([W(0, 1, "relaxed"), W(1, 1, "relaxed")], [P(1, 1, "relaxed"), R(0)]),
        True,
        "error",
    ),
    "MP, strong data, not acquired": (
        program([W(0, 1, "relaxed"), W(1, 1, "release")], [P(1, 1, "relaxed"), R(0)], cluster=2),
        True,
        "error",
    ),
    "MP, read first": (
        program([R(0), W(1, 1, "release")], [P(1), W(0)]),
        False,
        "",
    ),
    "MP, read first, relaxed": (
        program([R(0), W(1, 1, "relaxed")], [P(1, 1, "relaxed"), W(0)]),
        True,
        "portability",
    ),
    "read and write": (program([R(0)], [W(0)]), True, "error"),
    "two writes of a CTA": (program([W(0, 7)], [W(0, 8)], ctas=(0, 0)), True, "error"),
    "two writes of a CTA, a barrier": (
        program([W(0, 7), BAR], [BAR, W(0, 8)], ctas=(0, 0)),
        False,
        "",
    ),
    **{
        f"WRC in two CTAs, a fence of {scope} first": (
            program(
                [W(0), F(scope=scope), W(1, 1, "relaxed")],
                [P(1, 1, "relaxed"), F(), W(2, 1, "relaxed")],
                [P(2, 1, "relaxed"), F(scope="cta"), R(0)],
                ctas=(0, 1, 1),
            ),
            racy,
            "error" if racy else "",
        )
        for scope, racy in (("cta", True), ("gpu", False))
    },
    "WRC": (
        program([W(0), W(1, 1, "release")], [P(1), W(2, 1, "release")], [P(2), R(0)]),
        False,
        "",
    ),
    "WRC, observed": (
        program([W(0, 7, "relaxed")], [P(0, 7, "relaxed"), W(1, 1, "release")], [P(1), R(0)]),
        False,
        "",
    ),
    "WRC, observed in shared memory": (
        program(
            [W(0, 7, "relaxed")],
            [P(0, 7, "relaxed"), W(1, 1, "release")],
            [P(1), R(0)],
            ctas=(0, 1, 1),
            cluster=2,
            space="shared",
        ),
        False,
        "",
    ),
    "WRC, not handed on": (
        program([W(0, 7, "relaxed")], [P(0, 7, "relaxed"), W(1, 1, "relaxed")], [P(1), R(0)]),
        True,
        "error",
    ),
    "ISA2, one fence": (
        program(
            [W(0), W(1, 1, "release")],
            [P(1, 1, "relaxed"), F(), W(2, 1, "relaxed")],
            [P(2), R(0)],
        ),
        False,
        "",
    ),
    "ISA2, no fence": (
        program([W(0), W(1, 1, "release")], [P(1, 1, "relaxed"), W(2, 1, "relaxed")], [P(2), R(0)]),
        True,
        "error",
    ),
    "SB": (program([W(0), R(1)], [W(1), R(0)]), True, "error"),
    "SB, strong": (
        program([W(0, 1, "relaxed"), R(1, "relaxed")], [W(1, 1, "relaxed"), R(0, "relaxed")]),
        False,
        "",
    ),
    "LB": (
        program([R(0, "relaxed"), W(1, 1, "relaxed")], [R(1, "relaxed"), W(0, 1, "relaxed")]),
        False,
        "",
    ),
    "IRIW": (
        program(
            [W(0, 1, "relaxed")],
            [W(1, 1, "relaxed")],
            [R(0, "acquire"), R(1, "acquire")],
            [R(1, "acquire"), R(0, "acquire")],
        ),
        False,
        "",
    ),
    "IRIW, a plain read": (
        program([W(0, 1, "relaxed")], [W(1, 1, "relaxed")], [R(0, "acquire"), R(1)]),
        True,
        "error",
    ),
    "R": (program([W(0), W(1, 1, "relaxed")], [W(1, 2, "relaxed"), R(0)]), True, "error"),
    "S": (program([W(0, 2), W(1, 1, "release")], [P(1), W(0, 1)]), False, ""),
    "S, relaxed": (program([W(0, 2), W(1, 1, "relaxed")], [P(1), W(0, 1)]), True, "error"),
    "2+2W": (program([W(0), W(1)], [W(1, 2), W(0, 2)]), True, "error"),
    "2+2W, strong": (
        program([W(0, 1, "relaxed"), W(1, 1, "relaxed")], [W(1, 2, "relaxed"), W(0, 2, "relaxed")]),
        False,
        "",
    ),
    "coherence": (
        program([W(0, 1, "relaxed"), W(0, 2, "relaxed")], [R(0, "relaxed"), R(0, "relaxed")]),
        False,
        "",
    ),
    "observed, then overwritten": (
        program([W(0, 1, "relaxed")], [P(0, 1, "relaxed"), W(0, 2)]),
        False,
        "",
    ),
    "strong, a scope that does not reach": (
        program([W(0, 1, "relaxed", "cta")], [R(0, "relaxed")]),
        True,
        "error",
    ),
    "the same in shared memory": (
        program(
            [W(0, 1, "release", "cta")],
            [P(0, 1, "acquire", "cluster")],
            ctas=(1, 0),
            cluster=2,
            space="shared",
        ),
        True,
        "error",
    ),
    "adds of two warps, one ticket": (
        program([U(0), F(), U(1)], [U(0)], [P(1), R(0)], ctas=(0, 0, 1)),
        True,
        "error",
    ),
    "adds of two warps, a barrier": (
        program([U(0), BAR, F(), U(1)], [U(0), BAR], [P(1), R(0)], ctas=(0, 0, 1)),
        False,
        "",
    ),
    "adds of two warps in shared memory": (
        program([U(0), U(1, "release")], [U(0)], [P(1), R(0)], ctas=(0, 0, 0), space="shared"),
        True,
        "error",
    ),
    "bar.sync": (program([W(0), BAR], [BAR, R(0)], ctas=(0, 0)), False, ""),
    "bar.sync after the read": (program([W(0), BAR], [R(0), BAR], ctas=(0, 0)), True, "error"),
    "bar.sync, then a flag": (
        program([W(0), BAR], [BAR, W(1, 1, "release")], [P(1), R(0)], ctas=(0, 0, 1)),
        False,
        "",
    ),
    "cluster barrier": (program([W(0), *MEET], [*MEET, R(0)], cluster=2), False, ""),
    "cluster barrier, relaxed": (program([W(0), *PASS], [*PASS, R(0)], cluster=2), True, "error"),
    "cluster barrier, fence and relaxed": (
        program([W(0), F(scope="cluster"), *PASS], [*PASS, R(0)], cluster=2),
        False,
        "",
    ),
    "mbarrier": (
        program([W(0), arrive("cluster")], [wait("cluster"), R(0)], ctas=(1, 0), cluster=2),
        False,
        "",
    ),
    "mbarrier, arrival of .cta": (
        program([W(0), arrive("cta")], [wait("cluster"), R(0)], ctas=(1, 0), cluster=2),
        True,
        "error",
    ),
    "mbarrier, relaxed": (
        program(
            [W(0), arrive("cluster", "relaxed")], [wait("cluster"), R(0)], ctas=(1, 0), cluster=2
        ),
        True,
        "error",
    ),
    "mbarrier, two agents": (
        program(
            [W(0), arrive("cta")], [wait("cta"), R(0), R(1)], [W(1), arrive("cta")], ctas=(0, 0, 0)
        ),
        False,
        "",
    ),
    "proxy": (program([W(0), W(1, 1, "release")], [P(1), FENCE_PROXY, COPY]), False, ""),
    "proxy, no fence": (program([W(0), W(1, 1, "release")], [P(1), COPY]), True, "error"),
    "lanes, all read what one has stored": (
        converged({0: W(0)}, ALL_READ),
        True,
        "portability",
    ),
    "lanes, bar.warp.sync": (converged({0: W(0)}, SYNC, ALL_READ), False, ""),
    "lanes, a neighbour's word": (
        converged({0: W(0), 1: W(1)}, {0: R(1), 1: R(0)}),
        True,
        "error",
    ),
    "lanes, one stores what all have read": (
        converged(ALL_READ, {0: W(0)}),
        True,
        "portability",
    ),
    "lanes, two stores": (converged({0: W(0)}, {1: W(0, 2)}), True, "portability"),
    "lanes, global memory": (
        converged({0: W(0)}, ALL_READ, space="global"),
        True,
        "portability",
    ),
    "lanes, global memory, bar.warp.sync": (
        converged({0: W(0)}, SYNC, ALL_READ, space="global"),
        False,
        "",
    ),
}


@pytest.mark.parametrize("shape, race, answer", SHAPES.values(), ids=SHAPES)
def test_shapes(shape, race, answer):
    """The axioms say whether there is a race; the checker agrees in each order."""
    assert Model(shape).races()[0] == race
    answers = said(shape, FEW)
    assert worst(answers) == answer
    assert all(found in (answer, "") for found in answers), answers
    if not race:
        assert set(answers) == {""}


CHOSEN = {
    "volatile within a CTA": program(
        [W(0), W(1, 1, "volatile", "sys")],
        [P(1, 1, "volatile", "sys"), R(0)],
        ctas=(0, 0),
        space="shared",
    ),
    "the scope of try_wait": program(
        [W(0), arrive("cluster")], [wait("cta"), R(0)], ctas=(1, 0), cluster=2
    ),
    "a .cta arrival behind a wider fence": program(
        [W(0), F(scope="cluster"), arrive("cta", "relaxed")],
        [wait("cluster"), R(0)],
        ctas=(1, 0),
        cluster=2,
    ),
    "a .cta fence behind a relaxed wait": program(
        [W(0), arrive("cluster")],
        [wait("cluster", "relaxed"), F(scope="cta"), R(0)],
        ctas=(1, 0),
        cluster=2,
    ),
    "a fence of another thread": program(
        [W(0), F(), BAR], [BAR, W(1, 1, "relaxed")], [P(1), R(0)], ctas=(0, 0, 1)
    ),
}


@pytest.mark.parametrize("name", CHOICES)
def test_choices(name):
    """A race by the axioms of which nothing is said, and the page has the reason."""
    chosen = CHOSEN[name]
    assert Model(chosen).races()[0] and choice_of(chosen) == name
    assert worst(said(chosen, FEW)) == ""
    assert f"| {name} |" in PAGE.read_text()


def test_a_race_without_a_choice_has_none():
    assert choice_of(SHAPES["MP, relaxed flag"][0]) is None


ARRIVALS = (
    "atom.acq_rel.gpu.global.add.u32 %r9, [%rd4], 1;",  # nobody reads %r9
    "atom.acq_rel.gpu.global.add.u32 _, [%rd4], 1;",
    "red.release.gpu.global.add.u32 [%rd4], 1;",
    "fence.acq_rel.gpu; red.relaxed.gpu.global.add.u32 [%rd4], 1;",
)


@pytest.mark.parametrize("arrive", ARRIVALS)
def test_arrivals_at_a_counter_hand_on_what_those_before_have_released(arrive):
    """Three CTAs write and arrive; the fourth waits for all, and reads what each has written. An
    atomic whose result nobody reads acquires nothing, but passes on the release sequence.
    """

    def found(arrive: str) -> list[str]:
        body = f"""
        ld.param.u64 %rd4, [data]; mov.u32 %r1, %ctaid.x; mov.u32 %r2, %tid.x;
        setp.ne.u32 %p9, %r2, 0; @%p9 bra END;
        mul.wide.u32 %rd5, %r1, 4; add.u64 %rd5, %rd5, %rd4;
        setp.eq.u32 %p1, %r1, 3; @%p1 bra AGAIN;
        st.global.u32 [%rd5+128], %r1; {arrive}
        bra END;
        AGAIN: ld.acquire.gpu.global.u32 %r5, [%rd4];
        setp.lt.u32 %p2, %r5, 3; @%p2 bra AGAIN;
        ld.global.u32 %r6, [%rd4+128]; ld.global.u32 %r7, [%rd4+132];
        ld.global.u32 %r8, [%rd4+136]; add.u32 %r6, %r6, %r7; add.u32 %r6, %r6, %r8;
        st.global.u32 [%rd4+256], %r6;
        END:"""
        data = torch.zeros(128, dtype=torch.int32)
        return [finding.severity for finding in findings_of(body, data, grid=(4, 1, 1))]

    assert found(arrive) == []
    assert "error" in found("red.relaxed.gpu.global.add.u32 [%rd4], 1;")


@pytest.mark.parametrize("numbers", [SOON, pytest.param(LATER, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", DRAWN)
def test_a_sample_of_drawn_programs(kind, numbers):
    found = count(kind, numbers, FEW)
    assert not found.false
    assert len(found.missed) <= 2, found.missed


@pytest.mark.slow
@pytest.mark.parametrize("kind", DRAWN)
def test_a_thousand_drawn_programs(kind):
    """No false error; of the races between warps at most 2 % are missed, between lanes 10 %."""
    found = count(kind, range(DRAWN[kind]), ORDERS)
    assert not found.false
    assert found.share_missed <= (0.10 if kind.startswith("lanes") else 0.02), found.missed
    (row,) = re.findall(rf"^\| {re.escape(kind)} \|.*$", PAGE.read_text(), re.MULTILINE)
    assert row == found.row(kind)
