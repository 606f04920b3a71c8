"""Whether what the harness imports is installed. Imports nothing beyond the standard library."""

from __future__ import annotations

import importlib.util
import sys

OLDEST = (3, 10)
# Module -> the package that brings it.
NEEDED = {
    "numpy": "numpy",
    "torch": "torch",
    "cutlass": "nvidia-cutlass-dsl",
    "cuda": "cuda-python",
    "threadpoolctl": "threadpoolctl",
    "pebble": "pebble",
    "rich": "rich",
}


def missing() -> str:
    """One line that says what is missing and how to get it; empty if nothing is."""
    if sys.version_info < OLDEST:
        return (
            f"Python {OLDEST[0]}.{OLDEST[1]} or later is needed; this is {sys.version.split()[0]}"
        )
    absent = [package for module, package in NEEDED.items() if not importlib.util.find_spec(module)]
    if not absent:
        return ""
    are = "is" if len(absent) == 1 else "are"
    return (
        f"{', '.join(absent)} {are} not installed for {sys.executable}: run `python -m pip install"
        " '.[kernel]'` in the checkout"
    )
