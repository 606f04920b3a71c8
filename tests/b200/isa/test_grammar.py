"""The table of instruction forms: how a row is read, how an opcode is matched, what is refused."""

from __future__ import annotations

import pytest

import b200.chip.instruction_set  # noqa: F401  registers every unit
from b200.errors import Unsupported
from b200.isa import grammar
from b200.registry import FLOW, TABLE, find
from lab.conformance.study import tried
from lab.tables.instructions import opcode

FORMS = [form for forms in grammar.table().values() for form in forms]
MODELLED = [f for f in FORMS if not f.reason and f.mnemonic != "wmma" and tried(f)]
ROWS = """
KIND: u32 s32
op.first{.sat}.KIND d, a
op.(hi|lo){.a|.b.c}.(b32|KIND) d, a
two<.x|.y.z>.u32 d
- op.later d @9.9 ; later
- gone.* ; no such unit
"""


def test_rows_are_read_as_they_are_written():
    first, choice, two, later, gone = grammar.rows(ROWS, "chapter")
    assert (first.mnemonic, first.operands, first.reason) == ("op", "d, a", "")
    assert [slot.optional for slot in first.variants[0]] == [False, True, False]
    assert first.variants[0][2].choices == {"u32", "s32"}
    assert [len(slots) for slots in choice.variants] == [2, 3, 4]
    assert [len(slots) for slots in two.variants] == [2, 3]
    assert (later.reason, later.since, gone.open, gone.chapter) == (
        "later",
        (9, 9),
        True,
        "chapter",
    )
    assert choice.text == ".(hi|lo){.a|.b.c}.(b32|u32|s32)"


@pytest.mark.parametrize("row", ["op.NOSUCH d", "op.a d ; a reason without a dash", "- op.a d"])
def test_a_row_that_cannot_be_meant_is_no_row(row):
    with pytest.raises((ValueError, AssertionError)):
        list(grammar.rows(row))


def test_each_modelled_row_has_a_unit():
    names = [opcode(form) for form in MODELLED if form.mnemonic not in FLOW]
    assert len(names) > 300 and [name for name in names if find(name) is None] == []


def test_a_row_without_a_factory_is_named(monkeypatch):
    monkeypatch.delitem(TABLE, ("brev",))
    with pytest.raises(LookupError, match="brev.b32 has a row in b200/isa/forms, and no factory"):
        find.__wrapped__("brev.b32")


def test_each_unit_has_a_row():
    opcodes = {opcode(form) for form in FORMS if not form.reason and form.mnemonic != "wmma"}
    entries = {find(name) for name in opcodes if name.split(".")[0] not in FLOW}
    used = {entry.prefix for entry in entries if entry is not None}
    spelt = {key for key in TABLE if key[0] != "call"} - used
    known = {
        m
        for forms in grammar.table().values()
        for f in forms
        for v in f.variants
        for s in v
        for m in s.choices
    }
    assert all(set(key[1:]) <= known for key in spelt), spelt


@pytest.mark.parametrize(
    "text, why",
    [
        ("ld.global.b8x", "ld has no modifier .b8x"),
        ("ld.shared.v4.b64", "does not go with"),
        ("mbarrier.arrive.shared::cta", ": .b64 is missing"),
        ("multimem.st.weak.global.b32", "multimem, not modelled"),
        ("sin.approx.ftz.2pi.f32", r".2pi \(PTX 9.5\), not modelled"),
        ("tex.2d.v4.f32.f32", "textures and surfaces, not modelled"),
        ("cvt.f16.bf16x2", "PTX ISA 9.5 has no such form"),
        ("vote.any.pred", ": .sync is missing"),
    ],
)
def test_a_refusal_says_why(text, why):
    with pytest.raises(Unsupported, match=f"^{text}: .*{why}"):
        find(text)


def test_no_form_takes_a_modifier_twice_or_one_that_nobody_knows():
    for form in filter(tried, FORMS):
        name = opcode(form)
        assert grammar.match(name) is not None
        found = grammar.match(f"{name}.zzz")  # wmma has a row for all that is left
        assert found is None or found.reason, name


def test_a_form_that_is_not_modelled_gives_way_to_one_that_is():
    found = grammar.match("cp.async.bulk.wait_group.read")
    assert found is not None and not found.reason
    found = grammar.match("cp.async.bulk.wait_group.sync_restrict::proxy::async.read")
    assert found is not None and found.form.since == (9, 5)
