"""What `b200 exec` puts in the place of a CUDA toolkit, made once for each toolkit and compiler.

bin/nvcc             nvcc.py over the real one; the other tools are the real ones
lib64/libcudart.so   the CUDA runtime and driver in software; also as libcuda.so.1, and in the
                     place of libcudart_static.a
include, nvvm        the real ones
include_more         headers that pip has in other packages: NVRTC's
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

import b200
from b200 import started
from b200.host.cuda import library
from b200.host.cuda.cache import cache_folder, digest_of, made_once
from b200.host.cuda.errors import BuildError
from b200.host.cuda.toolkit import Toolkit, check_run, find_toolkit, packages

_HERE = Path(__file__).parent
_SONAME = "libcudart.so.13"
_PARTS = ("guest.h", "kit.py", "nvcc.py")  # that decide on the kit, besides its sources
# Names with the version that programs ask for; the rest is nobody's.
_EXPORTED = f"""{_SONAME} {{ global: cuda*; __cuda*; cu[A-Z]*; local: *; }};
libnvrtc.so.13 {{ global: nvrtc*; }};
"""


def made() -> Path:
    """The kit's folder, made now or found in the cache. BuildError in one line."""
    toolkit = find_toolkit()
    files = [*_sources(), *library.PARTS]
    files += [path for path in sorted(_HERE.iterdir()) if path.name in _PARTS]
    texts = [path.read_text() for path in files]
    # Its nvcc runs a file of this package, wherever that lies.
    given = map(str, (_HERE, toolkit.nvcc, sys.executable, *packages(toolkit.version[0])))
    key = digest_of(toolkit.build, toolkit.cxx_version, *given, *texts)
    root = cache_folder() / f"kit-{key}"
    return made_once(root, lambda work: _make(toolkit, work, root))


def environment(root: Path, python: Path) -> dict[str, str]:
    """What a process needs to find the kit at `root`, besides the journal."""
    before = os.environ

    def in_front(name: str, new: Path) -> str:
        return f"{new}:{before[name]}" if before.get(name) else str(new)

    kit_of = dict.fromkeys(("CUDA_HOME", "CUDA_PATH", "CUDAToolkit_ROOT"), str(root))
    return kit_of | {
        "CUDACXX": str(root / "bin" / "nvcc"),
        "PATH": in_front("PATH", root / "bin"),
        "CPATH": in_front("CPATH", root / "include_more"),
        "LD_LIBRARY_PATH": in_front("LD_LIBRARY_PATH", root / "lib64"),
        "LD_PRELOAD": in_front("LD_PRELOAD", root / "lib64" / _SONAME),
        "PYTHONPATH": in_front("PYTHONPATH", started.FOLDER),
        "B200_LIBPYTHON": str(python),
        "B200_PYTHON": sys.executable,
        "B200_HOME": str(Path(b200.__file__).parents[1]),
    }


def _sources() -> list[Path]:
    return [*library.SHIM, library.NVRTC, *sorted(_HERE.glob("*.cpp"))]


def _make(toolkit: Toolkit, work: Path, root: Path) -> Path:
    """Put the kit into a folder that is going to be `root`; the folder."""
    home = _home(toolkit)
    (work / "bin").mkdir()
    (work / "lib64").mkdir()
    objects = work / "objects"
    objects.mkdir()
    out = work / "lib64" / _SONAME
    library.make(toolkit, _sources(), out, objects, _EXPORTED, (f"-Wl,-soname,{_SONAME}",))
    shutil.rmtree(objects)
    for name in ("libcudart.so", "libcuda.so", "libcuda.so.1"):
        (work / "lib64" / name).symlink_to(_SONAME)
    (work / "lib64" / "libcudart_static.a").write_text(f"INPUT({root / 'lib64' / _SONAME})\n")
    ours = ("libcudart", "libcuda.", "nvcc")
    for folder in (home / "lib64", home / "lib", home / "targets/x86_64-linux/lib"):
        _link_all(folder.glob("lib*"), work / "lib64", ours)
    _link_all((home / "bin").iterdir(), work / "bin", ours)
    for folder in packages(toolkit.version[0]):
        _link_all(folder.glob("include/nvrtc.h"), work / "include_more")
        _link_all(folder.glob("lib/libnvrtc*"), work / "lib64")
    for path in sorted((work / "lib64").glob("libnvrtc.so.*")):
        _link_all([path], work / "lib64", name="libnvrtc.so")
    for name in ("include", "nvvm", "nvvm-prev"):
        if (home / name).exists():
            (work / name).symlink_to(home / name)
    nvcc = work / "bin" / "nvcc"
    script = f'"{sys.executable}" -IS "{_HERE / "nvcc.py"}" "{toolkit.nvcc}" "{root / "lib64"}"'
    nvcc.write_text(f'#!/bin/sh\nexec {script} "$@"\n')
    nvcc.chmod(0o755)
    return work


def _link_all(paths: Iterable[Path], to: Path, but: tuple[str, ...] = (), name: str = "") -> None:
    """Links to files, where there is nothing of the name. but: how names begin that get none."""
    to.mkdir(exist_ok=True)
    for path in sorted(paths):
        link = to / (name or path.name)
        if not path.name.startswith(but) and not link.is_symlink():
            link.symlink_to(path.resolve())


def _home(toolkit: Toolkit) -> Path:
    """The toolkit's folder, by nvcc's own word: what is on PATH may be a script around it."""
    command = [str(toolkit.nvcc), "--dryrun", "-c", "-x", "cu", os.devnull, "-o", os.devnull]
    match = re.search(r"^#\$ TOP=(.*)$", check_run(command, Path.cwd()), re.M)
    if match is None:
        raise BuildError(f"{toolkit.nvcc} does not say where its toolkit is (nvcc --dryrun)")
    return Path(match[1]).resolve()
