"""What lanes of one warp hand over to each other, and to other warps one by one: by flags, by atomics,
by mbarriers. Each crime has a twin.
"""

import pytest
import torch

import b200
from b200.checker.finding import ERROR
from b200.chip.gpu import Gpu
from tests.planted_bugs.case import Source

SPACES = ("shared", "global")
FLAGS = {
    "acquire": ("st.release.gpu.{s}.u32 [{a}], 1;", "ld.acquire.gpu.{s}.u32 %r5, [{a}];", ""),
    "fences": (
        "fence.acq_rel.gpu; st.relaxed.gpu.{s}.u32 [{a}], 1;",
        "ld.relaxed.gpu.{s}.u32 %r5, [{a}];",
        "fence.acq_rel.gpu;",
    ),
    "atomics": (
        "red.release.gpu.{s}.add.u32 [{a}], 1;",
        "atom.acquire.gpu.{s}.or.b32 %r5, [{a}], 0;",
        "",
    ),
}
AGAIN = "setp.lt.u32 %p9, %r5, {}; @%p9 bra WAIT;"


def found(threads: int, *body: str) -> list:
    """The errors of a CTA that executes `body`. %r0: thread, %r4: lane, %rd1: 4 KB of zeros."""
    k = Source(".param .u64 memory", threads)
    for line in (
        "mov.u32 %r0, %tid.x;",
        "and.b32 %r4, %r0, 31;",
        "mov.u32 %r1, dyn;",
        "ld.param.u64 %rd1, [memory];",
        "setp.eq.u32 %p0, %r0, 0;",
        "setp.eq.u32 %p1, %r0, 1;",
        "setp.ge.u32 %p2, %r0, 32;",
        *body,
        "DONE: ret;",
    ):
        k(line)
    gpu = Gpu()
    gpu.machine = b200.machine(gpu.memory)
    memory = torch.zeros(1024, dtype=torch.int32)
    launch = gpu.launch(k.text("k"), None, (1, 1, 1), (threads, 1, 1), (1, 1, 1), 0x8000, (memory,))
    return [finding for finding in launch.findings or () if finding.severity == ERROR]


def at(space: str, *lines: str) -> list[str]:
    """Lines with {s} for the space and {a} for a flag there, which is zero at first."""
    base = "%r1" if space == "shared" else "%rd1"
    lines = ("@%p0 st.{s}.u32 [{a}], 0;", "bar.sync 0;", *lines)
    return [line.format(s=space, a=base) for line in lines]


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("how", FLAGS)
@pytest.mark.parametrize("space", SPACES)
def test_a_flag_between_lanes_of_a_warp(space, how, late):
    """Lane 0 stores and sets a flag, lane 1 polls it. The crime: the store behind the flag."""
    release, acquire, fence = FLAGS[how]
    store = "st.{s}.u32 [{a}+64], 5;"
    sent = (release, store) if late else (store, release)
    errors = found(
        32,
        *at(
            space,
            "@%p0 bra SEND;",
            "@!%p1 bra DONE;",
            "WAIT:",
            acquire,
            AGAIN.format(1),
            fence,
            "ld.{s}.u32 %r6, [{a}+64];",
            "bra DONE;",
            "SEND:",
            *sent,
        ),
    )
    assert bool(errors) == late


@pytest.mark.parametrize("late", [False, True])
def test_an_mbarrier_between_lanes_of_a_warp(late):
    store, arrive = "st.shared.u32 [%r1+64], 5;", "mbarrier.arrive.shared::cta.b64 _, [%r1];"
    errors = found(
        32,
        "@%p0 mbarrier.init.shared::cta.b64 [%r1], 1;",
        "bar.warp.sync -1;",
        "@%p0 bra SEND;",
        "@!%p1 bra DONE;",
        "WAIT: mbarrier.try_wait.parity.shared::cta.b64 %p9, [%r1], 0;",
        "@!%p9 bra WAIT;",
        "ld.shared.u32 %r6, [%r1+64];",
        "bra DONE;",
        "SEND:",
        *((arrive, store) if late else (store, arrive)),
    )
    assert bool(errors) == late


