"""createpolicy: cache policies of loads, stores and copies (PTX ISA 9.7.9.18).

A policy is an opaque number that changes no result. Those of one priority for all accesses have the
values of CUTLASS's hints (cute/arch/copy_sm90_desc.hpp, TMA::CacheHintSm90), which programs write
as constants, too; evict_unchanged's is ours.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from b200.chip.memory.loads_stores import policies_of
from b200.effects import Hints
from b200.errors import Fault
from b200.program.module import Instr
from b200.registry import Run, lane

if TYPE_CHECKING:
    from b200.chip.fragment import Fragment

# The number of a policy is that of its primary priority.
PRIORITIES = {
    "L2::evict_normal": 0x1000_0000_0000_0000,
    "L2::evict_first": 0x12F0_0000_0000_0000,
    "L2::evict_last": 0x14F0_0000_0000_0000,
    "L2::evict_unchanged": 0x16F0_0000_0000_0000,
}


def _hints(ins: Instr) -> Hints:
    return Hints(pipe="uniform integer", policies=policies_of(ins, "L2"))


@lane("createpolicy.fractional", states=_hints, out=1)
def createpolicy_fractional(ins: Instr) -> Run:
    """createpolicy.fractional.L2::PRIMARY{.L2::SECONDARY}.b64 policy{, fraction}"""
    policy = PRIORITIES[ins.one(*PRIORITIES)]

    def run(warp: Fragment, lane: int, bits: int = 0x3F800000):
        (fraction,) = struct.unpack("<f", struct.pack("<I", bits))
        if not 0.0 < fraction <= 1.0:
            raise Fault(f"createpolicy.fractional: the fraction is {fraction}, must be in (0, 1]")
        return policy

    return run


@lane("createpolicy.range", states=_hints, out=1)
def createpolicy_range(ins: Instr) -> Run:
    """createpolicy.range{.global}.L2::PRIMARY{.L2::SECONDARY}.b64 policy, [a], primary, total"""
    policy = PRIORITIES[ins.one(*PRIORITIES)]

    def run(warp: Fragment, lane: int, address: int, primary: int, total: int):
        if primary > total:
            raise Fault(f"createpolicy.range: the primary size {primary} exceeds the total {total}")
        return policy

    return run


@lane("createpolicy.cvt.L2", states=_hints, out=1)
def createpolicy_cvt(ins: Instr) -> Run:
    """createpolicy.cvt.L2.b64 policy, access-property: the property of the host's API, opaque."""

    def run(warp: Fragment, lane: int, access_property: int) -> int:
        return access_property

    return run
