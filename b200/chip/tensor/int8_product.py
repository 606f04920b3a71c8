"""Products of small integers in int8: exact, and several times as fast as those of floats.

PyTorch has them, from oneDNN for x86, and so they are there in a program that has loaded PyTorch.
Elsewhere whoever asks (`is_there`) multiplies floats and gets the same numbers.

A number too large for int8 is two limbs of 7 bits with a sign, one above the other. A product of
such numbers is four of limbs, computed as one product of twice the rows and twice the columns.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Generator

import numpy as np

LIMB_BITS = 7  # a limb is in [-64, 63], so that a CPU without VNNI can add two products in 16 bits
BASE, HALF = 1 << LIMB_BITS, 1 << LIMB_BITS - 1
LARGEST = HALF - 1  # of one limb
LARGEST_OF_TWO = LARGEST * (BASE + 1)
LARGEST_SUM = 2**30  # of numbers of two limbs: in int32 with room for the sums of the lower limbs


def is_there() -> bool:
    """Whether PyTorch is loaded and has a fast product of int8 on this CPU."""
    torch = sys.modules.get("torch")
    if torch is None:
        return False
    x86 = torch.backends.cpu.get_cpu_capability().startswith("AVX")
    return x86 and torch.backends.mkldnn.is_available()


@contextlib.contextmanager
def one_thread() -> Generator[None]:
    """In here PyTorch multiplies in one thread: more would only wait for each other."""
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def product(a: np.ndarray, b: np.ndarray, out: np.ndarray) -> None:
    """out = a @ b^T. a, b: int8 [M, K] and [N, K]. out: int32 [M, N]; as large an array that is
    made for each product costs a quarter of its time.
    """
    torch = sys.modules["torch"]
    torch._int_mm(torch.from_numpy(a), torch.from_numpy(b).T, out=torch.from_numpy(out))


def split(numbers: np.ndarray) -> np.ndarray:
    """The limbs of int16 [..., rows, K] as int8 [..., 2, rows, K], the lower one first."""
    limbs = np.empty((*numbers.shape[:-2], 2, *numbers.shape[-2:]), np.int8)
    low, high = limbs[..., 0, :, :], limbs[..., 1, :, :]
    np.subtract((numbers + HALF) & (BASE - 1), HALF, out=low, casting="unsafe")
    np.right_shift(numbers - low, LIMB_BITS, out=high, casting="unsafe")
    return limbs


class ProductOfLimbs:
    """Products of numbers [M, K] and [N, K] of two limbs, in memory that each of them uses."""

    def __init__(self, m: int, n: int):
        torch = sys.modules["torch"]
        self.tensor = torch.from_numpy
        self.multiply = torch._int_mm
        self.found = torch.empty(2 * m, 2 * n, dtype=torch.int32)
        self.low, self.high = self.found[:m, :n], self.found[m:, n:]
        self.mixed = self.found[:m, n:], self.found[m:, :n]

    def add(self, total: np.ndarray, a: np.ndarray, b: np.ndarray, unit: float) -> None:
        """Add a @ b^T in units, exact up to LARGEST_SUM units, to float64 [M, N]. a, b: limbs, int8
        [2, rows, K].
        """
        k = a.shape[2]
        left, right = self.tensor(a.reshape(-1, k)), self.tensor(b.reshape(-1, k))
        self.multiply(left, right.T, out=self.found)
        for mixed in self.mixed:
            self.low.add_(mixed, alpha=BASE)
        self.low.add_(self.high, alpha=BASE * BASE)
        self.tensor(total).add_(self.low, alpha=unit)


@functools.lru_cache(maxsize=16)
def product_of_limbs(m: int, n: int) -> ProductOfLimbs:
    """The one for all products of this shape."""
    return ProductOfLimbs(m, n)
