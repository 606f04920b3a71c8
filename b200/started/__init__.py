"""The B200 in software in the Python programs that a program starts by `subprocess`, `os.exec` or a
shell, under `b200 run` and `b200 exec`: their interpreter finds sitecustomize.py of this folder,
which installs the B200 as soon as they import what needs a GPU. One that is started with -E, -I, -S
or without PYTHONPATH is not reached.
"""

from __future__ import annotations

import os
from pathlib import Path

FOLDER = Path(__file__).parent
_PATH = "PYTHONPATH"


def follow() -> None:
    """From now on Python programs that this process starts find the B200 of its run, which
    b200/reports/journal.py has announced.
    """
    folder = str(FOLDER)
    others = [path for path in os.environ.get(_PATH, "").split(os.pathsep) if path != folder]
    os.environ[_PATH] = os.pathsep.join([folder, *filter(None, others)])
