"""A Python process under `b200 exec` that imports torch: its "cuda" is a B200 in software, and what
is found in it is told at its end. So a setup.py builds its CUDA extensions for it, under pip too.
"""

# pyright: reportPrivateUsage=false
# It is told what the package has installed.
from __future__ import annotations

import atexit
from types import ModuleType

import b200
from b200.host.imports import when_imported
from b200.reports import journal


def begin() -> None:
    """Wait for the program to import torch."""
    if journal.of_the_run() is not None:
        when_imported("torch", _install)


def _install(_torch: ModuleType) -> None:
    from b200.compiled.guest import End

    found = journal.of_the_run()
    if found is None or b200._runtime is not None:  # the run is over, or guest.py has begun
        return
    kept, settings = found
    b200.install(**settings)
    assert b200._extensions is not None
    atexit.register(End(b200._extensions.driver, kept).of_python)
