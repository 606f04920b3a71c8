"""The B200 in software in the Python programs that a program starts by `subprocess`, `os.exec` or a
shell, under `b200 run` and `b200 exec`: their interpreter finds sitecustomize.py of this folder,
which installs the B200 as soon as they import what needs a GPU. One that `subprocess` starts with
an environment of its own is reached, too; with -E, -I or -S it is not, and stderr says so.
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from pathlib import Path

from b200.started import children

FOLDER = Path(__file__).parent
_PATH = "PYTHONPATH"


def follow() -> None:
    """From now on Python programs that this process starts find the B200 of its run, which
    b200/reports/journal.py has announced.
    """
    _add(os.environ)
    children.watch(_add)


def _add(env: MutableMapping[str, str]) -> None:
    folder = str(FOLDER)
    others = [path for path in env.get(_PATH, "").split(os.pathsep) if path != folder]
    env[_PATH] = os.pathsep.join([folder, *filter(None, others)])
