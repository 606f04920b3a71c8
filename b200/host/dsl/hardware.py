"""What the CuTe DSL's Python side asks of the hardware, answered for a B200.

Versions: the DSL from 4.3.5 to 4.8.1; a name that one of them lacks is left out.
"""

# Methods of the DSL are replaced here, which its types do not foresee.
# pyright: reportAttributeAccessIssue=false, reportOptionalCall=false

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any

from b200 import hardware
from b200.chip.placement import max_clusters
from b200.host.imports import if_there
from b200.host.runtime import Runtime


def patch(_runtime: Runtime) -> None:
    _patch_hardware_info()
    _patch_compiler()
    _patch_benchmark()


def _patch_hardware_info() -> None:
    """HardwareInfo counts resident clusters with a kernel of its own, which the driver would have
    to load."""
    from cutlass.utils.hardware_info import HardwareInfo

    def get_max_active_clusters(self, cluster_size: int, *_args: Any, **_kwargs: Any) -> int:
        if not 1 <= cluster_size <= 32:
            raise ValueError(
                f"Cluster size must be between 1 and 32, {cluster_size} is not supported"
            )
        return max_clusters(cluster_size)

    HardwareInfo.get_max_active_clusters = get_max_active_clusters
    HardwareInfo.get_l2_cache_size_in_bytes = lambda self: hardware.L2_BYTES
    HardwareInfo.get_device_multiprocessor_count = lambda self: hardware.SM_COUNT


def _patch_compiler() -> None:
    """4.3 and 4.4 look for the driver before they compile."""
    from cutlass.base_dsl.compiler import Compiler

    if hasattr(Compiler, "_check_cuda_dependencies_once"):
        Compiler._check_cuda_dependencies_once = lambda self, libraries: None


def _patch_benchmark() -> None:
    """The DSL's benchmark makes one call, whose time needs no repeats."""
    for name in ("cutlass.cute.testing", "cutlass.testing"):
        module = if_there(name)
        if module is not None and hasattr(module, "benchmark"):
            module.benchmark = _once(module.benchmark)


def _once(benchmark: Callable):
    known = inspect.signature(benchmark).parameters

    @functools.wraps(benchmark)
    def run(callable, **options: Any):
        wanted = options.get("iterations", 100) + options.get("warmup_iterations", 10)
        if wanted > 1:
            print(f"b200: benchmark: 1 call in the place of {wanted}", file=sys.stderr)
        options |= {"warmup_iterations": 0, "iterations": 1, "workspace_count": 1}
        if "use_cupti" in known:
            options["use_cupti"] = False
        return benchmark(callable, **{k: v for k, v in options.items() if k in known})

    return run
