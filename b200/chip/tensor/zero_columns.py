"""The zero-column mask of tcgen05.mma.ws (PTX ISA 9.7.16.4.3): columns of B taken as zero.

The mask is a sequence of spans of columns, which are used and skipped by turns; all used spans have
one length, and all skipped ones. N has several parts that lie in different lanes (one for M = 128,
two for 64, four for 32). In each part the mask starts anew: with a used or a skipped span, some
columns of which may be left out. With a column shift, column n of B comes from row n + shift of the
matrix (reading chosen).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from b200.errors import Fault


@dataclass(frozen=True)
class ZeroColumns:
    """A decoded mask. columns: bool [N], True where B counts as zero. shift: number of columns that
    B is moved by.
    """

    columns: np.ndarray
    shift: int

    @staticmethod
    def decode(descriptor: int, m: int, n: int) -> ZeroColumns:
        """The mask of a 64-bit descriptor for an M x N instruction."""
        shift = descriptor >> 56 & 0x3F
        most = 16 if m == 32 else 32
        if shift > most:
            raise Fault(
                f"zero-column mask {descriptor:#018x}: column shift (bits 56-61) is {shift}, at "
                f"most {most} with M = {m}"
            )
        columns = np.zeros(n, bool)
        if descriptor >> 39 & 1:
            parts = 128 // m
            for part in range(parts):
                width = n // parts
                columns[part * width : (part + 1) * width] = _spans(descriptor, part, width)
        return ZeroColumns(columns, shift)

    def apply(self, b: np.ndarray) -> np.ndarray:
        """Values [N, K] of B from the [N + shift, K] that the instruction reads."""
        read: np.ndarray = b[self.shift :].copy()
        read[self.columns] = 0
        return read


def _spans(descriptor: int, part: int, width: int) -> np.ndarray:
    skip = (descriptor >> 40 & 0xFF) + 1
    use = (descriptor >> 48 & 0xFF) + 1
    over = descriptor >> 8 * part & 0xFF
    starts_with_skip = descriptor >> 32 + part & 1
    at = np.arange(width) + over
    if starts_with_skip:
        return at % (skip + use) < skip
    return at % (skip + use) >= use
