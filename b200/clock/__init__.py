"""A clock for the emulator: a discrete-event model of the B200's units (see docs/lab/timing.md).

`constants` and `rates` are the numbers. `timed` is the order of simulated time. `units` says when
an asynchronous operation takes effect, on the servers of `sm` and `memory_system`. `costs` says
what an instruction costs, `call_time` what a leaderboard would report, `write_back` what DRAM pays
for stores. `profile` and `draw` write what the user reads.
"""

from b200.clock.constants import TABLE, Constants
from b200.clock.options import Options
from b200.clock.timed import Timed, timed_machine

__all__ = ["TABLE", "Constants", "Options", "Timed", "timed_machine"]
