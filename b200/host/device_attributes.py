"""What a B200's driver says of the device, for every interface that a program asks through."""

from __future__ import annotations

from b200 import hardware
from b200.errors import EmulatorError

# CUdevice_attribute, and cudaDeviceAttr which has the same numbers -> value. Source of the numbers:
# CUDA driver API; of the values: hardware.py, CUDA programming guide (compute capability 10.0).
_VALUES = {
    1: hardware.MAX_THREADS,
    2: hardware.MAX_BLOCK[0],
    3: hardware.MAX_BLOCK[1],
    4: hardware.MAX_BLOCK[2],
    5: hardware.MAX_GRID[0],
    6: hardware.MAX_GRID[1],
    7: hardware.MAX_GRID[2],
    8: hardware.SMEM_DEFAULT,
    9: 65_536,  # bytes of constant memory
    10: 32,  # threads of a warp
    12: hardware.SM_REGISTERS,  # of a CTA
    13: hardware.CLOCK_KHZ,
    16: hardware.SM_COUNT,
    17: 0,  # a limit on a kernel's run time
    18: 0,  # an integrated GPU
    31: 1,  # concurrent kernels
    36: hardware.MEMORY_CLOCK_KHZ,
    37: hardware.MEMORY_BUS_BITS,
    38: hardware.L2_BYTES,
    39: hardware.SM_THREADS,
    41: 1,  # unified addressing
    75: hardware.COMPUTE_CAPABILITY[0],
    76: hardware.COMPUTE_CAPABILITY[1],
    81: hardware.SMEM_BYTES,
    82: hardware.SM_REGISTERS,
    95: 1,  # cooperative launch
    97: hardware.SMEM_OPT_IN,
    106: hardware.SM_CTAS,
    111: hardware.SMEM_RESERVED,
    115: 1,  # memory pools
    120: 1,  # cluster launch
}


def device_attribute(number: int) -> int:
    """The value of a CUdevice_attribute or cudaDeviceAttr. Raises EmulatorError for a number that
    is not in the table.
    """
    if number not in _VALUES:
        raise EmulatorError(
            "unsupported", f"device attribute {number} (CUdevice_attribute) is not known"
        )
    return _VALUES[number]
