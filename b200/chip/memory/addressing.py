"""Finds the CTA and the offset that a shared-memory address of an instruction means.

Source: PTX ISA "State Spaces". `.shared` is `.shared::cta`, the executing CTA's own window.
`.shared::cluster` reaches every CTA of the cluster, and an address of the own CTA is valid there,
too. Without a state space the address is generic. `mapa` and `getctarank` (9.7.9.23, 9.7.9.24)
compute such addresses: (rank << 24) | offset, as measured on H200.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from b200.chip.state import CTA
from b200.effects import Computes, Moves
from b200.errors import Fault
from b200.hardware import OFFSET_MASK, RANK_SHIFT
from b200.program.module import Instr
from b200.registry import LaneValues, Pure, active, pure
from b200.spaces import SHARED_WINDOW

if TYPE_CHECKING:
    from b200.chip.fragment import Fragment


GENERIC_GIVEN = "a generic address where PTX takes a shared one"
CVTA = "cvta.to.shared of the address, in C++ __cvta_generic_to_shared"
SHARED_CTA = ("shared", "shared::cta")


def space_of(ins: Instr) -> str:
    """State space of an instruction's only address: shared::cta, shared::cluster or generic."""
    if ins.has("shared::cluster"):
        return "shared::cluster"
    return "shared::cta" if ins.has(*SHARED_CTA) else "generic"


def resolver(space: str) -> Callable[..., tuple[CTA, int]]:
    """locate(warp, address, nbytes, align) -> (CTA, offset) for addresses of a state space.

    Raises Fault for an address outside shared memory, misaligned, or of another CTA where only
    the own is legal. The generic form takes a shared address too, as the chip does, which looks at
    the low 32 bits: a kernel whose tcgen05.commit without a state space gets one passes its tests
    on a B200 (jIab-b/nvfp4_gemm at 92166a3, s_128t.py and its log out_128t.txt).
    """

    def own(warp: Fragment, address: int, nbytes: int, align: int = 1):
        return warp.cta, warp.cta.smem_offset(shared_address(warp, address), nbytes, align)

    def cluster(warp: Fragment, address: int, nbytes: int, align: int = 1):
        return warp.cta.cluster.locate(shared_address(warp, address), nbytes, align)

    def generic(warp: Fragment, address: int, nbytes: int, align: int = 1):
        if not address >> 32:
            warp.machine.undefined(
                "a shared-memory address where PTX takes a generic one",
                ".shared::cluster after the instruction, or cvta.shared of the address",
            )
            return cluster(warp, address, nbytes, align)
        return warp.cta.cluster.locate(generic_to_shared(address), nbytes, align)

    return {"shared::cta": own, "shared::cluster": cluster}.get(space, generic)


def shared_address(warp: Fragment, address: int) -> int:
    """The shared address that is given where PTX takes one. A generic address of shared memory is
    taken by its low 32 bits, as the chip does: ThunderKittens gives its tcgen05.alloc such a one
    (include/types/tensor/tensor.cuh at 0b55588), and its kernels run on B200s. Raises Fault for
    another address of more than 32 bits.
    """
    if not address >> 32:
        return address
    if (address ^ SHARED_WINDOW) >> 32:
        raise Fault(no_shared_address(address))
    warp.machine.undefined(GENERIC_GIVEN, CVTA)
    return address ^ SHARED_WINDOW


def no_shared_address(address: int) -> str:
    """What is wrong with an address of more than 32 bits."""
    return (
        f"{address:#x} is not in shared memory: a shared address has 32 bits; cvta.to.shared makes"
        " it of a generic one"
    )


def generic_to_shared(address: int) -> int:
    """The shared::cluster address that a generic address means. Raises Fault outside the window."""
    if (address ^ SHARED_WINDOW) >> 32:
        raise Fault(f"the generic address {address:#x} is not in shared memory")
    return address ^ SHARED_WINDOW


def signed(x: int) -> int:
    """A 32-bit pattern as a two's complement number."""
    return x - ((x & 0x80000000) << 1) if x >= 0 else x


class Signaller(NamedTuple):
    """Who initialises an mbarrier, or signals on it, for reports. rank, warp: of the CTA in its
    cluster, of the warp in the CTA. ins: by this instruction. unit: what carries it out for the
    warp, "" for the warp itself.
    """

    rank: int
    warp: int
    ins: Instr
    unit: str = ""

    @property
    def place(self) -> str:
        return str(self.ins.loc or self.ins.opcode)

    def __str__(self):
        by = self.unit or f"warp {self.warp}"
        return f"CTA rank {self.rank} {by}" + (f" at {self.ins.loc}" if self.ins.loc else "")


def issuer(warp: Fragment, ins: Instr, unit: str = "") -> Signaller:
    """The warp that executes `ins`; unit: see Signaller."""
    return Signaller(warp.cta.rank, warp.index, ins, unit)


def ranges(mask: int, address: LaneValues, size: LaneValues) -> list[tuple[int, int, int]]:
    """(lanes, address, bytes) of each range that active lanes access, where an operand gives its
    size. Empty ones are left out.
    """
    if not isinstance(address, np.ndarray) and not isinstance(size, np.ndarray):
        return [(mask, address, size)] if size else []
    which = active(mask)
    pairs = zip(*(np.broadcast_to(x, 32)[which].tolist() for x in (address, size)))
    found: dict[tuple[int, int], int] = {}
    for lane, pair in zip(which, pairs):
        found[pair] = found.get(pair, 0) | 1 << lane
    return [(lanes, *pair) for pair, lanes in found.items() if pair[1]]


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

    def vector(a: np.ndarray):
        return (a >> dtype(RANK_SHIFT) & dtype(0xFF)).astype(np.uint32)

    return Pure((f"b{bits}",), ("u32",), vector, None, f"({{0}} >> {RANK_SHIFT} & 0xff)")
