"""A limit of CPU time for a program that a study runs."""

from __future__ import annotations

import resource
from collections.abc import Callable

GRACE = 5  # seconds between the signal and the end


def of_cpu(seconds: int) -> Callable[[], None]:
    """What a process calls before its program: SIGXCPU after so much CPU time, then SIGKILL."""
    return lambda: resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + GRACE))
