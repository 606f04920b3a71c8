"""Planted bugs of reading global memory that nobody has written: torch.empty for torch.zeros, a tensor
whose last rows are left out. The twins read what is written, or do not use what they read.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from b200.chip.copies.tensormap import TensorMap
from b200.chip.unwritten import fill
from tests.planted_bugs.case import PlantedBug, Source
from tests.planted_bugs.cta import load_bulk, start, store_own
from tests.planted_bugs.grid import KEEP

THREADS = 32


def empty(count: int, written: int = 0) -> torch.Tensor:
    """int32 [count] as torch.empty makes it under b200.install, with 1 in the first elements."""
    made = torch.zeros(count, dtype=torch.int32)
    fill(made.view(torch.uint8).numpy())
    made[:written] = 1
    return made


def plain(bug: bool) -> Source:
    """Each thread loads a word of 32, of which 24 are written; the twin's last threads do not."""
    k = start(THREADS, ".param .u64 src, .param .u64 out")
    k("mul.wide.u32 %rd8, %r0, 4;")
    k("add.u64 %rd9, %rd0, %rd8;")
    k("mov.u32 %r5, 1;")
    k("setp.lt.u32 %p4, %r0, 24;")
    k(f"{'' if bug else '@%p4 '}ld.global.u32 %r5, [%rd9];", "read")
    store_own(k, "%r5", "%rd1")
    return k


def counter(bug: bool) -> Source:
    """Threads take tickets of a counter in a workspace; the twin sets it first."""
    k = start(THREADS, ".param .u64 workspace, .param .u64 out")
    if not bug:
        k.only(0, lambda: k("st.global.u32 [%rd0], 0;"))
        k("bar.sync 0;")
    k("atom.global.add.u32 %r5, [%rd0], 1;", "read")
    k("setp.lt.u32 %p4, %r5, 32;")
    k("selp.u32 %r5, 1, 0, %p4;")
    store_own(k, "%r5", "%rd1")
    return k


def bulk(bug: bool) -> Source:
    """A bulk copy of 128 bytes, of which 96 are written, and each thread's word of it."""
    k = start(THREADS, ".param .u64 src, .param .u64 out")
    load_bulk(k, 128 if bug else 96, "read")
    k("mov.u32 %r5, 1;")
    k("setp.lt.u32 %p4, %r0, 24;")
    k(f"{'' if bug else '@%p4 '}ld.shared.u32 %r5, [%r3];")
    store_own(k, "%r5", "%rd1")
    return k


def box(bug: bool) -> Source:
    """A box of 4 rows of 32 words, of which 3 are written; a thread adds up its column. The bug is
    in the tensormap, which has 4 rows.
    """
    ROWS[:] = [4 if bug else 3]
    k = Source(".param .align 64 .b8 map[128], .param .u64 out", THREADS)
    k("mov.u32 %r0, %tid.x;")
    k("mov.u32 %r1, dyn;")
    k("shl.b32 %r2, %r0, 2;")
    k("add.u32 %r3, %r1, %r2;")
    k("ld.param.u64 %rd1, [out];")
    k("mov.b64 %rd3, map;")
    k("cvta.param.u64 %rd3, %rd3;")

    def load():
        k("mbarrier.init.shared::cta.b64 [%r1+2048], 1;")
        k("fence.mbarrier_init.release.cluster;")
        k("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1+2048], 512;")
        k(
            "cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes [%r1], "
            "[%rd3, {0, 0}], [%r1+2048];",
            "read",
        )

    k.only(0, load)
    k("bar.sync 0;")
    k.wait("%r1+2048", 0)
    k("mov.u32 %r5, 0;")
    for row in range(4):
        k(f"ld.shared.u32 %r6, [%r3+{128 * row}];")
        k("add.u32 %r5, %r5, %r6;")
    store_own(k, "%r5", "%rd1")
    return k


ROWS = [4]  # of the tensormap of `box`


def box_args() -> list:
    source = empty(4 * THREADS, 3 * THREADS)
    KEEP.append(source)
    t = TensorMap(source.data_ptr(), 2, (THREADS, ROWS[0]), (4 * THREADS,), (THREADS, 4))
    return [t.encode(), torch.zeros(THREADS, dtype=torch.int32)]


def _from(written: int, count: int = THREADS) -> Callable[[], list]:
    return lambda: [empty(count, written), torch.zeros(THREADS, dtype=torch.int32)]


def unwritten(name: str, title: str, build, opcode: str, args, expected: int = 1) -> PlantedBug:
    return PlantedBug(
        name,
        title,
        build,
        "unwritten",
        (f"{opcode} reads global memory that nobody has written", "a result that depends on it"),
        ("read",),
        args,
        lambda a: torch.full((THREADS,), expected, dtype=torch.int32),
    )


PLANTED = [
    unwritten(
        "unwritten_words", "words after what is written, loaded", plain, "ld.global", _from(24)
    ),
    unwritten(
        "unwritten_counter",
        "a counter that nobody has set",
        counter,
        "atom.global",
        _from(0, 1),
    ),
    unwritten(
        "unwritten_bulk", "a bulk copy beyond what is written", bulk, "cp.async.bulk", _from(24)
    ),
    unwritten(
        "unwritten_rows",
        "a tensormap with a row that nobody has written",
        box,
        "cp.async.bulk.tensor",
        box_args,
        expected=3,
    ),
]
