"""The options of the clock that a user chooses."""

from __future__ import annotations

from dataclasses import dataclass, field

from b200.clock.devices import DEVICES, Device


@dataclass(frozen=True)
class Options:
    """The options of a timed run.

    device: one of b200.clock.devices.DEVICES. clock_ghz: SM clock; 0 for the device's own.
    arithmetic: False skips tcgen05.mma and tcgen05.cp (tensor memory then holds garbage, the time
    is the same). sweep_constants: run each launch twice more, with all constants that have a range
    at their fast ends, and at their slow ends. trace: how many CTAs, the first ones, keep their
    events. dirty_l2: whether the L2 holds written lines when the kernel starts, as after a memset.
    constants: name -> value that overrides the table's.
    """

    device: str = "B200"
    clock_ghz: float = 0.0
    arithmetic: bool = True
    sweep_constants: bool = False
    trace: int = 0
    dirty_l2: bool = False
    cold: bool = True
    constants: dict[str, float] = field(default_factory=dict[str, float])

    def __post_init__(self):
        if not self.clock_ghz:
            object.__setattr__(self, "clock_ghz", self.gpu.clock_ghz)

    @property
    def gpu(self) -> Device:
        """The device. Raises KeyError for one that the clock does not know."""
        return DEVICES[self.device]
