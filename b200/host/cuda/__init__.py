"""Raw CUDA for a B200 in software: programs of `torch.utils.cpp_extension`, compiled for real.

extension.py                 load_inline and load
build.py  architecture.py    nvcc and the C++ compiler, the cache; diagnostics.py: their errors
program.py  headers.py       programs with a `main`; headers of pip packages
sources.py  fatbin.py        the lines of the user's file; PTX out of a fat binary
shim/  include/              C++: the CUDA runtime and driver of the compiled host code
driver.py                    Python: their other side
modules.py  launching.py     what a program has on the device; launches, which end in `Gpu.launch`
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from b200.host.cuda.modules import Modules
from b200.host.imports import when_imported

if TYPE_CHECKING:
    from b200.host.cuda.extension import Extensions

TORCH_EXTENSION = "torch.utils.cpp_extension"


def _refuse_setup(name: str, *_args: Any, **_kwargs: Any) -> None:
    """CUDAExtension: what a setup.py builds is linked with NVIDIA's runtime."""
    from b200.host.cuda.errors import BuildError

    raise BuildError(
        f"extension {name!r}: CUDAExtension of a setup.py is not in the software B200; its sources"
        " run through torch.utils.cpp_extension.load(name, sources)"
    )


def install(modules: Modules) -> Extensions:
    """From now on `load_inline` and `load` of torch.utils.cpp_extension compile for this process's
    software B200. Extensions without CUDA sources are compiled in the same way.
    """
    from b200.host.cuda.driver import Driver
    from b200.host.cuda.extension import Extensions

    extensions = Extensions(Driver(modules))
    modules.gpu.memory.also_search(extensions.find)

    when_imported(TORCH_EXTENSION, lambda module: take_over(module, extensions))
    return extensions


def take_over(module: Any, extensions: Extensions) -> None:
    """What torch.utils.cpp_extension has from now on. A setup.py looks at CUDA_HOME before it
    chooses CUDAExtension, and torch for the CPU has none.
    """
    from b200.host.cuda import toolkit

    module.load_inline = extensions.load_inline
    module.load = extensions.load
    module.CUDAExtension = _refuse_setup
    if module.CUDA_HOME is None:
        module.CUDA_HOME = toolkit.home()
