"""Planted bugs with swizzled tiles that plain loads read."""

from __future__ import annotations

import torch

from tests.planted_bugs.case import PlantedBug, Source
from tests.planted_bugs.grid import SOURCE, tensormap

BARRIER = 4096


def tile(mode: int, at: int) -> Source:
    """A tile of 2 rows, as wide as the swizzle, at an offset of shared memory; threads read it with
    the XOR of their place in the tile.
    """
    span = 16 << mode
    threads = span // 2  # words of 4 bytes in two rows
    k = Source(".param .align 64 .b8 map[128], .param .u64 out", threads)
    k("mov.u32 %r0, %tid.x;")
    k("mov.u32 %r1, dyn;")
    k("ld.param.u64 %rd0, [out];")
    k("mov.b64 %rd1, map;")
    k("cvta.param.u64 %rd1, %rd1;")

    def load():
        k(f"mbarrier.init.shared::cta.b64 [%r1+{BARRIER}], 1;")
        k("fence.mbarrier_init.release.cluster;")
        k(f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1+{BARRIER}], {2 * span};")
        k(
            "cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes "
            f"[%r1+{at}], [%rd1, {{0, 0}}], [%r1+{BARRIER}];",
            "load",
        )

    k.only(0, load)
    k("bar.sync 0;")
    k.wait(f"%r1+{BARRIER}", 0)
    k("shl.b32 %r2, %r0, 2;")
    k("shr.u32 %r3, %r2, 7;")  # the line of 128 bytes, from which the XOR is taken
    k("shl.b32 %r3, %r3, 4;")
    k("xor.b32 %r3, %r3, %r2;")
    k("add.u32 %r3, %r3, %r1;")
    k(f"ld.shared.u32 %r5, [%r3+{at}];", "read")
    k("mul.wide.u32 %rd8, %r0, 4;")
    k("add.u64 %rd9, %rd0, %rd8;")
    k("st.global.u32 [%rd9], %r5;")
    return k


def out_of_phase(mode: int, at: int) -> PlantedBug:
    """mode: of the swizzle, 1 to 3. at: where the bug puts the tile."""
    words = (16 << mode) // 4
    period = 128 << mode
    return PlantedBug(
        f"tile_out_of_phase_{16 << mode}",
        "a swizzled tile does not begin where the swizzle's pattern does",
        lambda bug: tile(mode, at if bug else period),
        "product",
        (
            "reads a tile of the TMA load that begins in the middle of the swizzle's pattern",
            f"missing: a base that is a multiple of {period}",
        ),
        ("read", "load"),
        lambda: [
            tensormap(box=(words, 2), swizzle=mode),
            torch.zeros(2 * words, dtype=torch.int32),
        ],
        lambda a: SOURCE[:2, :words].reshape(-1),
    )


PLANTED = [out_of_phase(3, 128), out_of_phase(2, 384), out_of_phase(1, 128)]
