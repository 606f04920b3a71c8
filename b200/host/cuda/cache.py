"""Where what is compiled is kept, and under which names."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Generator
from pathlib import Path


def cache_folder() -> Path:
    """Where compiled libraries are kept: `$XDG_CACHE_HOME` or ~/.cache, b200/cuda."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folder = Path(home, "b200", "cuda")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return folder
    except OSError:
        pass
    folder = Path(tempfile.gettempdir(), f"b200-cuda-{os.getuid()}")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextlib.contextmanager
def locked(path: Path) -> Generator[None]:
    """Processes that want the same thing of the cache make it once."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def made_once(out: Path, make: Callable[[Path], Path]) -> Path:
    """What the cache has at `out`: there already, or made now. make: makes it in an empty folder,
    which goes, and says where.
    """
    with locked(out.with_suffix(".lock")):
        if not out.exists():
            work = Path(tempfile.mkdtemp(dir=out.parent))
            try:
                os.replace(make(work), out)
            finally:
                shutil.rmtree(work, ignore_errors=True)
    return out


def digest_of(*parts: str) -> str:
    """A name for the content of texts."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.encode() + b"\0\0")
    return digest.hexdigest()[:24]
