"""cuTensorMapEncodeTiled in software, for host code that does not pack its tensormaps itself.

Arguments and checks: CUDA driver API, "Tensor Map Object Management".
"""

from __future__ import annotations

import ctypes
from typing import NoReturn

from b200.chip.copies.tensormap import TensorMap, violations
from b200.errors import EmulatorError
from b200.host.poke import peek

# CUtensorMapDataType -> (element format code of the tensormap, rounded to tf32 on a load)
_PLAIN = {code: code for code in range(8)} | {8: 9, 9: 10, 10: 8, 13: 11, 14: 12, 15: 13}
_TF32 = {11: (7, True), 12: (8, True)}
_DATA_TYPES = {code: (form, False) for code, form in _PLAIN.items()} | _TF32
# CUtensorMapSwizzle -> (swizzle mode, atomicity) of the tensormap
_SWIZZLES = {0: (0, 0), 1: (1, 0), 2: (2, 0), 3: (3, 0), 4: (3, 1), 5: (3, 2), 6: (3, 3)}
_LIMITS = (("global dimension", 1, 1 << 32), ("box dimension", 1, 256), ("element stride", 1, 8))


def _refuse(reason: str) -> NoReturn:
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
    """The 128-byte tensormap.

    dims, box, steps: elements a dimension, dimension 0 contiguous; strides: bytes, of dimensions
    1, 2, ... EmulatorError of kind "limit" names what the driver would refuse.
    """
    if not 1 <= len(dims) <= 5:
        _refuse(f"the rank is {len(dims)}, must be 1..5")
    codes = (
        ("data type", data_type, _DATA_TYPES),
        ("swizzle", swizzle, _SWIZZLES),
        ("interleave", interleave, (0, 1, 2)),
        ("out-of-bounds fill", fill, (0, 1)),
    )
    for name, value, known in codes:
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
    shape = (tuple(dims), tuple(strides), tuple(box), tuple(steps))
    tensormap = TensorMap(address, form, *shape, mode, atomicity, interleave, bool(fill), tf32)
    for problem in violations(tensormap):
        _refuse(f"{problem}, in {tensormap}")
    return tensormap.encode()


def tensor_map_encode_tiled(
    out, data_type, rank, address, dims, strides, box, steps, interleave, swizzle, _l2, fill
) -> None:
    """The driver's function on the addresses of its arrays; writes 128 bytes at `out`."""
    data_type, rank, interleave, swizzle, fill = (
        x & 0xFFFFFFFF for x in (data_type, rank, interleave, swizzle, fill)
    )
    if not 1 <= rank <= 5:
        _refuse(f"the rank is {rank}, must be 1..5")
    shape = (peek(dims, f"<{rank}Q"), peek(strides, f"<{rank - 1}Q"))
    shape += (peek(box, f"<{rank}I"), peek(steps, f"<{rank}I"))
    raw = encode_tiled(data_type, address, *shape, interleave, swizzle, fill)
    ctypes.memmove(out, raw, len(raw))
