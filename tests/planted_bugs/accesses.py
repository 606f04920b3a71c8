"""Planted bugs of plain accesses: two warps, or two lanes, with nothing between them."""

from __future__ import annotations

import torch

from tests.planted_bugs.case import PlantedBug, Source
from tests.planted_bugs.cta import start, store_own

DATA = ".param .u64 data, .param .u64 out"


def zeros(*sizes: int):
    return lambda: [torch.zeros(n, dtype=torch.int32) for n in sizes]


def written_by_two_warps(bug: bool) -> Source:
    """Warp 1 writes over what warp 0 has written to global memory, and both read the last one."""
    k = start(64, DATA)
    k("and.b32 %r4, %r0, 31;")
    k("mul.wide.u32 %rd8, %r4, 4;")
    k("add.u64 %rd10, %rd0, %rd8;")
    k("add.u32 %r5, %r0, 1;")
    k.only(0, lambda: k("st.global.u32 [%rd10], %r5;", "first"), 31)
    if not bug:
        k("bar.sync 0;")
    k.only(32, lambda: k("st.global.u32 [%rd10], %r5;", "second"), 63)
    k("bar.sync 1, 64;")
    k("ld.global.u32 %r6, [%rd10];")
    store_own(k, "%r6", "%rd1")
    return k


def written_after_the_read(bug: bool) -> Source:
    """Warp 0 reads numbers from global memory; warp 1 writes over them."""
    k = start(64, DATA)
    k("and.b32 %r4, %r0, 31;")
    k("mul.wide.u32 %rd8, %r4, 4;")
    k("add.u64 %rd10, %rd0, %rd8;")
    k("mov.u32 %r5, 7;")
    k.only(0, lambda: k("ld.global.u32 %r5, [%rd10];", "read"), 31)
    if not bug:
        k("bar.sync 0;")
    k.only(32, lambda: k("st.global.u32 [%rd10], %r5;", "write"), 63)
    store_own(k, "%r5", "%rd1")
    return k


def broadcast(space: str):
    """Lane 0 stores a number that all lanes read."""

    def build(bug: bool) -> Source:
        k = start(32, DATA)
        k("setp.eq.u32 %p4, %r0, 0;")
        k("mov.u32 %r5, 7;")
        place = "[%rd0]" if space == "global" else "[%r1]"
        k(f"@%p4 st.{space}.u32 {place}, %r5;", "write")
        if not bug:
            k("bar.warp.sync -1;")
        k(f"ld.{space}.u32 %r6, {place};", "read")
        store_own(k, "%r6", "%rd1")
        return k

    return build


def bulk_fill(bug: bool) -> Source:
    """A thread of warp 0 fills shared memory with zeros, which both warps read."""
    k = start(64, ".param .u64 out")
    k.only(0, lambda: k("st.bulk.weak.shared::cta [%r1], 256, 0;", "fill"))
    k("shl.b32 %r4, %r0, 2;")
    k("add.u32 %r4, %r4, %r1;")
    k("bar.warp.sync -1;" if bug else "bar.sync 0;")
    k("ld.shared.u32 %r5, [%r4];", "read")
    store_own(k, "%r5", "%rd0")
    return k


def fills_of_lanes(bug: bool) -> Source:
    """Each lane fills its own 16 bytes, and reads its neighbour's."""
    k = start(32, ".param .u64 out")
    k("shl.b32 %r4, %r0, 4;")
    k("add.u32 %r5, %r4, %r1;")
    k("mov.u64 %rd5, 16;")
    k("st.bulk.shared::cta [%r5], %rd5, 0;", "fill")
    if not bug:
        k("bar.warp.sync -1;")
    k("xor.b32 %r4, %r4, 16;")
    k("add.u32 %r5, %r4, %r1;")
    k("ld.shared.u32 %r6, [%r5+8];", "read")
    store_own(k, "%r6", "%rd0")
    return k


PLANTED = [
    PlantedBug(
        "global_word_of_two_warps",
        "two warps of a CTA write the same words of global memory with no barrier between",
        written_by_two_warps,
        "global",
        ("two warps of a CTA write the same address of global memory", "__syncthreads(): bar.sync"),
        ("first", "second"),
        zeros(32, 64),
        lambda args: torch.arange(33, 65, dtype=torch.int32).repeat(2),
    ),
    PlantedBug(
        "global_word_written_after_its_read",
        "a warp writes over global memory that another one reads, with no barrier between",
        written_after_the_read,
        "global",
        ("writes global memory that another warp reads in the same launch", "read before:"),
        ("read", "write"),
        zeros(32, 64),
        lambda args: torch.arange(64, dtype=torch.int32) // 32 * 7,
    ),
    PlantedBug(
        "broadcast_without_syncwarp",
        "lane 0 stores to shared memory what all lanes read at once",
        broadcast("shared"),
        "race",
        ("race (portability)", "what another lane of the warp has just stored", "in step"),
        ("write", "read"),
        zeros(1, 32),
        lambda args: torch.full((32,), 7, dtype=torch.int32),
    ),
    PlantedBug(
        "global_broadcast_without_syncwarp",
        "lane 0 stores to global memory what all lanes read at once",
        broadcast("global"),
        "global",
        ("global (portability)", "global memory that another lane of the warp has just stored"),
        ("write", "read"),
        zeros(1, 32),
        lambda args: torch.full((32,), 7, dtype=torch.int32),
    ),
    PlantedBug(
        "bulk_fill_without_barrier",
        "a thread fills shared memory by st.bulk; another warp reads it with no barrier between",
        bulk_fill,
        "race",
        ("reads shared memory", "with nothing to order the two", "__syncthreads(): bar.sync"),
        ("fill", "read"),
        lambda: [torch.full((64,), -1, dtype=torch.int32)],
        lambda args: torch.zeros(64, dtype=torch.int32),
    ),
    PlantedBug(
        "bulk_fills_without_syncwarp",
        "a lane reads what its neighbour has filled by st.bulk",
        fills_of_lanes,
        "race",
        ("what another lane of the warp has just stored", "without bar.warp.sync"),
        ("fill", "read"),
        lambda: [torch.full((32,), -1, dtype=torch.int32)],
        lambda args: torch.zeros(32, dtype=torch.int32),
    ),
]
