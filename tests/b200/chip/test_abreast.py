"""CTAs abreast: reports, counters and outputs are those of CTAs that run one after the other."""

from __future__ import annotations

import pytest
import torch

from b200.checker import Checker
from b200.chip.abreast import forms
from b200.chip.abreast.order import SideBySide, how_many
from b200.chip.gpu import Gpu
from b200.chip.machine import Machine
from b200.effects import Stores
from b200.errors import Fault
from tests.b200.chip.abreast_bugs import BUGS, BUGS_APART, RIGHT
from tests.b200.chip.abreast_kernels import ALIKE, APART
from tests.b200.chip.ctas_abreast import (
    CTAS,
    HEAD,
    LOAD,
    OTHER,
    STORE,
    THREADS,
    compare,
    outcome,
)
from tests.b200.ptx_support import kernel, run

SOUND = ALIKE | APART


@pytest.mark.parametrize("check", [False, True], ids=["unchecked", "checked"])
@pytest.mark.parametrize("name", SOUND)
def test_they_show_what_one_after_the_other_shows(name, check):
    found = compare(SOUND[name], check)
    assert found.order.ran == CTAS - 1, found.order.dropped
    assert found.said == ""


@pytest.mark.parametrize("check", [False, True], ids=["unchecked", "checked"])
@pytest.mark.parametrize("name", BUGS | BUGS_APART)
def test_reports_of_bugs_are_the_same(name, check):
    found = compare((BUGS | BUGS_APART)[name], check)
    assert not check or bool(found.said) == (name not in RIGHT)


@pytest.mark.parametrize("cta", [1, 5, CTAS - 1])
def test_one_that_differs_late_is_set_apart(cta):
    """It leaves out a barrier at the end of a loop. The CTAs before and behind it run abreast."""
    body = f"""
        mov.u32 %r12, 0;
        setp.eq.u32 %p1, %r1, {cta};
        L: {LOAD} st.shared.u32 [%r5], %r10; bar.sync 0; {OTHER} {STORE}
        add.u32 %r12, %r12, 1;
        setp.eq.u32.and %p3, %r12, 8, %p1;
        @!%p3 bar.sync 0;
        @%p3 st.shared.u32 [%r5], %r12;
        setp.lt.u32 %p2, %r12, 8;
        @%p2 bra L;"""
    found = compare(body, check=True)
    assert f"CTA ({cta}, 0, 0)" in found.said
    assert found.order.ran == CTAS - 2


def test_later_clusters_are_held_against_those_that_ran_abreast():
    """Of 80 CTAs the first 71 run in two runs, and one of the others writes what they have read and
    stored.
    """
    body = """
        ld.global.u32 %r10, [%rd2 + 4];
        ld.global.u32 %r11, [%rd2 + 8];
        setp.eq.u32 %p1, %r1, 78;
        @%p1 st.global.u32 [%rd2 + 8], %r10;
        {}
        st.global.u32 [%rd3], %r10;"""
    many = "@%p1 st.global.u32 [%rd1 + 512], %r11;"
    found = compare(body.format(many), check=True, ctas=80)
    assert found.order.ran and "CTA (78, 0, 0)" in found.said
    assert "CTA (78, 0, 0)" in compare(body.format(""), check=True, ctas=80).said


@pytest.mark.parametrize("place", ["%rd2 + 16", "%rd3 + -1280"], ids=["read", "stored"])
def test_and_against_those_that_did_what_data_say(place):
    """Some lanes of some CTAs read and store; CTA 78 stores at one of their places."""
    body = f"""
        ld.global.u32 %r10, [%rd4];
        and.b32 %r11, %r10, 7;
        setp.lt.u32 %p1, %r11, %r1;
        @!%p1 bra L;
        ld.global.u32 %r10, [%rd2 + 16];
        ld.global.u32 %r12, [%rd4 + 4];
        st.global.u32 [%rd3], %r12;
        L: setp.eq.u32 %p1, %r1, 78;
        setp.eq.u32.and %p1, %r2, 0, %p1;
        @%p1 st.global.u32 [{place}], %r2;"""
    found = compare(body, check=True, ctas=80)
    assert found.order.ran and "CTA (78, 0, 0)" in found.said


