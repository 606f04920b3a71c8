"""nvcc for the kernels, the host's compiler for the same calls."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from lab.headers.programs import INCLUDES, Call, device_kernel, host_function

ARCHITECTURE = "-arch=sm_100a"
TO_PTX = ("-ptx", ARCHITECTURE)
_ERROR = re.compile(r"^\S+?\((\d+)\): error: (.*)$", re.MULTILINE)


def compiled(nvcc: Path, source: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [str(nvcc), "-w", "-Xcudafe", "--error_limit=9999", *options, str(source)]
    return subprocess.run(command, capture_output=True, text=True)


def version(nvcc: Path) -> str:
    """As nvcc says it: "13.0"."""
    said = subprocess.run([str(nvcc), "--version"], capture_output=True, text=True).stdout
    found = re.search(r"release (\d+\.\d+)", said)
    return found[1] if found else ""


def include_folder(nvcc: Path) -> Path:
    """Where the toolkit's cuda_fp16.h is. Raises ChildProcessError where nvcc finds none."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "one.cu")
        source.write_text("#include <cuda_fp16.h>\n")
        done = compiled(nvcc, source, "-E")
    found = re.search(r'^# \d+ "([^"]+)/cuda_fp16\.h"', done.stdout, re.MULTILINE)
    if done.returncode or found is None:
        raise ChildProcessError(f"{nvcc} finds no cuda_fp16.h: {done.stderr.strip()[:500]}")
    return Path(found[1])


def _without_errors(
    nvcc: Path, source: Path, texts: Mapping[str, str], options: Sequence[str]
) -> dict[str, str]:
    """Compile the functions of `texts` in one file; returns nvcc's word of each that it refuses,
    which are left out. Raises ChildProcessError where it says nothing of a function's line.
    """
    refused: dict[str, str] = {}
    while True:
        lines, owners = [INCLUDES], []
        for name in (n for n in texts if n not in refused):
            lines.append(texts[name])
            owners += [name] * texts[name].count("\n")
        source.write_text("".join(lines))
        done = compiled(nvcc, source, *options)
        if done.returncode == 0:
            return refused
        first = INCLUDES.count("\n") + 1
        wrong = [(int(n) - first, said) for n, said in _ERROR.findall(done.stdout + done.stderr)]
        fresh = {owners[n]: said for n, said in wrong if 0 <= n < len(owners)}
        if not fresh:
            raise ChildProcessError(f"nvcc: {(done.stderr or done.stdout).strip()[:2000]}")
        refused |= fresh


def device(nvcc: Path, folder: Path, calls: Mapping[str, Call]) -> tuple[str, dict[str, str]]:
    """(PTX of a kernel for each call, what nvcc says of calls that it does not take)."""
    ptx = folder / "kernels.ptx"
    texts = {name: device_kernel(call, name) for name, call in calls.items()}
    refused = _without_errors(nvcc, folder / "kernels.cu", texts, (*TO_PTX, "-o", str(ptx)))
    return ptx.read_text(), refused


def host(nvcc: Path, folder: Path, calls: Mapping[str, Call]) -> tuple[Path, dict[str, str]]:
    """(a library with a function for each call, what nvcc says of those that it does not take)."""
    library = folder / "host.so"
    texts = {name: host_function(call, name) for name, call in calls.items()}
    options = ("-shared", "-O1", "-Xcompiler", "-fPIC,-ffp-contract=off", "-o", str(library))
    refused = _without_errors(nvcc, folder / "host.cu", texts, (ARCHITECTURE, *options))
    return library, refused
