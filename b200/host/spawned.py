"""The B200 in software in the processes that a program spawns.

A forked process has what its parent has. A spawned one starts bare: `multiprocessing` sends it its
preparation data before anything of the program is imported, and a value in them, once unpickled,
runs this file there. Also true of forkserver.

What a spawned process finds wrong it says on stderr at once: its Gpu is not its parent's.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class _Install:
    """Unpickling one installs the B200 in the process that does so."""

    def __init__(self, settings: Mapping[str, Any]):
        self._settings = dict(settings)

    def __reduce__(self):
        import runpy

        # This file by its path: the other process may not have this package on its path yet.
        return runpy.run_path, (__file__, {"SETTINGS": self._settings}, "b200_in_a_spawned_process")


def follow(settings: Mapping[str, Any]) -> None:
    """From now on processes that multiprocessing spawns install the B200 with these settings, the
    keyword arguments of b200.install.
    """
    import multiprocessing.spawn as spawn

    prepare = getattr(spawn.get_preparation_data, "__wrapped__", spawn.get_preparation_data)

    @functools.wraps(prepare)
    def prepare_with_b200(name):
        return {**prepare(name), "b200": _Install(settings)}

    spawn.get_preparation_data = prepare_with_b200


def _install_here(settings: Mapping[str, Any]) -> None:
    root = str(Path(__file__).resolve().parents[2])
    if root not in sys.path:
        sys.path.append(root)
    import b200

    gpu = b200.install(**settings)
    launch = gpu.launch

    def launch_and_tell(*args, **kwargs):
        launched = launch(*args, **kwargs)
        for finding in getattr(launched, "findings", ()):
            print(finding, file=sys.stderr, flush=True)
        return launched

    gpu.launch = launch_and_tell


if __name__ == "b200_in_a_spawned_process":
    _install_here(SETTINGS)  # type: ignore[name-defined]  # noqa: F821