@pytest.mark.parametrize("unlock", ["st.release.gpu.global.u32", "st.relaxed.gpu.global.u32"])
def test_a_lock_that_all_lanes_take(unlock):
    errors = found(
        8,
        "LOOP: atom.acquire.gpu.global.cas.b32 %r5, [%rd1], 0, 1;",
        "setp.ne.u32 %p9, %r5, 0;",
        "@%p9 bra LOOP;",
        "ld.global.u32 %r6, [%rd1+64];",
        "add.u32 %r6, %r6, 1;",
        "st.global.u32 [%rd1+64], %r6;",
        f"{unlock} [%rd1], 0;",
    )
    assert bool(errors) == ("relaxed" in unlock)


@pytest.mark.parametrize("released", [True, False])
@pytest.mark.parametrize("space", SPACES)
def test_another_lane_goes_on_with_a_release_sequence(space, released):
    """Lane 0 releases its store, lane 1 adds to the counter relaxed; another warp acquires both."""
    order = "release" if released else "relaxed"
    errors = found(
        64,
        *at(
            space,
            "@%p2 bra WAIT;",
            "@%p0 st.{s}.u32 [{a}+64], 5;",
            f"@%p0 red.{order}.gpu.{{s}}.add.u32 [{{a}}], 1;",
            "@%p1 red.relaxed.gpu.{s}.add.u32 [{a}], 1;",
            "bra DONE;",
            "WAIT: ld.acquire.gpu.{s}.u32 %r5, [{a}];",
            AGAIN.format(2),
            "ld.{s}.u32 %r6, [{a}+64];",
        ),
    )
    assert bool(errors) != released


@pytest.mark.parametrize("each", [True, False])
@pytest.mark.parametrize("space", SPACES)
def test_lanes_acquire_one_flag_one_by_one(space, each):
    """A loop in which one lane after the other polls, or the first one for all, and then reads."""
    errors = found(
        64,
        *at(
            space,
            "@%p2 bra NEXT;",
            "@%p0 st.{s}.u32 [{a}+64], 5;",
            "@%p0 st.release.gpu.{s}.u32 [{a}], 1;",
            "bra DONE;",
            "NEXT: mov.u32 %r7, 0;",
            "TURN: setp.ne.u32 %p8, %r7, %r4;",
            "@%p8 bra SKIP;",
            "" if each else "setp.ne.u32 %p7, %r4, 0; @%p7 bra READ;",
            "WAIT: ld.acquire.gpu.{s}.u32 %r5, [{a}];",
            "setp.lt.u32 %p9, %r5, 1; @%p9 bra WAIT;",
            "READ: ld.{s}.u32 %r6, [{a}+64];",
            "SKIP: add.u32 %r7, %r7, 1;",
            "setp.lt.u32 %p8, %r7, 3;",
            "@%p8 bra TURN;",
        ),
    )
    assert bool(errors) != each


@pytest.mark.parametrize("met", [True, False])
def test_an_mbarrier_is_invalidated_once_all_have_waited(met):
    errors = found(
        64,
        "@%p0 mbarrier.init.shared::cta.b64 [%r1], 64;",
        "bar.sync 0;",
        "mbarrier.arrive.shared::cta.b64 %rd5, [%r1];",
        "WAIT: mbarrier.try_wait.shared::cta.b64 %p9, [%r1], %rd5;",
        "@!%p9 bra WAIT;",
        "bar.sync 0;" if met else "",
        "@%p0 mbarrier.inval.shared::cta.b64 [%r1];",
    )
    assert [finding.diagnosis for finding in errors] == (
        [] if met else ["an mbarrier is invalidated while another warp may use it"]
    )


TICKETS = {
    "fences": ("fence.acq_rel.gpu;", "relaxed", "fence.acq_rel.gpu;"),
    "acq_rel": ("", "acq_rel", ""),
    "no fence before": ("", "relaxed", "fence.acq_rel.gpu;"),
    "no fence behind": ("fence.acq_rel.gpu;", "relaxed", ""),
}


