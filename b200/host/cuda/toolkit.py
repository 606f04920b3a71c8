"""Finds nvcc and a C++ compiler, and says in one line what is missing.

nvcc is a toolkit's (CUDA_HOME, PATH, /usr/local/cuda) or the one of its pip packages, which this
project's extra `cuda` installs into site-packages/nvidia/cu13.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from b200.host.cuda.errors import BuildError

OLDEST = (12, 8)  # the first nvcc that knows sm_100a and tcgen05


@dataclass(frozen=True)
class Toolkit:
    """nvcc, the C++ compiler it works with, and where CUDA's headers are. version: of nvcc."""

    nvcc: Path
    version: tuple[int, int]
    build: str
    includes: tuple[Path, ...]
    cxx: str
    cxx_version: str


def find_toolkit() -> Toolkit:
    """The toolkit that compiles; BuildError names what is missing."""
    nvcc = next(_candidates(), None)
    if nvcc is None:
        raise BuildError(
            "nvcc is missing: raw CUDA is compiled for real; install the extra `cuda`"
            " (pip install 'nvfp4-b200[cuda]') or a CUDA toolkit, and set CUDA_HOME or PATH"
        )
    return _inspect(nvcc, os.environ.get("CXX", "c++"))


def ran(command: Sequence[str], work: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a compiler in a folder. stdout: all that it has said."""
    return subprocess.run(
        command, cwd=work, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def check_run(command: Sequence[str], work: Path) -> str:
    """The same; its output, or BuildError with its first error."""
    done = ran(command, work)
    if done.returncode:
        lines = done.stdout.splitlines()
        errors = [x for w in ("undefined reference", "error") for x in lines if w in x.lower()]
        first = errors[0] if errors else done.stdout
        raise BuildError(f"{Path(command[0]).name} failed: {first.strip()[:300]}", done.stdout)
    return done.stdout


def home() -> str | None:
    """The toolkit's folder, as torch's CUDA_HOME names it; None without an nvcc."""
    nvcc = next(_candidates(), None)
    return None if nvcc is None else str(nvcc.parent.parent)


def _candidates() -> Iterator[Path]:
    """Places of nvcc, the user's word first."""
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH")]
    found = [Path(home, "bin", "nvcc") for home in homes if home]
    on_path = shutil.which("nvcc")
    if on_path:
        found.append(Path(on_path))
    found += [folder / "bin" / "nvcc" for folder in packages()]
    found.append(Path("/usr/local/cuda/bin/nvcc"))
    yield from (path for path in found if path.is_file())


def packages(release: int | str = "1*") -> list[Path]:
    """The folders of CUDA's pip packages, the newest release first."""
    spec = importlib.util.find_spec("nvidia")
    roots = spec.submodule_search_locations or () if spec else ()
    return [
        path for root in roots for path in sorted(Path(root).glob(f"cu{release}"), reverse=True)
    ]


@functools.cache
def _inspect(nvcc: Path, cxx: str) -> Toolkit:
    said = ran([str(nvcc), "--version"]).stdout
    match = re.search(r"release (\d+)\.(\d+)", said)
    if match is None:
        raise BuildError(f"{nvcc} does not say its version: {said.strip()[:200]!r}")
    version = (int(match.group(1)), int(match.group(2)))
    if version < OLDEST:
        raise BuildError(
            f"nvcc {version[0]}.{version[1]} ({nvcc}) does not know sm_100a; it takes"
            f" {OLDEST[0]}.{OLDEST[1]} or later"
        )
    if shutil.which(cxx) is None:
        raise BuildError(
            f"the C++ compiler {cxx!r} is missing: nvcc compiles host code with it; install g++"
            " or set CXX"
        )
    of_cxx = ran([cxx, "--version"]).stdout
    return Toolkit(nvcc, version, said.strip(), _includes(nvcc), cxx, of_cxx)


def _includes(nvcc: Path) -> tuple[Path, ...]:
    """The folders with cuda.h and with libcu++, which nvcc itself finds, for the C++ compiler."""
    listed = ran([str(nvcc), "--dryrun", "-c", "-x", "cu", os.devnull, "-o", os.devnull]).stdout
    found = [Path(p) for p in re.findall(r'-(?:I|isystem\s*)"?([^"\s]+)"?', listed)]
    roots = dict.fromkeys(path.resolve() for path in found if path.is_dir())
    if not any((root / "cuda_runtime.h").is_file() for root in roots):
        raise BuildError(
            f"the CUDA headers are missing beside {nvcc} (no cuda_runtime.h): install the extra"
            " `cuda` (pip install 'nvfp4-b200[cuda]') or a whole CUDA toolkit"
        )
    return tuple(roots)
