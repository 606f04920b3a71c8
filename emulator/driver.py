"""cuTensorMapEncodeTiled in software: host code that does not pack its tensormaps itself calls the driver for it.

Arguments and checks: CUDA driver API, "Tensor Map Object Management".
"""

from __future__ import annotations

import ctypes
import struct

from .errors import EmulatorError
from .isa.tensormap import TensorMap, violations

# CUtensorMapDataType -> (element format code of the tensormap, rounded to tf32 on a load)
_DATA_TYPES = {0: (0, False), 1: (1, False), 2: (2, False), 3: (3, False), 4: (4, False), 5: (5, False), 6: (6, False),
               7: (7, False), 8: (9, False), 9: (10, False), 10: (8, False), 11: (7, True), 12: (8, True),
               13: (11, False), 14: (12, False), 15: (13, False)}  # fmt: skip
# CUtensorMapSwizzle -> (swizzle mode, atomicity) of the tensormap
_SWIZZLES = {0: (0, 0), 1: (1, 0), 2: (2, 0), 3: (3, 0), 4: (3, 1), 5: (3, 2), 6: (3, 3)}
_LIMITS = (("global dimension", 1, 1 << 32), ("box dimension", 1, 256), ("element stride", 1, 8))


def _refuse(reason: str):
    raise EmulatorError("limit", f"cuTensorMapEncodeTiled refused: {reason}")


def encode_tiled(
    data_type: int,
    address: int,
    dims,
    strides,
    box,
    steps,
    interleave: int,
    swizzle: int,
    fill: int,
) -> bytes:
    """The 128-byte tensormap; EmulatorError of kind "limit" naming what the driver would refuse.

    dims, box, steps: elements a dimension, dimension 0 contiguous; strides: bytes, of dimensions 1, 2, ...
    """
    if not 1 <= len(dims) <= 5:
        _refuse(f"the rank is {len(dims)}, must be 1..5")
    for name, value, known in (("data type", data_type, _DATA_TYPES), ("swizzle", swizzle, _SWIZZLES),
                               ("interleave", interleave, (0, 1, 2)), ("out-of-bounds fill", fill, (0, 1))):  # fmt: skip
        if value not in known:
            _refuse(f"the {name} has code {value}, known are {', '.join(map(str, known))}")
    for (name, low, high), values in zip(_LIMITS, (dims, box, steps), strict=True):
        for i, value in enumerate(values):
            if not low <= value <= high:
                _refuse(f"the {name} of dim{i} is {value}, must be {low}..{high}")
    for i, stride in enumerate(strides):
        if stride >= 1 << 40:
            _refuse(f"the stride of dim{i + 1} is {stride} bytes, must be below 2^40")
    form, tf32 = _DATA_TYPES[data_type]
    mode, atomicity = _SWIZZLES[swizzle]
    tensormap = TensorMap(address, form, tuple(dims), tuple(strides), tuple(box), tuple(steps), mode, atomicity,
                          interleave, bool(fill), tf32)  # fmt: skip
    for problem in violations(tensormap):
        _refuse(f"{problem}, in {tensormap}")
    return tensormap.encode()


def tensor_map_encode_tiled(
    out, data_type, rank, address, dims, strides, box, steps, interleave, swizzle, _l2, fill
):
    """The driver's function on addresses of its arrays; writes 128 bytes at `out`."""

    def array(at: int, code: str, count: int):
        return struct.unpack(f"<{count}{code}", ctypes.string_at(at, count * struct.calcsize(code)))

    rank, low = rank & 0xFFFFFFFF, 0xFFFFFFFF
    if not 1 <= rank <= 5:
        _refuse(f"the rank is {rank}, must be 1..5")
    raw = encode_tiled(data_type & low, address, array(dims, "Q", rank), array(strides, "Q", rank - 1),
                       array(box, "I", rank), array(steps, "I", rank), interleave & low, swizzle & low, fill & low)  # fmt: skip
    ctypes.memmove(out, raw, len(raw))
