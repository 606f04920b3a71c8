"""st.bulk: each lane fills a range of its CTA's shared memory with zeros (PTX ISA 9.7.9.13).

The lanes that execute it may give different addresses and sizes. It is a weak write by the generic
proxy, over when the instruction is. Ranges of several lanes may overlap: all write zeros.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from b200.chip.memory.addressing import generic_to_shared, ranges, shared_address, space_of
from b200.effects import Fills
from b200.errors import Fault, Unsupported
from b200.hardware import OFFSET_MASK, RANK_SHIFT
from b200.program.module import Imm, Instr
from b200.registry import LaneValues, Run, warp

if TYPE_CHECKING:
    from b200.chip.fragment import Fragment

UNIT = 8  # bytes of which a size is a multiple, and an address
MOST = 1 << 24  # bytes that a lane may fill


@warp("st.bulk", states=lambda ins: Fills(pipe="fill", space=space_of(ins)))
def fill(ins: Instr) -> Run:
    """st.bulk{.weak}{.shared::cta} [a], size, 0"""
    generic, initial = space_of(ins) == "generic", ins.operands[2]
    if not isinstance(initial, Imm) or initial.value:
        raise Unsupported(f"{ins.opcode}: its last operand must be the immediate 0")

    def run(warp: Fragment, mask: int, address: LaneValues, size: LaneValues, value: int) -> None:
        for _, at, nbytes in ranges(mask, address, size):
            if nbytes % UNIT:
                raise Fault(f"st.bulk of {nbytes} bytes: the size must be a multiple of {UNIT}")
            if not 0 < nbytes <= MOST:
                raise Fault(f"st.bulk of {nbytes} bytes: it fills at most {MOST}")
            at = generic_to_shared(at) if generic else shared_address(warp, at)
            if at >> RANK_SHIFT not in (0, warp.cta.rank):
                raise Fault(f"st.bulk at {at:#x}, of another CTA: it fills shared::cta alone")
            offset = warp.cta.check(at & OFFSET_MASK, nbytes, UNIT)
            warp.cta.smem.u8[offset : offset + nbytes] = 0

    return run
