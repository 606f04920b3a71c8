"""Addresses across the CTAs of a cluster (PTX ISA 9.7.9.23 mapa, 9.7.9.24 getctarank).

A shared::cluster address is (rank << 24) | offset, as measured on H200.
"""

from __future__ import annotations

import numpy as np

from b200.effects import Computes, Moves
from b200.hardware import OFFSET_MASK, RANK_SHIFT
from b200.program.module import Instr
from b200.registry import Pure, pure
from b200.spaces import SHARED_WINDOW


def _form(ins: Instr) -> tuple[int, bool]:
    """(address bits, generic)."""
    return int(ins.types[-1][1:]), not ins.has("shared::cluster")


@pure("mapa", states=Moves(pipe="nothing"))
def mapa(ins: Instr) -> Pure:
    """mapa{.shared::cluster}.type d, a, rank: `a`'s offset in the CTA of that rank."""
    bits, generic = _form(ins)
    window = SHARED_WINDOW if generic else 0
    dtype = np.uint64 if bits == 64 else np.uint32

    def vector(a: np.ndarray, rank: np.ndarray):
        return (a & dtype(OFFSET_MASK)) | (rank.astype(dtype) << dtype(RANK_SHIFT)) | dtype(window)

    source = f"(({{0}} & {OFFSET_MASK:#x}) | ({{1}} << {RANK_SHIFT}) | {window:#x})"
    return Pure((f"b{bits}", "u32"), (f"b{bits}",), vector, None, source)


@pure("getctarank", states=Computes(pipe="integer"))
def getctarank(ins: Instr) -> Pure:
    """getctarank{.shared::cluster}.type d, a: rank of the CTA that address `a` lies in."""
    bits, _ = _form(ins)
    dtype = np.uint64 if bits == 64 else np.uint32

    def vector(a):
        return (a >> dtype(RANK_SHIFT) & dtype(0xFF)).astype(np.uint32)

    return Pure((f"b{bits}",), ("u32",), vector, None, f"({{0}} >> {RANK_SHIFT} & 0xff)")