@pytest.mark.parametrize("ticket, read", [(31, 32), (30, 32), (30, 31), (5, 6), (5, 7)])
@pytest.mark.parametrize("how", TICKETS)
@pytest.mark.parametrize("space", SPACES)
def test_a_lane_with_a_ticket_reads_what_those_before_have_stored(space, how, ticket, read):
    """All lanes store and take a ticket with one atomic. One of them reads what the first `read`
    have stored, which is one too many or not.
    """
    before, order, behind = TICKETS[how]
    base = "%r1" if space == "shared" else "%rd1"
    own = "add.u32 %r7, %r1, %r6;" if space == "shared" else "cvt.u64.u32 %rd2, %r6;"
    place = "%r7" if space == "shared" else "%rd3"
    errors = found(
        32,
        *at(
            space,
            "mul.lo.u32 %r6, %r4, 4;",
            own,
            *(("add.u64 %rd3, %rd1, %rd2;",) if space == "global" else ()),
            f"st.{{s}}.u32 [{place}+64], %r4;",
            before,
            f"atom.{order}.gpu.{{s}}.add.u32 %r5, [{base}], 1;",
            f"setp.ne.u32 %p9, %r5, {ticket};",
            "@%p9 bra DONE;",
            behind,
            *(f"ld.{{s}}.u32 %r8, [{{a}}+{64 + 4 * i}];" for i in range(read)),
        ),
    )
    assert bool(errors) != (read == ticket + 1 and how in ("fences", "acq_rel"))


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("how", FLAGS)
@pytest.mark.parametrize("space", SPACES)
def test_two_lanes_have_a_flag_each(space, how, own):
    """Lanes 0 and 1 store and set a flag each. Another warp takes over the one, and reads what lane
    0 has stored.
    """
    write, read, behind = FLAGS[how]
    base = "%r1" if space == "shared" else "%rd1"
    flags = [
        f"{by} {line};"
        for by, flag in (("@%p0", base), ("@%p1", f"{base}+4"))
        for line in write.format(s=space, a=flag).split(";")
        if line
    ]
    errors = found(
        64,
        *at(
            space,
            "@%p0 st.{s}.u32 [{a}+4], 0;",
            "bar.sync 0;",
            "@%p2 bra WAIT;",
            "@%p0 st.{s}.u32 [{a}+64], 5;",
            "@%p1 st.{s}.u32 [{a}+68], 5;",
            *flags,
            "bra DONE;",
            "WAIT: " + read.format(s=space, a=base if own else f"{base}+4"),
            AGAIN.format(1),
            behind,
            "ld.{s}.u32 %r6, [{a}+64];",
        ),
    )
    assert bool(errors) != own


@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("named", ["0xffffffff", "0x55555555"])
@pytest.mark.parametrize("space", SPACES)
def test_a_lane_releases_for_those_that_it_has_met(space, named, left):
    """All lanes store. Lanes 0, 2, 4... meet alone or with the others, and lane 0 sets a flag.
    left: where the lanes meet alone, the others have returned by then.
    """
    base = "%r1" if space == "shared" else "%rd1"
    apart = named != "0xffffffff"
    errors = found(
        64,
        *at(
            space,
            "@%p2 bra WAIT;",
            *(
                f"setp.eq.u32 %p5, %r4, {i}; @%p5 st.{space}.u32 [{base}+{64 + 4 * i}], 5;"
                for i in (0, 1)
            ),
            "and.b32 %r6, %r4, 1; setp.ne.u32 %p6, %r6, 0;",
            ("@%p6 bra DONE;" if left else "@%p6 bra REST;") if apart else "",
            f"bar.warp.sync {named};",
            "@%p0 st.release.gpu.{s}.u32 [{a}], 1;",
            "bra DONE;",
            "REST: add.u32 %r6, %r6, 1;",
            "bra DONE;",
            "WAIT: ld.acquire.gpu.{s}.u32 %r5, [{a}];",
            AGAIN.format(1),
            "ld.{s}.u32 %r6, [{a}+64];",
            "ld.{s}.u32 %r7, [{a}+68];",
        ),
    )
    assert [
        finding.diagnosis.count("lane 1 of another warp has written") for finding in errors
    ] == [1] * apart
