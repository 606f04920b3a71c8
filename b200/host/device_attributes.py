"""What a B200's driver says of the device, for every interface that a program asks through."""

from __future__ import annotations

from b200 import hardware
from b200.host.refusals import INVALID_VALUE, Refused

# Largest textures and surfaces of compute capability 10.0 (CUDA programming guide, technical
# specifications). What takes textures is refused by name; what asks for the limits gets them.
_TEXTURES = {
    21: 131_072,  # 1D
    22: 131_072, 23: 65_536,  # 2D
    24: 16_384, 25: 16_384, 26: 16_384,  # 3D
    27: 32_768, 28: 32_768, 29: 2_048,  # layered 2D
    42: 32_768, 43: 2_048,  # layered 1D
    45: 32_768, 46: 32_768,  # 2D gather
    47: 8_192, 48: 8_192, 49: 32_768,  # 3D, the other shape
    52: 32_768, 53: 32_768, 54: 2_046,  # cubemaps
    55: 32_768, 56: 131_072, 57: 65_536, 58: 16_384, 59: 16_384, 60: 16_384,  # surfaces
    61: 32_768, 62: 2_048, 63: 32_768, 64: 32_768, 65: 2_048,
    66: 32_768, 67: 32_768, 68: 2_046,
    69: 1 << 28,  # linear 1D
    70: 131_072, 71: 65_000, 72: 2_097_120,  # linear 2D
    73: 32_768, 74: 32_768, 77: 32_768,  # mipmapped
}  # fmt: skip

# CUdevice_attribute, and cudaDeviceAttr which has the same numbers -> value. Source of the numbers:
# cuda.h of CUDA 13; of the values: hardware.py, CUDA programming guide (compute capability 10.0).
# Features that the software B200 lacks are 0, though a B200 has them.
_VALUES = {
    **dict.fromkeys(range(1, 148), 0),
    **_TEXTURES,
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
    11: (1 << 31) - 1,  # pitch of a copy
    12: hardware.SM_REGISTERS,  # of a CTA
    13: hardware.CLOCK_KHZ,
    14: 512,  # alignment of textures
    15: 1,  # copies beside kernels
    16: hardware.SM_COUNT,
    17: 0,  # a limit on a kernel's run time
    18: 0,  # an integrated GPU
    19: 1,  # maps host memory
    20: 0,  # compute mode: default
    30: 512,  # alignment of surfaces
    31: 1,  # concurrent kernels
    32: 1,  # ECC
    36: hardware.MEMORY_CLOCK_KHZ,
    37: hardware.MEMORY_BUS_BITS,
    38: hardware.L2_BYTES,
    39: hardware.SM_THREADS,
    40: 1,  # engines of asynchronous copies
    41: 1,  # unified addressing
    51: 32,  # alignment of a texture's pitch
    75: hardware.COMPUTE_CAPABILITY[0],
    76: hardware.COMPUTE_CAPABILITY[1],
    78: 1,  # priorities
    79: 1,  # global memory in L1
    80: 1,  # local memory in L1
    81: hardware.SMEM_BYTES,
    82: hardware.SM_REGISTERS,
    83: 1,  # managed memory
    87: 2,  # single to double precision
    89: 1,  # managed memory that host and device use at once
    90: 1,  # compute preemption
    91: 1,  # host pointers of registered memory
    95: 1,  # cooperative launch
    97: hardware.SMEM_OPT_IN,
    99: 1,  # registers host memory
    102: 1,  # virtual memory management
    106: hardware.SM_CTAS,
    108: hardware.L2_PERSISTING_BYTES,
    109: hardware.ACCESS_WINDOW_BYTES,
    111: hardware.SMEM_RESERVED,
    115: 1,  # memory pools
    120: 1,  # cluster launch
    126: 4,  # domains of memory synchronisation
    131: -1,  # NUMA node of the GPU's memory
    134: -1,  # NUMA node of the host
}


def device_attribute(number: int) -> int:
    """The value of a CUdevice_attribute or cudaDeviceAttr. Raises Refused for a number that CUDA
    does not have.
    """
    if number not in _VALUES:
        raise Refused(INVALID_VALUE, f"device attribute {number} (CUdevice_attribute) is not known")
    return _VALUES[number]
