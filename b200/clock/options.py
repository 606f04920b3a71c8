"""What a user chooses about the clock."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Options:
    """clock_ghz: SM clock. arithmetic: False skips tcgen05.mma and tcgen05.cp (tensor memory then
    holds garbage, the time is the same). ranges: run each launch again with all ranges at their
    fast and their slow ends. trace: keep the events of the first `trace` CTAs. dirty_l2: the L2
    holds written lines when the kernel starts, as after a memset. constants: overrides of the
    table, by name.
    """

    clock_ghz: float = 1.965
    arithmetic: bool = True
    ranges: bool = False
    trace: int = 0
    dirty_l2: bool = False
    cold: bool = True
    constants: dict[str, float] = field(default_factory=dict)
