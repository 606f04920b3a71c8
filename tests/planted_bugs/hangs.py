"""Warps that lose count of phases, or wait for what cannot come: what is said names the reason."""

from __future__ import annotations

import torch

from tests.planted_bugs.case import PlantedBug, Source
from tests.planted_bugs.clusters import mbarriers
from tests.planted_bugs.cta import ints, start, store_own

FULL, EMPTY, GO = 1024, 1032, 1040  # shared-memory offsets of mbarriers
ALL = "0xffffffff"


def numbers(n: int):
    return lambda args: torch.arange(n, dtype=torch.int32)


def begin(threads: int, *barriers: int) -> Source:
    k = start(threads)
    mbarriers(k, 1, *barriers)
    k("bar.sync 0;")
    return k


def arrive(k: Source, at: int, mark: str | None = None):
    k(f"mbarrier.arrive.shared::cta.b64 _, [%r1+{at}];", mark)


def parity_of_a_ring(bug: bool) -> Source:
    """A single mbarrier is waited for each round, with the parity of a ring of three stages."""
    k = begin(32, FULL)

    def rounds():
        for i in range(4):
            arrive(k, FULL)
            k.wait(f"%r1+{FULL}", i // 3 & 1 if bug else i & 1, "wait")

    k.only(0, rounds)
    store_own(k, "%r0")
    return k


def tail_keeps_the_phase(bug: bool) -> Source:
    """The last wait of each tile does not flip the phase."""
    k = begin(64, FULL, EMPTY)

    def fill():
        k("mov.u32 %r10, 1;")
        for _ in range(4):
            k.wait(f"%r1+{EMPTY}", "%r10", "fill")
            arrive(k, FULL)
            k("xor.b32 %r10, %r10, 1;")

    def drain():
        k("mov.u32 %r11, 0;")
        k("mov.u32 %r12, 0;")
        k("TILE: mov.u32 %r99, 0;")
        k.wait(f"%r1+{FULL}", "%r11", "wait")
        arrive(k, EMPTY)
        k("xor.b32 %r11, %r11, 1;")
        k.wait(f"%r1+{FULL}", "%r11", "tail")
        arrive(k, EMPTY)
        if not bug:
            k("xor.b32 %r11, %r11, 1;")
        k("add.u32 %r12, %r12, 1;")
        k("setp.lt.u32 %p6, %r12, 2;")
        k("@%p6 bra TILE;")

    k.only(0, fill)
    k.only(32, drain)
    store_own(k, "%r0")
    return k


def two_phases_at_once(bug: bool) -> Source:
    """Two phases are completed before the warp that waits for the first one looks."""
    k = begin(64, FULL, EMPTY, GO)

    def complete():
        arrive(k, FULL)
        if not bug:
            arrive(k, GO)
            k.wait(f"%r1+{EMPTY}", 0)
        arrive(k, FULL, "second")
        if bug:
            arrive(k, GO)

    def look():
        k.wait(f"%r1+{GO}", 0)
        k.wait(f"%r1+{FULL}", 0, "wait")
        arrive(k, EMPTY)

    k.only(32, complete)
    k.only(0, look)
    store_own(k, "%r0")
    return k


def commit_each_step(bug: bool) -> Source:
    """The commit that the epilogue waits for stands in the loop over k."""
    k = begin(64, FULL)
    commit = "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64"

    def steps():
        for step in range(4):
            if bug or step == 3:
                k(f"{commit} [%r4];", "commit")

    k(f"add.u32 %r4, %r1, {FULL};")
    k.only(32, steps)
    k("bar.sync 0;")
    k.wait(f"%r1+{FULL}", 0, "wait")
    store_own(k, "%r0")
    return k


def all_allocate(bug: bool) -> Source:
    """Each warp of a CTA allocates tensor memory."""
    k = begin(64, FULL)
    group = "cta_group::1.sync.aligned"

    def allocate():
        k(f"tcgen05.alloc.{group}.shared::cta.b32 [%r1+2048], 512;", "alloc")

    def free():
        k("ld.shared.u32 %r4, [%r1+2048];")
        k(f"tcgen05.dealloc.{group}.b32 %r4, 512;")

    if bug:
        allocate()
    else:
        k.only(0, allocate, 31)
    k("bar.sync 0;")
    k.only(0, free, 31)
    store_own(k, "%r0")
    return k


def roles_allocate(bug: bool) -> Source:
    """Two roles allocate tensor memory, each at its own place, and more than there is."""
    k = begin(64, FULL)
    group, columns = "cta_group::1.sync.aligned", 512 if bug else 256

    def allocate(at: int, mark: str):
        k(f"tcgen05.alloc.{group}.shared::cta.b32 [%r1+{at}], {columns};", mark)
        k("bar.sync 1, 64;")
        k(f"ld.shared.u32 %r4, [%r1+{at}];")
        k(f"tcgen05.dealloc.{group}.b32 %r4, {columns};")

    k.only(32, lambda: allocate(2052, "second"), 63)
    k.only(0, lambda: allocate(2048, "first"), 31)
    store_own(k, "%r0")
    return k


def mask_of_others(bug: bool) -> Source:
    """Lanes 16 to 31 go round once more than the others; the shuffle names all lanes."""
    k = start(32)
    k(f"mov.u32 %r6, {ALL if bug else '0xffff'};")
    k("setp.ge.u32 %p5, %r0, 16;")
    k("mov.u32 %r5, 1;")
    if not bug:
        k("@%p5 mov.u32 %r6, 0xffff0000;")
    k("@%p5 mov.u32 %r5, 2;")
    k("AGAIN: shfl.sync.bfly.b32 %r7, %r5, 1, 31, %r6;", "shuffle")
    k("sub.u32 %r5, %r5, 1;")
    k("setp.ne.u32 %p6, %r5, 0;")
    k("@%p6 bra AGAIN;")
    k("bar.sync 0;", "barrier")
    store_own(k, "%r0")
    return k


def leaves_early(bug: bool) -> Source:
    """The warp that fills counts one round less than the warp that drains."""
    k = begin(64, FULL)

    def fill():
        for _ in range(2 if bug else 3):
            k("nanosleep.u32 100;")
            arrive(k, FULL, "arrive")
            k.wait(f"%r1+{GO}", _ & 1)

    def drain():
        for i in range(3):
            k.wait(f"%r1+{FULL}", i & 1, "wait")
            arrive(k, GO)

    mbarriers(k, 1, GO)
    k("bar.sync 0;")
    k.only(32, fill)
    k.only(0, drain)
    store_own(k, "%r0")
    return k


def committer_leaves_early(bug: bool) -> Source:
    """The MMA warp commits for one tile less than the epilogue waits for."""
    k = begin(64, FULL, EMPTY)
    commit = "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64"
    k(f"add.u32 %r4, %r1, {FULL};")

    def steps():
        for i in range(2 if bug else 3):
            k(f"{commit} [%r4];", "commit")
            k.wait(f"%r1+{EMPTY}", i & 1)

    def epilogue():
        for i in range(3):
            k.wait(f"%r1+{FULL}", i & 1, "wait")
            arrive(k, EMPTY)

    k.only(32, steps)
    k.only(0, epilogue)
    store_own(k, "%r0")
    return k


def one_of_two_leaves_early(bug: bool) -> Source:
    """Of two warps that fill a stage together one counts a round less."""
    k = start(96)
    mbarriers(k, 2, FULL)
    mbarriers(k, 1, EMPTY)
    k("bar.sync 0;")

    def fill(rounds: int, mark: str):
        for i in range(rounds):
            arrive(k, FULL, mark)
            k.wait(f"%r1+{EMPTY}", i & 1)

    def drain():
        for i in range(3):
            k.wait(f"%r1+{FULL}", i & 1, "wait")
            arrive(k, EMPTY)

    k.only(32, lambda: fill(2 if bug else 3, "arrive"))
    k.only(64, lambda: fill(3, "other"))
    k.only(0, drain)
    store_own(k, "%r0")
    return k


def overtakes_by_a_stale_wait(bug: bool) -> Source:
    """A consumer does not flip its phase after the first round. It passes at once, and its second
    arrival overtakes the producer.
    """
    k = begin(64, FULL, EMPTY, GO)

    def fill():
        arrive(k, FULL)
        if bug:
            k.wait(f"%r1+{GO}", 0)
        k.wait(f"%r1+{EMPTY}", 0, "free")
        arrive(k, FULL)

    def drain():
        k("mov.u32 %r10, 0;")
        k("mov.u32 %r11, 0;")
        k("ROUND: mov.u32 %r99, 0;")
        k.wait(f"%r1+{FULL}", "%r10", "wait")
        arrive(k, EMPTY)
        if not bug:
            k("xor.b32 %r10, %r10, 1;")
        k("add.u32 %r11, %r11, 1;")
        k("setp.lt.u32 %p6, %r11, 2;")
        k("@%p6 bra ROUND;")
        arrive(k, GO)

    k.only(0, fill)
    k.only(32, drain)
    store_own(k, "%r0")
    return k


def role_counts_its_barriers(bug: bool) -> Source:
    """One role meets the other twice a round, the other one once, and then waits for it."""
    k = begin(64, FULL)

    def twice():
        for _ in range(2):
            k("bar.sync 0;", "here")
            k("bar.sync 0;")
        k("setp.eq.u32 %p9, %r0, 0;")
        k(f"@%p9 mbarrier.arrive.shared::cta.b64 _, [%r1+{FULL}];")

    def once():
        for _ in range(3 if bug else 4):
            k("bar.sync 0;", "there")
        k.wait(f"%r1+{FULL}", 0, "wait")

    k.only(0, twice, 31)
    k.only(32, once, 63)
    store_own(k, "%r0")
    return k


def mailbox_without_answer(bug: bool) -> Source:
    """A mailbox is written three times before its reader looks for the first time."""
    k = begin(64, FULL, EMPTY, GO)

    def write():
        for i in range(3):
            k(f"mov.u32 %r5, {i};")
            k("st.shared.u32 [%r1+2048], %r5;", "write")
            arrive(k, FULL, "arrive")
            if not bug:
                k.wait(f"%r1+{EMPTY}", i & 1)

    def read():
        for i in range(1 if bug else 3):
            k.wait(f"%r1+{FULL}", i & 1, "wait")
            k("ld.shared.u32 %r6, [%r1+2048];")
            arrive(k, EMPTY)

    k.only(0, write)
    k.only(32, read)
    store_own(k, "%r0")
    return k


def barrier_of_half(bug: bool) -> Source:
    """Half of the warps meet at a barrier between rounds, the other half at that of the next."""
    k = start(128)
    k("mov.u32 %r10, 0;")
    k("xor.b32 %r4, %r2, 256;")
    k("add.u32 %r4, %r4, %r1;")
    k("setp.ge.u32 %p5, %r0, 64;")
    k("ROUND: st.shared.u32 [%r3], %r0;", "write")
    k("bar.sync 0;", "first")
    k("ld.shared.u32 %r5, [%r4];", "read")
    if bug:
        k("@%p5 bra OVER;")
    k("bar.sync 0;", "second")
    k("OVER: add.u32 %r10, %r10, 1;")
    k("setp.lt.u32 %p6, %r10, 4;")
    k("@%p6 bra ROUND;")
    store_own(k, "%r0")
    return k


def _hang(name: str, title: str, build, words: tuple[str, ...], marks: tuple[str, ...], n: int):
    return PlantedBug(name, title, build, "deadlock", words, marks, ints(n), numbers(n))


PLANTED = [
    _hang(
        "parity_of_a_ring",
        "one mbarrier is waited for with the parity of a ring of stages",
        parity_of_a_ring,
        ("has waited twice in a row for parity 0 of the mbarrier", "its phase is not flipped"),
        ("wait",),
        32,
    ),
    _hang(
        "tail_keeps_the_phase",
        "the last wait of a tile does not flip the phase",
        tail_keeps_the_phase,
        ("has waited twice in a row for parity 1 of the mbarrier", "before that at"),
        ("wait", "tail"),
        64,
    ),
    _hang(
        "two_phases_at_once",
        "a wait is overtaken by two phases",
        two_phases_at_once,
        ("was overtaken by two phases", "2 of its phases are over", "waited for 0"),
        ("wait", "second"),
        64,
    ),
    _hang(
        "commit_each_step",
        "a commit for each step of the loop, and one wait",
        commit_each_step,
        ("got 4 commits and no wait", "that of the last commit but one"),
        ("wait", "commit"),
        64,
    ),
    _hang(
        "all_allocate",
        "every warp of a CTA allocates tensor memory",
        all_allocate,
        ("2 warps of CTA (0, 0, 0) allocate tensor memory at", "one warp of a CTA allocates"),
        ("alloc",),
        64,
    ),
    _hang(
        "roles_allocate",
        "two roles allocate more tensor memory than there is",
        roles_allocate,
        ("of CTA (0, 0, 0) allocates tensor memory at", "keeps what that one has allocated at"),
        ("first", "second"),
        64,
    ),
    _hang(
        "mask_of_others",
        "a membermask names lanes that have left the loop",
        mask_of_others,
        ("membermask 0xffffffff at", "names lanes 0-15, which stand at"),
        ("shuffle", "barrier"),
        32,
    ),
    _hang(
        "leaves_early",
        "a role counts one round less than the one that waits for it",
        leaves_early,
        ("which arrived for its earlier phases at", "has left"),
        ("wait", "arrive"),
        64,
    ),
    _hang(
        "committer_leaves_early",
        "the MMA warp commits for one tile less than the epilogue waits for",
        committer_leaves_early,
        ("which signalled by tcgen05.commit in its earlier phases at", "has left"),
        ("wait", "commit"),
        64,
    ),
    _hang(
        "one_of_two_leaves_early",
        "of two warps that fill a stage one counts a round less",
        one_of_two_leaves_early,
        ("warp 1 of CTA (0, 0, 0), which arrived for its earlier phases at", "has left"),
        ("wait", "arrive"),
        96,
    ),
    _hang(
        "overtakes_by_a_stale_wait",
        "who overtakes has itself waited twice for one parity",
        overtakes_by_a_stale_wait,
        ("warp 1 of CTA (0, 0, 0) has waited twice in a row for parity 0", "was overtaken by two"),
        ("wait", "free"),
        64,
    ),
    _hang(
        "role_counts_its_barriers",
        "two roles meet at one barrier, one of them more often",
        role_counts_its_barriers,
        ("likely cause: barrier 0 of CTA (0, 0, 0)", "before that, barrier 0", "while warp"),
        ("here", "there", "wait"),
        64,
    ),
    PlantedBug(
        "mailbox_without_answer",
        "a mailbox is written again without an answer of its reader",
        mailbox_without_answer,
        "protocol",
        ("a wait was overtaken", "phase 0 comes next for the warp, and phases to 2 are over"),
        ("wait", "arrive"),
        ints(64),
        numbers(64),
    ),
    PlantedBug(
        "barrier_of_half",
        "barriers of one number at two places, in a loop",
        barrier_of_half,
        "race",
        ("there is one: barrier 0 of CTA (0, 0, 0): warps 0-1 stood at", "while warps 2-3 came to"),
        ("write", "read", "first", "second"),
        ints(128),
        numbers(128),
    ),
]
