"""The contents of global memory at one time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from b200.chip.global_memory import Region


class Contents:
    """A copy of what allocations contain, which `put_back` restores. The allocations are kept alive
    until then, because freed memory may already have another owner.
    """

    def __init__(self, regions: Iterable[Region]):
        self._saved: list[tuple[Any, np.ndarray, np.ndarray]] = []
        for region in regions:
            owner: Any = region.owner() if region.owner is not None else region
            if owner is not None:
                self._saved.append((owner, region.u8, region.u8.copy()))

    def put_back(self) -> None:
        for _, now, saved in self._saved:
            if not np.array_equal(now, saved):  # memory that is only read may be read-only
                now[:] = saved

    def unchanged(self) -> bool:
        """Whether the allocations still contain what was copied."""
        return all(np.array_equal(now, saved) for _, now, saved in self._saved)
