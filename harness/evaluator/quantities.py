"""What a time is of, in the words that tables and pictures share."""

from __future__ import annotations

KERNEL_ALONE = "kernel alone"  # from the start of the kernel to its end
CALL = "a call"  # what a leaderboard times: the kernel, the gap before it, and the events
