"""Why CTAs do not run abreast."""

import numpy as np


class NotAbreast(BaseException):
    """CTAs cannot run abreast, or not any more: they run one after the other. This is no Exception,
    so that nobody takes it for a fault of the kernel.
    """


class CtasDiffer(NotAbreast):
    """CTAs go different ways, or to places that differ in more than the CTA. other: the number of
    the one that differs from all others; None where there is no such one.
    """

    def __init__(self, why: str, rows: np.ndarray | None = None):
        """rows: what differs, a row for each CTA."""
        super().__init__(why)
        self.other = None if rows is None else other_one(rows)


def other_one(rows: np.ndarray) -> int | None:
    """The number of the row that differs from all others, which are alike; None if none does."""
    rows = rows.reshape(len(rows), -1)
    for i in (0, -1):  # one of two rows is as most are
        others = np.flatnonzero((rows != rows[i]).any(1))
        if others.size == 1 and len(rows) > 2:
            return int(others[0])
    return None


class ReadAndWritten(NotAbreast):
    """An allocation, by its base, is both read and written, and nobody had foreseen it."""

    def __init__(self, base: int):
        super().__init__("an allocation is read and written")
        self.base = base
