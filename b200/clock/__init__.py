"""A clock for the emulator: a discrete-event model of the B200's units (see docs/timing.md).

`constants` is the table of numbers; `machine` the event-driven scheduler; `sm`, `memory` the
servers; `costs` what instructions cost; `protocol` what a leaderboard would report; `profile`,
`trace`, `plot` what the user reads.
"""

from b200.clock.constants import TABLE, Constants
from b200.clock.options import Options
from b200.clock.timed import TimedMachine

__all__ = ["TABLE", "Constants", "Options", "TimedMachine"]
