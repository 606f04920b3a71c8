"""Triton and Gluon over a B200 in software.

backend.py      the compiler: Triton's own, whose machine code carries its PTX with it
driver.py       the driver: device, memory limits, tensormaps, modules
launcher.py     a launch: arguments to parameters, metadata to launch attributes
benchmark.py    triton.testing.do_bench, and what autotuning takes for a time
cublas.py       products of matrices, which its tutorials compare with

Both stand in Triton's own table of backends, and the driver is made active through
`triton.runtime.driver.set_active`. Triton is imported when the program imports it.
"""

from __future__ import annotations

import functools
from importlib import import_module
from types import ModuleType

from b200.host.cuda.modules import Modules
from b200.host.imports import when_imported
from b200.host.triton import benchmark, cublas
from b200.host.triton.backend import software_backend
from b200.host.triton.driver import software_driver


def install(modules: Modules) -> None:
    """Make Triton compile for this B200 and launch on it, once the program imports it."""
    when_imported("triton.backends", functools.partial(_patch_backends, modules))
    when_imported("triton.runtime.driver", _activate)
    benchmark.install(modules.runtime)


def _patch_backends(modules: Modules, backends: ModuleType) -> None:
    """Put compiler and driver of the software B200 into the place of NVIDIA's."""
    found = backends.backends.get("nvidia")
    if found is None:  # a Triton for other chips
        return
    cublas.patch(import_module("triton._C.libtriton"))
    backends.backends["nvidia"] = backends.Backend(
        compiler=software_backend(found.compiler),
        driver=software_driver(found.driver, modules),
    )


def _activate(driver: ModuleType) -> None:
    """A driver that was made before: the next one asked for is ours."""
    config = driver.driver
    if getattr(config, "_active", None) is not None:
        config.set_active(import_module("triton.backends").backends["nvidia"].driver())
