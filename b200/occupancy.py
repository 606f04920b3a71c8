"""How many CTAs of a kernel an SM holds, and what a B200 refuses to launch.

Source of the rules: CUDA C++ programming guide, "Compute Capabilities", table of technical
specifications, 10.0 (9.0 has the same); registers are allotted to a warp in units of 256.
"""

from __future__ import annotations

from b200 import hardware

REGISTER_UNIT = 256
PORTABLE_CLUSTER = 8


def registers_of(threads: int, registers: int) -> int:
    """Registers a CTA takes of an SM."""
    warps = -(-threads // 32)
    return warps * (-(-registers * 32 // REGISTER_UNIT) * REGISTER_UNIT)


def ctas_per_sm(threads: int, smem: int, registers: int) -> int:
    """CTAs of a kernel that fit an SM. smem: static and dynamic bytes a CTA."""
    if not 0 < threads <= hardware.MAX_THREADS or smem > hardware.SMEM_OPT_IN:
        return 0
    limits = [
        hardware.SM_CTAS,
        hardware.SM_THREADS // (-(-threads // 32) * 32),
        hardware.SMEM_BYTES // (smem + hardware.SMEM_RESERVED),
    ]
    if registers:
        limits.append(hardware.SM_REGISTERS // registers_of(threads, registers))
    return min(limits)
