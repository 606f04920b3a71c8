"""tcgen05.cp: shared memory to tensor memory (PTX ISA 9.7.16.9).

Source rows are laid out as those of a K-major operand. Each 16 bytes become four columns of a
lane; a multicast form writes a row to several 32-lane partitions. With a source format of 4 or 6
bits, every 16 bytes of the source hold 16 packed elements and padding, and become 16 bytes with
an element in each (fp4 in bits 5-2, fp6 in bits 6-1).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from b200.chip.operations import TmemCopy
from b200.chip.state import CTA
from b200.chip.tensor import descriptors
from b200.chip.tensor.narrow import unpack_fp4, unpack_fp6
from b200.chip.tensor.tmem import split
from b200.chip.tensor.tmem_alloc import group_of
from b200.effects import CopiesToTensor
from b200.errors import Fault
from b200.hardware import TMEM_LANES
from b200.program.module import Instr
from b200.registry import Run, lane

if TYPE_CHECKING:
    from b200.chip.fragment import Fragment


@dataclass(frozen=True)
class CopyShape:
    """The shape of a copy: rows x nbytes of the source, and the partitions that they go to.
    `targets[i]` lists the partitions that get rows 32 * i to 32 * i + 31."""

    rows: int
    nbytes: int
    targets: tuple[tuple[int, ...], ...] = ()

    def lanes(self, row: int) -> range:
        """The lanes that a copy to lane `row` writes: all, or with 4x256b one of each partition."""
        return range(TMEM_LANES) if self.targets else range(row % 32, TMEM_LANES, 32)


SHAPES: dict[tuple[str, str | None], CopyShape] = {
    ("128x256b", None): CopyShape(128, 32, ((0,), (1,), (2,), (3,))),
    ("128x128b", None): CopyShape(128, 16, ((0,), (1,), (2,), (3,))),
    ("64x128b", "warpx2::02_13"): CopyShape(64, 16, ((0, 2), (1, 3))),
    ("64x128b", "warpx2::01_23"): CopyShape(64, 16, ((0, 1), (2, 3))),
    ("32x128b", "warpx4"): CopyShape(32, 16, ((0, 1, 2, 3),)),
    ("4x256b", None): CopyShape(4, 32),
}
FORMATS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "b8x16.b4x16_p64": lambda source: unpack_fp4(source) << 2,
    "b8x16.b6x16_p32": lambda source: unpack_fp6(source) << 1,
}


def _form(ins: Instr) -> tuple[CopyShape, str | None]:
    shape = next(m for m in ins.mods if m in {s for s, _ in SHAPES})
    multicast = next((m for m in ins.mods if m.startswith("warpx")), None)
    source_format = next((f for f in FORMATS if f".{f}" in ins.opcode), None)
    return SHAPES[shape, multicast], source_format


def store(cta: CTA, shape: CopyShape, row: int, column: int, source: np.ndarray) -> None:
    """Write source rows, uint8 [rows, nbytes], to tensor memory."""
    words = source.view(np.uint32)
    width = words.shape[1]
    tmem = cta.columns(column, width)
    if not shape.targets:
        tmem[shape.lanes(row), column : column + width] = words
        return
    partitions = tmem.reshape(4, 32, -1)
    if len(shape.targets) == 1:  # warpx4: the same rows to all
        partitions[:, :, column : column + width] = words
        return
    for i, targets in enumerate(shape.targets):
        for q in targets:
            partitions[q, :, column : column + width] = words[32 * i : 32 * i + 32]


@dataclass(frozen=True, eq=False)
class CopySource:
    """The source of a copy: a tile, which is `chunks` of shared memory in each CTA."""

    matrix: descriptors.MatrixDescriptor
    tile: descriptors.Tile
    chunks: np.ndarray

    def check(self, cta: CTA) -> None:
        descriptors.check(cta, self.matrix, self.tile, "tcgen05.cp source")

    def read(self, cta: CTA) -> np.ndarray:
        """The bytes that are copied, uint8 [rows, nbytes]."""
        return cta.smem.u128.take(self.chunks).view(np.uint8)


@lru_cache(maxsize=1 << 14)
def _source(descriptor: int, rows: int, nbytes: int) -> CopySource:
    """Loops come back to the same descriptors."""
    matrix = descriptors.decode_matrix(descriptor, "tcgen05.cp source")
    tile = descriptors.k_major(matrix, rows, nbytes)
    return CopySource(matrix, tile, descriptors.chunks_of(matrix, tile))


@lane("tcgen05.cp", states=lambda ins: CopiesToTensor(pair=group_of(ins) == 2))
def tcgen05_cp(ins: Instr) -> Run:
    """tcgen05.cp.cta_group.shape{.multicast}{.dst_fmt.src_fmt} [taddr], s-desc"""
    shape, source_format = _form(ins)
    group = group_of(ins)
    expand = FORMATS[source_format] if source_format is not None else None

    def run(warp: Fragment, lane: int, taddr: int, descriptor: int) -> None:
        row, column = split(taddr)
        if row and shape.targets:
            raise Fault(f"{ins.opcode} to address {taddr:#010x}: lane {row}, must be 0")
        source = _source(descriptor, shape.rows, shape.nbytes)
        ctas = warp.cta.pair if group == 2 else (warp.cta,)
        for cta in ctas:
            if (source, column) not in cta.legal:
                cta.check_tmem(column, shape.nbytes // 4)
                source.check(cta)
                cta.legal.add((source, column))

        def apply() -> None:
            for cta in ctas:
                rows = source.read(cta)
                if expand is not None:
                    rows = expand(rows)
                store(cta, shape, row, column, rows)

        copy = TmemCopy(ctas, shape, source.matrix, source.tile, shape.lanes(row), column)
        warp.machine.issue(copy, warp, apply)

    return run
