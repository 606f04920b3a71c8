"""Planted bugs of waiting by hand: loops that read memory until somebody writes it, and nobody does."""

from __future__ import annotations

import torch

from tests.planted_bugs.case import PlantedBug, Source

PARAMS = ".param .u64 flags, .param .u64 out"


def _start(threads: int = 32, smem: int = 0x8000) -> Source:
    k = Source(PARAMS, threads, smem)
    k("mov.u32 %r0, %tid.x;")
    k("mov.u32 %r1, dyn;")
    k("mov.u32 %r2, %ctaid.x;")
    k("ld.param.u64 %rd0, [flags];")
    k("ld.param.u64 %rd1, [out];")
    return k


def _finish(k: Source) -> Source:
    """out[CTA][thread] = its number in the grid"""
    k(f"mad.lo.u32 %r3, %r2, {k.threads}, %r0;")
    k("mul.wide.u32 %rd2, %r3, 4;")
    k("add.u64 %rd3, %rd1, %rd2;")
    k("st.global.u32 [%rd3], %r3;")
    return k


def _poll(k: Source, address: str, wanted: int, load="ld.acquire.gpu.global.u32"):
    """Until a word is no longer less than `wanted`."""
    again = k.label()
    k(f"{again}: {load} %r10, [{address}];", "poll")
    k(f"setp.lt.u32 %p4, %r10, {wanted};", "test")
    k(f"@%p4 bra {again};")


def wrong_word(bug: bool) -> Source:
    """CTA 1 waits for CTA 0's flag; with the bug CTA 0 sets the word after it."""
    k = _start()
    k("setp.ne.u32 %p5, %r2, 0;")
    k("@%p5 bra READER;")
    k.only(0, lambda: k(f"st.release.gpu.global.u32 [%rd0+{4 if bug else 0}], 1;", "set"))
    k("bra DONE;")
    k("READER:")
    k.only(0, lambda: _poll(k, "%rd0", 1))
    k("DONE: mov.u32 %r9, 0;")
    return _finish(k)


def counting(bug: bool) -> Source:
    """As wrong_word, in a loop that counts its rounds and pauses."""
    k = _start()
    k("setp.ne.u32 %p5, %r2, 0;")
    k("@%p5 bra READER;")
    k.only(0, lambda: k(f"st.release.gpu.global.u32 [%rd0+{4 if bug else 0}], 1;", "set"))
    k("bra DONE;")
    k("READER: mov.u32 %r11, 0;")

    def poll():
        k("AGAIN: add.u32 %r11, %r11, 1;")
        k("nanosleep.u32 %r11;")
        k("ld.relaxed.gpu.global.u32 %r10, [%rd0];", "poll")
        k("setp.eq.u32 %p4, %r10, 0;", "test")
        k("@%p4 bra AGAIN;")
        k("fence.acq_rel.gpu;")

    k.only(0, poll)
    k("DONE: mov.u32 %r9, 0;")
    return _finish(k)


def crossed(bug: bool) -> Source:
    """Two CTAs tell each other that they are there; with the bug each listens first."""
    k = _start()
    k("mul.wide.u32 %rd4, %r2, 4;")
    k("add.u64 %rd4, %rd0, %rd4;")
    k("xor.b32 %r4, %r2, 1;")
    k("mul.wide.u32 %rd5, %r4, 4;")
    k("add.u64 %rd5, %rd0, %rd5;")

    def meet():
        if not bug:
            k("st.release.gpu.global.u32 [%rd4], 1;", "set")
        _poll(k, "%rd5", 1)
        if bug:
            k("st.release.gpu.global.u32 [%rd4], 1;", "set")

    k.only(0, meet)
    return _finish(k)


def lock(bug: bool) -> Source:
    """CTAs take a lock in turn; with the bug nobody gives it back."""
    k = _start()

    def take():
        k("AGAIN: atom.acquire.gpu.global.cas.b32 %r10, [%rd0], 0, 1;", "poll")
        k("setp.ne.u32 %p4, %r10, 0;", "test")
        k("@%p4 bra AGAIN;")
        if not bug:
            k("atom.release.gpu.global.exch.b32 %r10, [%rd0], 0;")

    k.only(0, take)
    return _finish(k)


def shared_flag(bug: bool) -> Source:
    """A warp polls a word of shared memory; with the bug it is set after a barrier for both."""
    k = _start(64)
    k.only(0, lambda: k("st.shared.u32 [%r1], 0;"))
    k("bar.sync 0;")
    if bug:
        k.only(0, lambda: k("bar.sync 1, 64;", "barrier"), 31)
    k.only(0, lambda: k("atom.release.cta.shared.exch.b32 %r10, [%r1], 1;", "set"))
    k.only(32, lambda: _poll(k, "%r1", 1, "ld.acquire.cta.shared.u32"))
    if bug:
        k.only(32, lambda: k("bar.sync 1, 64;"), 63)
    return _finish(k)


