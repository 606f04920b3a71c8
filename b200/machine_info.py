"""What this machine can do: its GPU, the compiler of CUDA, and what each front end would need."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import sys
from collections.abc import Iterator

import b200
from b200.host import own_gpu
from b200.host.features import FEATURES
from b200.host.takeover import missing

NVRTC = "libnvrtc.so"
PACKAGES = ("torch", "nvidia-cutlass-dsl", "cuda-python", "triton", "numpy")
# Front end -> modules or libraries that it needs, and the package or extra that brings each.
NEEDS = {
    "raw PTX (b200.run_ptx)": {"numpy": "numpy", "threadpoolctl": "threadpoolctl"},
    "CuTe DSL": {"torch": "torch", "cutlass": "nvidia-cutlass-dsl"},
    "Triton and Gluon": {"torch": "torch", "triton": "the extra triton"},
    "cuda-python": {"cuda.bindings": "cuda-python"},
    "NVRTC": {"cuda.bindings": "cuda-python", NVRTC: "the extra nvrtc"},
}


def lines() -> Iterator[str]:
    """A line each."""
    cores = len(os.sched_getaffinity(0))
    yield f"b200 {b200.__version__}, Python {sys.version.split()[0]}, {cores} cores"
    yield f"GPU: {_gpu()}"
    yield from (f"{package}: {_version(package)}" for package in PACKAGES)
    compiler, lacking = _nvcc()
    yield f"nvcc: {compiler}"
    for name, needs in NEEDS.items():
        absent = [package for module, package in needs.items() if not _is_there(module)]
        yield f"{name}: {_needs(absent)}"
    absent = [] if _is_there("torch") else ["torch"]
    for name in ("CUDA programs (FILE.cu)", "CUDA in load_inline and load"):
        yield f"{name}: {_needs([*absent, *lacking])}"
    yield f"compiled CUDA programs (b200 exec): {_needs(lacking)}"
    gone = [why for feature in FEATURES if (why := missing(feature))]
    yield f"taken over: {len(FEATURES) - len(gone)} of {len(FEATURES)} features"
    yield from (f"  refused: {reason}" for reason in gone)


def _needs(absent: list[str]) -> str:
    return f"no: it needs {', '.join(dict.fromkeys(absent))}" if absent else "runs"


def _is_there(module: str) -> bool:
    if module == NVRTC:
        return _finds_nvrtc()
    try:
        return importlib.util.find_spec(module) is not None
    except ImportError:  # of the package that it lies in
        return False


def _finds_nvrtc() -> bool:
    """As cuda-python finds it: the library of pip's package, or of a toolkit."""
    try:
        from cuda.pathfinder import (  # pyright: ignore[reportMissingTypeStubs]  it has none
            load_nvidia_dynamic_lib,
        )
    except ImportError:
        return False
    try:
        load_nvidia_dynamic_lib("nvrtc")
    except Exception:  # noqa: BLE001  its own kinds, one a version
        return False
    return True


def _nvcc() -> tuple[str, list[str]]:
    """The nvcc that compiles, with its version; and what is missing for raw CUDA."""
    from b200.host.cuda import toolkit
    from b200.host.cuda.errors import BuildError

    try:
        found = toolkit.find_toolkit()
    except BuildError as error:
        said = str(error).partition("\n")[0]
        compiler = os.environ.get("CXX", "c++")
        gone = [] if toolkit.home() else ["the extra cuda, or a CUDA toolkit"]
        return f"not usable: {said}", [*gone, *([] if shutil.which(compiler) else [compiler])] or [
            "another nvcc"
        ]
    major, minor = found.version
    return f"{found.nvcc}, {major}.{minor}, with {found.cxx_version.partition(chr(10))[0]}", []


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _gpu() -> str:
    if not _is_there("torch") or not own_gpu.is_there():
        return "none: programs run in software"
    import torch

    major, minor = torch.cuda.get_device_capability()
    gpu = f"{torch.cuda.get_device_name()}, compute capability {major}.{minor}"
    return gpu + {10: ": runs sm_100a", 9: ": eval.py --device hopper, tcgen05 in software"}.get(
        major, ""
    )
