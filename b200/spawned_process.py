"""Run in a spawned process before anything of the program is imported (host/spawned.py): installs
the B200 there. `install` records what is found in the journal of the run, if there is one; else it
is said at once on stderr, as its Gpu is not its parent's.

SETTINGS, the keyword arguments of `b200.install`, is given by who runs this file.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from b200.chip.launch import Launch


def install(settings: Mapping[str, Any]) -> None:
    root = str(Path(__file__).resolve().parents[1])
    if root not in sys.path:  # multiprocessing copies the parent's path later
        sys.path.append(root)
    import b200
    from b200.reports import journal

    gpu = b200.install(**settings)
    if journal.of_the_run() is not None:
        return
    launch = gpu.launch

    def launch_and_tell(*args: Any, **kwargs: Any) -> Launch:
        launched = launch(*args, **kwargs)
        for finding in launched.findings or ():
            print(finding, file=sys.stderr, flush=True)
        return launched

    gpu.launch = launch_and_tell


if __name__ == "b200_in_a_spawned_process":
    install(SETTINGS)  # type: ignore[name-defined]  # noqa: F821