ONE_VALUE = {
    "all store it": "mov.u32 %r10, 7; st.global.u32 [%rd1], %r10;",
    "again": "mov.u32 %r10, 7; st.global.u32 [%rd1], %r10; st.global.u32 [%rd1], %r10;",
    "bytes of it": "mov.u32 %r10, 257; st.global.u8 [%rd1 + 5], %r10; st.global.u16 [%rd1 + 4], %r10;",
    "neighbours": "mov.u32 %r10, 7; st.global.v2.u32 [%rd1 + 8], {%r10, %r2};",
}
OTHER_VALUES = {
    "of each CTA": "st.global.u32 [%rd1], %r1;",
    "of one of them, later": """
        mov.u32 %r10, 7;
        st.global.u32 [%rd1], %r10;
        setp.eq.u32 %p1, %r1, 3;
        @%p1 st.global.u32 [%rd1], %r1;""",
    "of one of them, earlier": """
        mov.u32 %r10, 7;
        setp.eq.u32 %p1, %r1, 3;
        @%p1 st.global.u32 [%rd1], %r1;
        st.global.u32 [%rd1], %r10;""",
    "of one byte": """
        mov.u32 %r10, 7;
        st.global.u32 [%rd1], %r10;
        st.global.u8 [%rd1 + 2], %r1;""",
    "of one of two neighbours": "mov.u32 %r10, 7; st.global.v2.u32 [%rd1 + 8], {%r10, %r1};",
    "that is read": "mov.u32 %r10, 7; st.global.u32 [%rd1], %r10; ld.global.u32 %r10, [%rd1];"
    "add.u32 %r10, %r10, %r1;"
    "st.global.u32 [%rd1], %r10;",
}


@pytest.mark.parametrize("name", ONE_VALUE)
def test_several_may_store_one_value_at_a_place(name):
    body = f"{ONE_VALUE[name]} {LOAD} {STORE}"
    # thread 0 alone: lanes of a warp that store at one place are another matter
    body = f"setp.ne.u32 %p2, %r2, 0; @%p2 ret; {body.replace('%rd3', '%rd3 + 64')}"
    found = compare(body, check=False)
    assert found.order.ran == CTAS - 1, found.order.dropped
    compare(body, check=True)


@pytest.mark.parametrize("name", OTHER_VALUES)
def test_and_not_other_values(name):
    body = f"setp.ne.u32 %p2, %r2, 0; @%p2 ret; {OTHER_VALUES[name]}"
    found = compare(body, check=False)
    assert found.order.ran == 0
    compare(body, check=True)


@pytest.mark.parametrize("check", [False, True], ids=["unchecked", "checked"])
def test_short_launches_add_up(check):
    """A launch too short to pay runs its CTAs one by one, until as much was executed as it costs to
    write the kernel for several; and for so many others once more.
    """
    gpu, order = Gpu(), SideBySide(64, pays=40)
    gpu.machine = Machine(gpu.memory, order, (Checker(),) if check else ())
    text = kernel(HEAD + LOAD + STORE, [".u64 out", ".u64 given"], reqntid=THREADS)
    ran = []
    for ctas in [CTAS] * 8 + [CTAS - 2] * 8:
        out = torch.zeros(CTAS * THREADS, dtype=torch.int32)
        given = torch.arange(CTAS * THREADS, dtype=torch.int32)
        run(text, out, given, grid=(ctas, 1, 1), block=(THREADS, 1, 1), smem=1024, gpu=gpu)
        assert out.tolist() == given[: ctas * THREADS].tolist() + [0] * (CTAS - ctas) * THREADS
        ran.append(order.ran)
    assert ran[0] == 0 and ran[7] == CTAS - 1 and ran[8] == 0 and ran[-1] == CTAS - 3


def test_a_launch_is_cut_such_that_few_are_left_over():
    assert [how_many(left, 64) for left in (1, 2, 15, 64, 130, 255)] == [0, 2, 15, 64, 64, 51]


def test_it_has_to_pay(monkeypatch):
    short, most = ALIKE["shared memory"], SideBySide(64)
    assert most.pays > 0
    gpu = Gpu()
    gpu.machine = Machine(gpu.memory, most)
    text = kernel(HEAD + short, [".u64 out", ".u64 given"], reqntid=THREADS)
    out, given = torch.zeros(CTAS * THREADS).int(), torch.zeros(CTAS * THREADS).int()
    run(text, out, given, grid=(CTAS, 1, 1), block=(THREADS, 1, 1), smem=1024, gpu=gpu)
    assert most.ran == 0
    monkeypatch.setenv("B200_ABREAST", "0")
    assert SideBySide().most == 0
    monkeypatch.setenv("B200_ABREAST", "16:7")
    assert (SideBySide().most, SideBySide().pays) == (16, 7)


@pytest.mark.parametrize("error", [Fault("planted"), ValueError("planted")], ids=["fault", "ours"])
def test_only_faults_of_the_program_are_left_to_ctas_one_by_one(error, monkeypatch):
    """A failure of the emulator itself is told: it says nothing of the program."""

    def fails(op, seen):
        def run(*_):
            raise error

        return run

    body = ALIKE["what all CTAs read"]
    monkeypatch.setitem(forms.FORMS, Stores, fails)
    found = outcome(body, 64, check=False)
    assert found.order.ran == 0
    if isinstance(error, Fault):
        assert found.shows() == outcome(body, 0, check=False).shows()
    else:
        assert "the emulator itself failed" in found.said and "ValueError: planted" in found.said
