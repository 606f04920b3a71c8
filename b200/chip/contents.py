"""The contents of global memory at one time."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from b200.chip.state import Region


class Contents:
    """What lies in allocations, to be put back there. They are kept alive until then: what is freed
    may belong to somebody else by now.
    """

    def __init__(self, regions: Iterable[Region]):
        self._saved = []
        for region in regions:
            owner = region.owner() if region.owner is not None else region
            if owner is not None:
                self._saved.append((owner, region.u8, region.u8.copy()))

    def put_back(self) -> None:
        for _, now, saved in self._saved:
            if not np.array_equal(now, saved):  # memory that is only read may be read-only
                now[:] = saved

    def unchanged(self) -> bool:
        """Whether the same lies there now."""
        return all(np.array_equal(now, saved) for _, now, saved in self._saved)
