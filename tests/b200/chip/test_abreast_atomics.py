"""Atomics of CTAs abreast: reports, counters and outputs are those of CTAs one after the other."""

from __future__ import annotations

import pytest

from tests.b200.chip.ctas_abreast import CTAS, LOAD, OTHER, STORE, compare

# A word of `out` by the thread's number or by data: 16 words that all CTAs share.
COMMON = """
and.b32 %r11, %r2, 15;
mul.wide.u32 %rd5, %r11, 4;
add.u64 %rd5, %rd1, %rd5;
"""
BY_DATA = COMMON.replace("%r2, 15", "%r10, 15")
# The same of shared memory, with zeros there.
ZEROS = f"""
{LOAD}
st.shared.u32 [%r5], 0;
bar.sync 0;
and.b32 %r11, %r2, 15;
shl.b32 %r11, %r11, 2;
add.u32 %r11, %r11, %r3;
"""
ZEROS_BY_DATA = ZEROS.replace("%r2, 15", "%r10, 15")
SHOWN = f"bar.sync 0; {OTHER} {STORE}"
CTA_5_READS = """
setp.eq.u32 %p1, %r1, 5;
@%p1 ld.global.u32 %r12, [%rd1 + 64];
"""

SOUND = {
    "a counter": "red.global.add.u32 [%rd1], 1;",
    "whose result nobody uses": f"{LOAD} atom.global.add.s32 %r12, [%rd1 + 4], %r10;",
    "in another's word": f"{LOAD} {COMMON} red.global.max.s32 [%rd5], %r10;",
    "where data say": f"{LOAD} {BY_DATA} red.global.add.u32 [%rd5], %r2;",
    "several ways, several places": f"""
        {LOAD} {COMMON}
        red.global.and.b32 [%rd5], %r10;
        red.global.or.b32 [%rd5 + 64], %r10;
        red.global.xor.b32 [%rd5 + 128], %r10;
        red.global.min.u32 [%rd5 + 192], %r10;
        red.global.min.s32 [%rd5 + 256], %r10;
        red.global.max.u32 [%rd5 + 320], -7;""",
    "64 bits": f"""
        {LOAD}
        cvt.u64.u32 %rd6, %r10;
        red.global.add.u64 [%rd1 + 8], %rd6;
        red.global.min.s64 [%rd1 + 16], %rd6;""",
    "generic": f"{LOAD} {COMMON} red.relaxed.sys.add.u32 [%rd5], %r10;",
    "under data": f"""
        {LOAD} {COMMON}
        and.b32 %r12, %r10, 3;
        setp.ne.u32 %p1, %r12, %r1;
        @%p1 red.global.add.u32 [%rd5], %r10;""",
    "in shared memory": f"{ZEROS} red.shared.add.u32 [%r11], %r10; {SHOWN}",
    "in shared memory, where data say": f"{ZEROS_BY_DATA} red.shared.add.u32 [%r11], 3; {SHOWN}",
    "in shared memory, with a result": f"""
        {ZEROS}
        atom.shared.add.u32 %r12, [%r11], %r10;
        bar.sync 0;
        {OTHER}
        xor.b32 %r10, %r10, %r12;
        {STORE}""",
    "in shared memory, floats": f"""
        {ZEROS}
        cvt.rn.f32.u32 %r12, %r10;
        red.shared.add.f32 [%r11], %r12;
        {SHOWN}""",
    "in shared memory, cas": f"{ZEROS} atom.shared.cas.b32 %r12, [%r11], 0, %r10; {SHOWN}",
    "in order": f"""
        {LOAD} {COMMON}
        red.global.inc.u32 [%rd5], 17;
        red.global.dec.u32 [%rd5 + 64], 137;
        atom.global.exch.b32 %r12, [%rd5 + 128], %r4;
        atom.global.cas.b32 %r13, [%rd5 + 192], 0, %r4;""",
}
# Sums of floats, of which there is a note: the first two CTAs are checked.
SUMS = {
    "f32": f"{LOAD} cvt.rn.f32.u32 %r12, %r10; {COMMON} red.global.add.f32 [%rd5], %r12;",
    "f16x2": f"{LOAD} {COMMON} red.global.add.noftz.f16x2 [%rd5], %r10;",
    "two of them": f"""
        {LOAD}
        cvt.rn.f32.u32 %r12, %r10;
        and.b64 %rd5, %rd9, 56;
        add.u64 %rd5, %rd1, %rd5;
        red.global.add.v2.f32 [%rd5], {{%r12, 0f3F800000}};""",
}
# No bugs, but the order of CTAs shows, or nobody can tell that it does not.
ONE_BY_ONE = {
    "a result that somebody uses": f"""
        atom.global.add.u32 %r10, [%rd2], 1;
        {STORE}""",
    "a result that somebody uses, generic": f"""
        atom.add.u32 %r10, [%rd2], 1;
        {STORE}""",
    "two ways at one place": f"""
        {LOAD} {COMMON}
        red.global.add.u32 [%rd5], %r10;
        red.global.xor.b32 [%rd5], %r10;""",
    "beside stores": f"""
        {LOAD}
        red.global.add.u32 [%rd1 + {8 * CTAS * 64 - 4}], 1;
        {STORE}""",
    "in order, where CTAs take turns of their own": """
        setp.eq.u32 %p1, %r1, 5;
        setp.lt.u32.and %p2, %r2, 16, %p1;
        @%p2 bra M;
        mul.lo.u32 %r12, %r2, 3;
        bra N;
        M: add.u32 %r12, %r2, 9;
        N: add.u32 %r12, %r12, %r4;
        atom.global.exch.b32 %r13, [%rd1], %r12;""",
    "beside stores of the first warp": f"""
        {LOAD}
        setp.lt.u32 %p1, %r2, 32;
        @%p1 st.global.u32 [%rd3], %r10;
        @!%p1 red.global.add.u32 [%rd1 + {8 * CTAS * 64 - 4}], 1;""",
    "beside loads of the last warp": f"""
        setp.lt.u32 %p1, %r2, 32;
        @%p1 red.global.add.u32 [%rd2 + {8 * CTAS * 64 - 4}], 1;
        @%p1 ret;
        {LOAD} {STORE}""",
}
BUGS = {
    "a reader": f"{COMMON} red.global.add.u32 [%rd5 + 64], 1; {CTA_5_READS} {STORE}",
    "a reader in the first CTA": """
        setp.eq.u32 %p1, %r1, 0;
        @%p1 ld.global.u32 %r12, [%rd1 + 64];
        setp.gt.u32 %p1, %r1, 2;
        @%p1 red.global.add.u32 [%rd1 + 64], 1;""",
    "a store in the first CTA": """
        setp.eq.u32 %p1, %r4, 0;
        @%p1 st.global.u32 [%rd1 + 64], %r2;
        setp.gt.u32 %p1, %r1, 2;
        @%p1 red.global.add.u32 [%rd1 + 64], 1;""",
    "a store": """
        red.global.add.u32 [%rd1 + 64], 1;
        setp.eq.u32 %p1, %r4, 321;
        @%p1 st.global.u32 [%rd1 + 64], %r2;""",
    "a narrow scope": "red.relaxed.cta.global.add.u32 [%rd1 + 64], 1;",
    "a narrow scope, but for the first CTAs": """
        setp.gt.u32 %p1, %r1, 2;
        @%p1 red.relaxed.cta.global.add.u32 [%rd1 + 64], 1;""",
    "no barrier": f"""
        {ZEROS}
        red.shared.add.u32 [%r11], %r10;
        xor.b32 %r11, %r5, 128;
        ld.shared.u32 %r10, [%r11];
        {STORE}""",
    "no barrier, in CTA 5, where data say": f"""
        {ZEROS_BY_DATA}
        red.shared.add.u32 [%r11], %r10;
        setp.eq.u32 %p1, %r1, 5;
        xor.b32 %r11, %r5, 128;
        @%p1 ld.shared.u32 %r10, [%r11];
        {SHOWN}""",
    "over what another lane reads, in CTA 5": f"""
        {ZEROS_BY_DATA}
        ld.shared.u32 %r12, [%r5];
        setp.eq.u32 %p1, %r1, 5;
        @%p1 red.shared.add.u32 [%r11], %r10;
        {SHOWN}""",
    "over what another lane writes, in CTA 5": f"""
        {ZEROS_BY_DATA}
        st.shared.u32 [%r5], %r10;
        setp.eq.u32 %p1, %r1, 5;
        @%p1 red.shared.add.u32 [%r11], %r10;
        {SHOWN}""",
    "before what another lane writes, in CTA 5": f"""
        {ZEROS_BY_DATA}
        red.shared.add.u32 [%r11], %r10;
        setp.eq.u32 %p1, %r1, 5;
        @%p1 st.shared.u32 [%r5], %r10;
        {SHOWN}""",
    "outside, in CTA 5": """
        setp.eq.u32 %p1, %r1, 5;
        selp.u32 %r12, 1, 0, %p1;
        shl.b32 %r12, %r12, 30;
        cvt.u64.u32 %rd5, %r12;
        add.u64 %rd5, %rd5, %rd1;
        red.global.add.u32 [%rd5], 1;""",
}
CHECKED = pytest.mark.parametrize("check", [False, True], ids=["unchecked", "checked"])


