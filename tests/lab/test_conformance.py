"""The instruction table against ptxas, a few statements a form (the page has more)."""

from __future__ import annotations

import shutil

import pytest

from b200.isa import grammar
from lab.conformance.assembler import CRASH, Ptxas
from lab.conformance.study import bogus, trials, verdict

PTXAS = shutil.which("ptxas")
EACH = 51  # of the statements one is tried with every `pytest`, two more with the slow tests
LATER = [pytest.param(start, marks=pytest.mark.slow) for start in (17, 34)]


@pytest.fixture(scope="module", params=[0, *LATER])
def drawn(request):
    return trials(1, seed=3)[request.param :: EACH]


def known_apart(statement: str) -> bool:
    """Whether a form is newer than what this ptxas knows, or of another target."""
    assert PTXAS is not None
    found = grammar.match(statement.split()[0])
    isa = tuple(map(int, Ptxas(PTXAS).isa.split(".")))
    return found is not None and (found.form.since > isa or "sm_100a" in found.reason)


@pytest.fixture(scope="module")
def said(drawn):
    if PTXAS is None:
        pytest.skip("no ptxas here")
    translated = [trial.statement for trial in drawn if not verdict(trial.statement)]
    return Ptxas(PTXAS).judge([trial.statement for trial in drawn], translated)


def test_ptxas_takes_every_form(drawn, said):
    refused = {
        trial.statement: said[trial.statement]
        for trial in drawn
        if trial.kind == "form" and said[trial.statement] not in ("", CRASH)
    }
    assert [s for s in refused if not known_apart(s)] == []


def test_what_ptxas_refuses_does_not_translate(drawn, said):
    wrong = [t.statement for t in drawn if said[t.statement] not in ("", CRASH)]
    found = [s for s in wrong if not known_apart(s) and not verdict(s)]
    assert len(found) * 100 <= len(wrong), found


def test_forms_translate_and_with_an_invented_modifier_none_does(drawn):
    forms = [trial for trial in drawn if trial.kind == "form"]
    refused = [why for trial in forms if (why := verdict(trial.statement))]
    assert all("not modelled" in why for why in refused)
    assert not [t.statement for t in bogus(forms[::3]) if not verdict(t.statement)]


def test_an_assembler_judges_each_statement_by_itself():
    if PTXAS is None:
        pytest.skip("no ptxas here")
    statements = [
        "add.u32 %r1, %r2, %r3",
        "add.banana %r1, %r2, %r3",
        "ld.u33 %r1, [%rd1]",
        "bra DONE",
    ]
    found = Ptxas(PTXAS).judge(statements)
    assert [not found[s] for s in statements] == [True, False, False, True]
