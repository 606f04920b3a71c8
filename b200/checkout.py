"""Which commit sources are of."""

from __future__ import annotations

import subprocess
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent


def commit(folder: Path) -> str:
    """The commit that a folder of sources is of, with "+" where they were changed; "" for what no
    repository has, such as an installed package.
    """
    said = _git(folder, "describe", "--always", "--dirty=+", "--exclude=*")
    return said if _git(folder, "ls-files", ".") else ""


def repository(folder: Path) -> str:
    """The name of the repository's work tree that a folder is of; "" without one."""
    top = _git(folder, "rev-parse", "--show-toplevel")
    return Path(top).name if top else ""


def ours(folder: Path) -> bool:
    """Whether a folder is of the work tree that this package is of."""
    tops = {_git(each, "rev-parse", "--show-toplevel") for each in (folder, PACKAGE)}
    return len(tops) == 1 and tops != {""}


def _git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