@CHECKED
@pytest.mark.parametrize("name", SOUND)
def test_they_show_what_one_after_the_other_shows(name, check):
    found = compare(SOUND[name], check)
    assert found.order.ran == CTAS - 1, found.order.dropped
    assert found.said == ""


@CHECKED
@pytest.mark.parametrize("name", SUMS)
def test_sums_of_floats_keep_their_order_and_their_note(name, check):
    found = compare(SUMS[name], check)
    assert found.order.ran == CTAS - 1 - check, found.order.dropped
    assert not check or "of CTA (1, 0, 0)" in found.said


@CHECKED
def test_sums_of_which_a_place_has_one_in_each_cta_need_no_turns(check):
    """CTA 5 goes ways of its own, as the last one does where a grid is larger than the data."""
    body = f"""
    {LOAD}
    setp.eq.u32 %p1, %r1, 5;
    setp.lt.u32.and %p2, %r2, 16, %p1;
    @%p2 bra M;
    add.u32 %r10, %r10, 3;
    bra N;
    M: mul.lo.u32 %r10, %r10, 5;
    N: cvt.rn.f32.u32 %r12, %r10;
    and.b64 %rd9, %rd9, 252;
    add.u64 %rd9, %rd9, %rd1;
    red.global.add.f32 [%rd9], %r12;"""
    found = compare(body, check, ctas=20)
    assert found.order.ran == 19 - check, found.order.dropped


