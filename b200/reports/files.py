"""A file that is whole at any moment: the old text or the new one."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def replaceable(path: Path) -> bool:
    """Whether the file can be exchanged for another: not a device, a pipe, or what lies in a folder
    that is closed.
    """
    return (path.is_file() or not path.exists()) and os.access(path.absolute().parent, os.W_OK)


def write(path: Path, text: str) -> None:
    """Write a file. It never has a part of the text, where it is replaceable. Raises OSError, and
    leaves what was there.
    """
    if not replaceable(path):
        path.write_text(text)
        return
    target = path.resolve()
    beside = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        beside.write_text(text)
        os.replace(beside, target)
    except OSError:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise
