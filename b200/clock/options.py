"""What a user chooses about the clock."""

from __future__ import annotations

from dataclasses import dataclass, field

from b200.clock.devices import DEVICES, Device


@dataclass(frozen=True)
class Options:
    """device: one of b200.clock.devices.DEVICES. clock_ghz: SM clock, 0: the device's. arithmetic:
    False skips tcgen05.mma and tcgen05.cp (tensor memory then holds garbage, the time is the same).
    sweep_constants: run each launch again with all constants that have a range at their fast and
    at their slow ends. trace: keep the events of the first `trace` CTAs. dirty_l2: the L2
    holds written lines when the kernel starts, as after a memset. constants: overrides of the
    table, by name.
    """

    device: str = "B200"
    clock_ghz: float = 0.0
    arithmetic: bool = True
    sweep_constants: bool = False
    trace: int = 0
    dirty_l2: bool = False
    cold: bool = True
    constants: dict[str, float] = field(default_factory=dict)

    def __post_init__(self):
        if not self.clock_ghz:
            object.__setattr__(self, "clock_ghz", self.gpu.clock_ghz)

    @property
    def gpu(self) -> Device:
        """Raises KeyError for a device that the clock does not know."""
        return DEVICES[self.device]
