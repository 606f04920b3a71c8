"""The steps that published times lie on, and what a clock's error is if they are rounded up.

Most published times of the ladder (docs/lab/timing.md) are a multiple of 2.048 us or less than a
fifth of a step above one; of times that lie anywhere one in five would be. If each call is seen to
end at the next step only, a published time says that the call took more than the step below.
Nothing shows that it is so: an H200 rounds nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

STEP_US = 2.048  # 2^11 ns
NEAR = 0.2  # of a step: what a mean of calls may lie above one, since a few are seen a step later


def on_step(us: float) -> bool:
    """Whether a time lies on a step, or a little above."""
    return us / STEP_US % 1 <= NEAR


def bounds(us: float) -> tuple[float, float]:
    """us: more than the first, no more than the second, a call took that is published as `us`. One
    between two steps is the mean of calls on either side of the lower one.
    """
    return STEP_US * (math.ceil(us / STEP_US - NEAR) - 1), us


def outside(record: Mapping[str, Any]) -> float:
    """How far a point's modelled time (time_us) is outside of the bounds of the published one, as a
    part of the nearer; 0 inside.
    """
    low, high = bounds(record["published_us"])
    modelled = record["time_us"]
    return modelled / min(max(modelled, low), high) - 1
