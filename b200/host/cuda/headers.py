"""Headers of other packages: where they are if installed, and which package has one that is not."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

# What a header's name begins with -> the pip package that has it, for CUDA 13.
_PACKAGES = {
    "cutlass/": "nvidia-cutlass",
    "cute/": "nvidia-cutlass",
    "cublas": "nvidia-cublas",
    "nvblas": "nvidia-cublas",
    "cusparse": "nvidia-cusparse",
    "cusolver": "nvidia-cusolver",
    "cufft": "nvidia-cufft",
    "curand": "nvidia-curand",
    "cudnn": "nvidia-cudnn-cu13",
    "nccl": "nvidia-nccl-cu13",
    "nvrtc": "nvidia-cuda-nvrtc",
    "nvJitLink": "nvidia-nvjitlink",
    "nvtx3/": "nvidia-nvtx",
    "nvToolsExt": "nvidia-nvtx",
    "cupti": "nvidia-cuda-cupti",
    "cuda_profiler_api": "nvidia-cuda-profiler-api",
    "cuda/": "nvidia-cuda-cccl",
    "cub/": "nvidia-cuda-cccl",
    "thrust/": "nvidia-cuda-cccl",
    "crt/": "nvidia-cuda-crt",
    "cuda": "nvidia-cuda-runtime",
    "cooperative_groups": "nvidia-cuda-runtime",
}
_MISSING = re.compile(
    r"""["<]?(?P<header>[\w/.+-]+\.(?:h|hpp|cuh)|(?:cuda|cub|thrust)/[\w/]+)[">]?: No such file"""
    r"""|could not open source file "(?P<other>[^"]+)\""""
)


def folders() -> list[Path]:
    """Where the headers of installed packages are that nvcc does not look for itself."""
    found = []
    if (root := _package("cutlass_library")) is not None:  # the package nvidia-cutlass
        found += [root / "source" / "include", root / "source" / "tools" / "util" / "include"]
    if (root := _package("nvidia")) is not None:
        found += sorted(path for path in root.glob("*/include") if path.parent.name[:3] != "cu1")
    return [path for path in found if path.is_dir()]


def _package(name: str) -> Path | None:
    spec = importlib.util.find_spec(name)
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    return Path(places[0]) if places else None


def advice(error: str) -> str:
    """Which package has the header that a compiler's error misses, "" if that is not known."""
    match = _MISSING.search(error)
    if match is None:
        return ""
    header = match["header"] or match["other"]
    package = next((p for start, p in _PACKAGES.items() if header.startswith(start)), None)
    return f" (the pip package {package} has it)" if package else ""
