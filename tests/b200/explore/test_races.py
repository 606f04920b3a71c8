"""Races, and strong stores that come late, in orders that `--schedule all` carries out."""

from __future__ import annotations

import pytest
import torch

import b200
from b200.chip.gpu import Gpu
from b200.chip.launch import Launch
from b200.errors import EmulatorError
from b200.explore import DEADLOCK, FREE, INCOMPLETE
from b200.program.module import Program as Module
from b200.program.parse import parse
from tests.b200.checker.checks_page import unexplained
from tests.b200.explore import every_order
from tests.b200.explore.against_force import verdict
from tests.b200.explore.test_every_order import program

HEAD = """.version 8.8
.target sm_100a
.address_size 64
.visible .entry k(.param .u64 words)
.reqntid {threads}, 1, 1
{{
 .reg .pred %p<9>, %q; .reg .b32 %r<40>; .reg .b64 %rd<9>; .shared .align 16 .b8 sm[64];
 ld.param.u64 %rd0, [words]; mov.u32 %r0, %tid.x; mov.u32 %r1, %ctaid.x; shr.u32 %r2, %r0, 5;
 mad.lo.u32 %r2, %r1, {warps}, %r2;
 and.b32 %r3, %r0, 31; setp.ne.u32 %q, %r3, 0; @%q ret; setp.ne.u32 %p0, %r2, 0; @%p0 bra OTHER;
 {first}
 ret;
OTHER:
 {other}
 ret;
}}
"""


def module(first: str, other: str, ctas: int = 2) -> Module:
    """Warp 0 executes `first`, the other warp `other`. Words of memory are 0 at the start."""
    warps = 2 // ctas
    return parse(HEAD.format(first=first, other=other, threads=32 * warps, warps=warps))


