"""Packed 4- and 6-bit elements in chunks of 16 bytes (PTX ISA 9.7.16.10.4, .b4x16_p64, .b6x16_p32).

A chunk holds 16 elements, the first in the lowest bits, and then padding.
"""

from __future__ import annotations

import numpy as np


def unpack_fp4(source: np.ndarray) -> np.ndarray:
    """uint8 [..., 16 * chunks], 8 bytes of codes and 8 of padding each -> codes, same shape."""
    packed = source.reshape(-1, 16)[:, :8]
    return np.stack([packed & 15, packed >> 4], axis=-1).reshape(source.shape)


def unpack_fp6(source: np.ndarray) -> np.ndarray:
    """uint8 [..., 16 * chunks], 12 bytes of codes and 4 of padding each -> codes, same shape."""
    triple = source.reshape(-1, 16)[:, :12].reshape(-1, 4, 3).astype(np.uint32)
    word = triple[..., 0] | triple[..., 1] << 8 | triple[..., 2] << 16
    codes = word[..., None] >> np.array([0, 6, 12, 18], np.uint32) & 63
    return codes.astype(np.uint8).reshape(source.shape)