def divergent(bug: bool) -> Source:
    """One lane reads the flag, the others do something else, and all go on with what it read."""
    k = _start()
    k("setp.ne.u32 %p5, %r2, 0;")
    k("@%p5 bra AGAIN;")
    k.only(0, lambda: k(f"st.release.gpu.global.u32 [%rd0+{4 if bug else 0}], 1;", "set"))
    k("bra DONE;")
    k("AGAIN: setp.eq.u32 %p6, %r0, 0;")
    k("@%p6 bra LEADER;")
    k("mov.u32 %r10, 7;")
    k("bra JOIN;")
    k("LEADER: ld.acquire.gpu.global.u32 %r10, [%rd0];", "poll")
    k("JOIN: shfl.sync.idx.b32 %r10, %r10, 0, 31, -1;")
    k("setp.eq.u32 %p4, %r10, 0;", "test")
    k("@%p4 bra AGAIN;")
    k("DONE: mov.u32 %r9, 0;")
    return _finish(k)


def grid_barrier(bug: bool) -> Source:
    """All CTAs count themselves and wait for the others: with the bug one fits an SM, else two."""
    k = _start(smem=(150 if bug else 100) * 1024)

    def meet():
        k("red.release.gpu.global.add.u32 [%rd0], 1;")
        _poll(k, "%rd0", GRID)

    k.only(0, meet)
    return _finish(k)


SMS = 4  # of the chip that runs the grid barrier
GRID = 6  # CTAs of the grid barrier: more than that has SMs


def _arguments(ctas: int, threads: int = 32):
    return lambda: [
        torch.zeros(8, dtype=torch.int32),
        torch.zeros(ctas * threads, dtype=torch.int32),
    ]


def planted(
    name: str, title: str, build, words, marks=("poll", "test"), ctas=2, threads=32, **chip
) -> PlantedBug:
    return PlantedBug(
        name,
        title,
        build,
        "deadlock",
        words,
        marks,
        _arguments(ctas, threads),
        lambda a: torch.arange(ctas * threads, dtype=torch.int32),
        grid=(ctas, 1, 1),
        **chip,
    )


PLANTED = [
    planted(
        "flag_in_the_wrong_word",
        "a CTA polls a flag, and another sets the word after it",
        wrong_word,
        (
            "warp 0 of CTA (1, 0, 0) polls global memory at 0x",
            "byte 0): it reads 0, and 0 < 1 is true",
            "no other warp that is left comes to a write of global memory",
        ),
    ),
    planted(
        "flag_polled_with_a_counter",
        "a loop that counts its rounds polls a flag that nobody sets",
        counting,
        ("warp 0 of CTA (1, 0, 0) polls global memory at 0x", "it reads 0, and 0 == 0 is true"),
    ),
    planted(
        "flags_crossed",
        "two CTAs wait for each other's flag before they set their own",
        crossed,
        ("it reads 0, and 0 < 1 is true", "it could still be written at", "which polls global"),
        ("poll", "test", "set"),
    ),
    planted(
        "lock_never_released",
        "the first CTA takes a lock and ends",
        lock,
        ("warp 0 of CTA (1, 0, 0) polls", "it reads 1, and 1 != 0 is true"),
    ),
    planted(
        "shared_flag_behind_a_barrier",
        "a warp polls shared memory that is set after a barrier it has to come to",
        shared_flag,
        (
            "polls shared memory at 0x",
            "it could still be written at",
            "by warp 0 of CTA (0, 0, 0), which waits for a barrier",
        ),
        ("poll", "test", "set", "barrier"),
        1,
        64,
    ),
    planted(
        "flag_polled_by_one_lane",
        "one lane of a warp polls for all of them",
        divergent,
        ("warp 0 of CTA (1, 0, 0) polls global memory at 0x", "it reads 0, and 0 == 0 is true"),
    ),
    planted(
        "grid_barrier_of_too_many_ctas",
        "a barrier over more CTAs than are resident at once (right: two CTAs an SM)",
        grid_barrier,
        (
            "and 3 more",
            "it reads 4, and 4 < 6 is true",
            "2 of the grid's 6 CTAs have not started",
            "a grid of at most 4 CTAs",
        ),
        ctas=GRID,
        sms=SMS,
    ),
]