@CHECKED
@pytest.mark.parametrize("name", ONE_BY_ONE)
def test_what_the_order_of_ctas_decides_is_left_to_it(name, check):
    found = compare(ONE_BY_ONE[name], check)
    assert found.order.ran == 0 and found.said == ""


@CHECKED
@pytest.mark.parametrize("name", BUGS)
def test_reports_of_bugs_are_the_same(name, check):
    found = compare(BUGS[name], check)
    assert not check or found.said


@pytest.mark.parametrize("access", ["ld.global.u32 %r10, [%rd1]", "st.global.u32 [%rd1], %r2"])
@pytest.mark.parametrize("atomic", ["add", "max", "exch"])
def test_later_clusters_are_held_against_atomics_of_those_that_ran_abreast(atomic, access):
    """Of 80 CTAs the first ones run abreast; a later one reads a word, or stores there. The
    maximum changes no word but for the first CTA.
    """
    body = f"""
        sub.u32 %r11, 5120, %r4;
        atom.global.{atomic}.{"b32" if atomic == "exch" else "u32"} %r12, [%rd1], %r11;
        setp.eq.u32 %p1, %r4, {78 * 64};
        @%p1 {access};"""
    found = compare(body, check=True, ctas=80)
    assert found.order.ran and "CTA (78, 0, 0)" in found.said


def test_an_access_is_held_against_atomics_before_the_latest_one():
    """CTA 78 reads what it has itself updated last, and CTA 20 before."""
    body = f"""
        setp.eq.u32 %p1, %r4, {20 * 64};
        setp.eq.u32.or %p1, %r4, {78 * 64}, %p1;
        @%p1 red.global.add.u32 [%rd1], 1;
        setp.eq.u32 %p1, %r4, {78 * 64};
        @%p1 ld.global.u32 %r10, [%rd1];"""
    found = compare(body, check=True, ctas=80)
    assert found.order.ran and "CTA (20, 0, 0)" in found.said