def explored(code: Module, ctas: int = 2, threads: int = 64) -> Launch:
    gpu = Gpu()
    gpu.machine = b200.machine(gpu.memory, schedule="all")
    words = torch.zeros(64, dtype=torch.int32)
    return gpu.launch(code, "k", (ctas, 1, 1), (threads // ctas, 1, 1), args=[words])


def ring(ahead: int) -> tuple[str, str]:
    """A ring of two slots behind words 2 and 3. Its writer goes on while it is at most `ahead`
    numbers in front of the reader. Word 0: numbers written, word 1: numbers read.
    """
    writer = f"""
 mov.u32 %r4, 0;
W: ld.acquire.gpu.u32 %r5, [%rd0+4]; sub.u32 %r6, %r4, %r5;
 setp.gt.u32 %p1, %r6, {ahead}; @%p1 bra W;
 and.b32 %r7, %r4, 1; mul.wide.u32 %rd1, %r7, 4; add.u64 %rd1, %rd1, %rd0;
 add.u32 %r4, %r4, 1; st.u32 [%rd1+8], %r4; st.release.gpu.u32 [%rd0], %r4;
 setp.lt.u32 %p2, %r4, 4; @%p2 bra W;"""
    reader = """
 mov.u32 %r4, 0;
R: ld.acquire.gpu.u32 %r5, [%rd0]; setp.le.u32 %p1, %r5, %r4; @%p1 bra R;
 and.b32 %r7, %r4, 1; mul.wide.u32 %rd1, %r7, 4; add.u64 %rd1, %rd1, %rd0;
 ld.u32 %r8, [%rd1+8]; add.u32 %r4, %r4, 1;
 mul.wide.u32 %rd2, %r4, 4; add.u64 %rd2, %rd2, %rd0; st.u32 [%rd2+64], %r8;
 st.release.gpu.u32 [%rd0+4], %r4; setp.lt.u32 %p2, %r4, 4; @%p2 bra R;"""
    return writer, reader


def node(again: int) -> tuple[str, str]:
    """A node at bytes 16 or 32 that a word points to. It is written once more while a reader may
    hold it, if `again` is 16.
    """
    publishes = "mov.u32 %r4, {0}; st.u32 [%rd0+{0}], 7; st.release.gpu.u32 [%rd0], %r4;"
    writer = f"{publishes.format(16)} {publishes.format(32)} st.u32 [%rd0+{again}], 9;"
    reader = """
R: ld.acquire.gpu.u32 %r5, [%rd0]; setp.eq.u32 %p1, %r5, 0; @%p1 bra R;
 cvt.u64.u32 %rd1, %r5; add.u64 %rd1, %rd1, %rd0; ld.u32 %r6, [%rd1]; st.u32 [%rd0+128], %r6;"""
    return writer, reader


def once(checked: bool) -> tuple[str, str]:
    """A flag that is asked once: the data is read whatever is found, or where the flag is set."""
    guard = "@%p1 " if checked else ""
    reader = f"""
 ld.acquire.gpu.u32 %r5, [%rd0]; setp.ne.u32 %p1, %r5, 0; @!%p1 st.u32 [%rd0+64], %r5;
 {guard}ld.u32 %r6, [%rd0+4]; setp.eq.u32 %p2, %r5, 5; @%p2 bar.sync 3, 64;"""
    return "st.u32 [%rd0+4], 7; st.release.gpu.u32 [%rd0], 1;", reader


def quietly(checked: bool) -> tuple[str, str]:
    """The same, and each access has a barrier behind it that its warp leaves out."""
    skips = "setp.eq.u32 %p8, %r0, 99; @%p8 bar.sync 4, 64;"
    writer, reader = once(checked)
    return writer.replace("7;", f"7; {skips}"), f"{reader} {skips}"


RACES = {
    "a ring whose writer goes one slot too far": (ring(2), ring(1)),
    "a node that is written while a reader may hold it": (node(16), node(48)),
    "data that is read whatever the flag is": (once(False), once(True)),
    "nobody can tell what lies between": (quietly(False), quietly(True)),
}


@pytest.mark.parametrize("what", RACES)
def test_a_race_of_another_order_is_an_error_with_the_order(what):
    crime, twin = RACES[what]
    launch = explored(module(*crime))
    found, *more = list(launch.findings or [])
    assert not more and "another order of the warps has a race" in str(found)
    assert any("executes" in step for step in found.details)
    assert unexplained([found]) == []
    assert launch.orders.kind == INCOMPLETE
    launch = explored(module(*twin))
    assert (launch.findings, launch.orders.kind) == ([], FREE), launch.orders.reasons


TICKET = "atom.relaxed.gpu.add.u32 %r4, [%rd0+16], 1;"
POLL = TICKET + "setp.ne.u32 %p1, %r4, 0; @%p1 bra E; P: {} setp.{}.u32 %p2, %r5, 0; @%p2 bra P; E:"


@pytest.mark.parametrize(
    "load, races", [("ld.u32 %r5, [%rd0];", True), ("ld.acquire.gpu.u32 %r5, [%rd0+32];", False)]
)
def test_an_operation_lands_where_another_warp_polls(load, races):
    """Warp 1 polls if it takes its ticket first, which the usual order does not show: the word of a
    bulk store, or one that is released behind it.
    """
    store = """
 st.shared.u32 [sm], 1; fence.proxy.async;
 cp.async.bulk.global.shared::cta.bulk_group [%rd0], [sm], 16; cp.async.bulk.commit_group;
 cp.async.bulk.wait_group 0; fence.proxy.async; st.release.gpu.u32 [%rd0+32], 1;"""
    launch = explored(module(TICKET + store, POLL.format(load, "eq"), 1), 1)
    told = [f for f in launch.findings or () if f.severity == "error"]
    assert bool(told) == races, (launch.findings, launch.orders)
    assert all("another order" in str(f) and "BulkStore" in str(f) for f in told), told[0].diagnosis


@pytest.mark.parametrize("goes_on, kind", [("eq", DEADLOCK), ("ne", FREE)])
def test_a_plain_read_that_only_another_order_executes_decides(goes_on, kind):
    """The word is 0, and nobody writes it."""
    launch = explored(module(TICKET, POLL.format("ld.u32 %r5, [%rd0];", goes_on), 1), 1)
    assert launch.orders.kind == kind, launch.orders.reasons


@pytest.mark.parametrize("ticket, races", [(0, True), (2, False)])
def test_a_step_of_its_cluster_alone_writes_what_another_cluster_reads(ticket, races):
    """The store is between two barriers of its CTA. The other CTA reads if it has this ticket, which
    it has in no order if it is 2.
    """
    meets = "bar.sync 3, 32;"
    writer = f"""
 mbarrier.init.shared::cta.b64 [sm+32], 1;
 mbarrier.test_wait.parity.shared::cta.b64 %p5, [sm+32], 0; @%p5 bar.arrive 6, 64;
 {meets} st.u32 [%rd0+4], 7; {meets} {TICKET}"""
    reader = f"{TICKET} setp.eq.u32 %p1, %r4, {ticket}; @%p1 ld.u32 %r6, [%rd0+4];"
    launch = explored(module(writer, reader))
    told = [f.diagnosis for f in launch.findings or ()]
    assert len(told) == races and all("another order" in text for text in told), told


WRITES = "st.u32 [%rd0+4], {value}; {fence} atom.relaxed.gpu.add.u32 %r5, [%rd0], 1;"


@pytest.mark.parametrize("value, races", [("7", 0), ("%r2", 1)])
def test_it_matters_which_value_is_last(value, races):
    """Two plain stores of one value need no order; of two values they do."""
    text = WRITES.format(value=value, fence="") + "setp.gt.u32 %p1, %r5, 1; @%p1 bar.sync 3, 64;"
    launch = explored(module(text, text))
    told = [f for f in launch.findings or () if f.severity == "error"]
    assert bool(told) == bool(races)
    assert (launch.orders.kind == FREE) == (not races)


def test_strong_stores_are_steps_where_only_atomics_decide():
    """Another warp may come between an atomic and the store behind it, and then hangs."""
    first = "atom.relaxed.gpu.add.u32 %r4, [%rd0], 1; st.relaxed.gpu.u32 [%rd0+4], 1;"
    other = """
 atom.relaxed.gpu.add.u32 %r4, [%rd0], 0; atom.relaxed.gpu.add.u32 %r5, [%rd0+4], 0;
 setp.eq.u32 %p1, %r4, 1; setp.eq.u32 %p2, %r5, {}; and.pred %p1, %p1, %p2;
 @%p1 bar.sync 3, 64;"""
    assert explored(module(first, other.format(0), 1), 1).orders.kind == "deadlock"
    assert explored(module(first, other.format(2), 1), 1).orders.kind == FREE


def test_a_strong_store_is_a_step_where_no_memory_decides():
    """It tells others what its warp has written before, and a look decides: data behind a flag."""
    writer = """
 mbarrier.init.shared::cta.b64 [sm+32], 1;
 mbarrier.test_wait.parity.shared::cta.b64 %p5, [sm+32], 0; @%p5 bar.arrive 6, 64;
 st.u32 [%rd0+4], 7; st.release.gpu.u32 [%rd0], 1;"""
    reader = """
 atom.acquire.gpu.or.b32 %r5, [%rd0], 0; setp.ne.u32 %p1, %r5, 0;
 @%p1 ld.u32 %r6, [%rd0+4]; @%p1 st.u32 [%rd0+64], %r6;"""
    launch = explored(module(writer, reader, 1), 1)
    assert (launch.findings, launch.orders.kind) == ([], FREE), launch.orders.reasons
    assert launch.orders.states > 0


def test_a_kernel_that_was_run_before_is_cut_into_steps():
    """A run without the checker has translated it whole. Its order hangs."""
    ticket = "atom.relaxed.gpu.add.u32 %r4, [%rd0], 1; setp.eq.u32 %p1, %r4, {};"
    meets = "@%p1 bar.sync 3, 64;"
    code = module(ticket.format(1) + meets, ticket.format(9) + meets, 1)
    gpu = Gpu()
    gpu.machine = b200.machine(gpu.memory, check=False, schedule="early")
    with pytest.raises(EmulatorError, match="deadlock"):
        gpu.launch(code, "k", (1, 1, 1), (64, 1, 1), args=[torch.zeros(64, dtype=torch.int32)])
    assert explored(code, 1).orders.kind == "deadlock"


MEET = ("sync", 2, 64)
LAST = [("sync", 0, 0), ("read", "s0"), ("skip", "ne", 2), ("sync", 1, 64)]


def _stale(word: str, other: str, between: list[tuple]) -> list[tuple]:
    asks = [("read", other), ("skip", "ne", 0), ("add", "s0", 1)]
    return [("store", word, 1), *between, *asks]


WEAK = {
    "each stores, then reads what the other has stored": lambda between: program(
        [*_stale("g0", "g1", between), *LAST], [*_stale("g1", "g0", between), LAST[0]]
    ),
    "two stores are seen in the other order": lambda between: program(
        [("store", "g0", 1), *between, ("store", "g1", 1)],
        [*between, ("poll", "g1", "eq", 1), ("read", "g0"), ("skip", "eq", 1), ("sync", 1, 64)],
    ),
}


@pytest.mark.parametrize("what", WEAK)
def test_strong_stores_may_come_late(what):
    """One after the other, all steps end well. PTX promises less."""
    weak, strong = WEAK[what]([]), WEAK[what]([MEET])
    assert every_order.truth(weak) == every_order.truth(strong) == every_order.FREE
    said, why = verdict(weak)
    assert said == INCOMPLETE and any("8.10" in reason for reason in why), why
    assert verdict(strong) == (FREE, [])


def test_the_store_that_is_named_is_the_late_one():
    """Another one lands at once, and may be the last to land."""
    writer = [("store", "g0", 1), ("store", "g1", 1), ("poll", "s0", "eq", 1), ("store", "s1", 1)]
    reader = [("poll", "g1", "eq", 1), ("read", "g0"), ("store", "s0", 1)]
    reader += [("skip", "eq", 1), ("sync", 1, 64)]
    _, why = verdict(program(writer, reader))
    assert "where st.relaxed at small.ptx:100 is seen later" in why[-1], why


@pytest.mark.parametrize("fence, kind", [("acq_rel", INCOMPLETE), ("sc", FREE)])
def test_a_store_is_over_before_a_fence_sc(fence, kind):
    text = f"""
 st.relaxed.gpu.u32 [%rd0+{{}}], 1; fence.{fence}.gpu; ld.relaxed.gpu.u32 %r4, [%rd0+{{}}];
 setp.eq.u32 %p1, %r4, 0; @%p1 red.relaxed.gpu.add.u32 [%rd0+8], 1;
L{{}}: ld.relaxed.gpu.u32 %r6, [%rd0+8]; setp.eq.u32 %p2, %r6, 2; @%p2 bra L{{}};"""
    launch = explored(module(text.format(0, 4, 0, 0), text.format(4, 0, 1, 1)))
    assert (launch.findings, launch.orders.kind) == ([], kind), launch.orders.reasons


@pytest.mark.parametrize("fence, kind", [("", INCOMPLETE), ("fence.sc.gpu;", FREE)])
def test_three_warps_in_a_ring(fence, kind):
    """Each stores a word and reads the next warp's: no two of them share two words."""
    text = f"""
 mul.wide.u32 %rd1, %r2, 4; add.u64 %rd1, %rd1, %rd0; add.u32 %r4, %r2, 1;
 rem.u32 %r4, %r4, 3; mul.wide.u32 %rd2, %r4, 4; add.u64 %rd2, %rd2, %rd0;
 st.relaxed.gpu.u32 [%rd1], 1; {fence} ld.relaxed.gpu.u32 %r5, [%rd2]; st.u32 [%rd1+32], %r5;
 bar.sync 3, 96; ld.u32 %r6, [%rd0+32]; ld.u32 %r7, [%rd0+36]; ld.u32 %r8, [%rd0+40];
 or.b32 %r6, %r6, %r7; or.b32 %r6, %r6, %r8; setp.eq.u32 %p1, %r6, 0; @%p1 bar.sync 4, 128;"""
    code = parse(HEAD.format(first=text, other=text, threads=96, warps=3))
    launch = explored(code, 1, 96)
    assert (launch.findings, launch.orders.kind) == ([], kind), launch.orders.reasons


@pytest.mark.parametrize("between, kind", [("", INCOMPLETE), ("fence.acq_rel.gpu;", FREE)])
def test_a_fence_orders_no_two_stores_in_front_of_it(between, kind):
    """Warp 1 sees the later store alone, after warp 0 has passed its fence."""
    first = f"""
 st.relaxed.gpu.u32 [%rd0], 1; {between} st.relaxed.gpu.u32 [%rd0+4], 1; fence.acq_rel.gpu;
 ld.relaxed.gpu.u32 %r5, [%rd0+8]; st.u32 [%rd0+64], %r5; bar.sync 3, 64;"""
    other = """
 st.relaxed.gpu.u32 [%rd0+8], 1; fence.sc.gpu; ld.relaxed.gpu.u32 %r5, [%rd0+4];
 ld.relaxed.gpu.u32 %r6, [%rd0+4]; ld.relaxed.gpu.u32 %r7, [%rd0];
 bar.sync 3, 64; ld.u32 %r8, [%rd0+64]; or.b32 %r5, %r5, %r7; or.b32 %r5, %r5, %r8;
 setp.eq.u32 %p1, %r5, 0; setp.eq.u32 %p2, %r6, 1; and.pred %p1, %p1, %p2; @%p1 bar.sync 4, 64;"""
    launch = explored(module(first, other, 1), 1)
    assert (launch.findings, launch.orders.kind) == ([], kind), launch.orders.reasons


def test_a_volatile_store_comes_after_a_late_one_to_its_word():
    """Each byte has the values of a thread in their order."""
    first = """
 st.relaxed.cta.shared.u32 [sm], 1; st.volatile.shared.u32 [sm], 2;
 st.relaxed.cta.shared.u32 [sm+4], 1; bar.sync 3, 64;"""
    other = """
 ld.relaxed.cta.shared.u32 %r5, [sm+4]; ld.relaxed.cta.shared.u32 %r6, [sm]; bar.sync 3, 64;
 ld.relaxed.cta.shared.u32 %r6, [sm]; setp.ne.u32 %p1, %r6, 2; @%p1 bar.sync 4, 64;"""
    launch = explored(module(first, other, 1), 1)
    assert launch.orders.kind == FREE, launch.orders.reasons
