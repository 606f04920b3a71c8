"""The B200 in software in the processes that a program spawns.

A forked process has what its parent has. A spawned one starts bare: `multiprocessing` sends it its
preparation data before anything of the program is imported, and a value in them, once unpickled,
runs b200/spawned_process.py there. Also true of forkserver.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class _Install:
    """Unpickling one installs the B200 in the process that does so."""

    def __init__(self, script: Path, settings: Mapping[str, Any]):
        self._script, self._settings = script, dict(settings)

    def __reduce__(self):
        import runpy

        # A file by its path: the other process may not have this package on its path yet.
        given = {"SETTINGS": self._settings}
        return runpy.run_path, (str(self._script), given, "b200_in_a_spawned_process")


def follow(script: Path, settings: Mapping[str, Any]) -> None:
    """From now on processes that multiprocessing spawns run `script` with these settings, the
    keyword arguments of b200.install.
    """
    import multiprocessing.spawn as spawn

    prepare = getattr(spawn.get_preparation_data, "__wrapped__", spawn.get_preparation_data)

    @functools.wraps(prepare)
    def prepare_with_b200(name):
        return {**prepare(name), "b200": _Install(script, settings)}

    spawn.get_preparation_data = prepare_with_b200
