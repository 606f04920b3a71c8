"""Raw CUDA for a B200 in software: programs of `torch.utils.cpp_extension`, compiled for real.

extension.py                 load_inline and load
setup_extension.py           CUDAExtension of a setup.py
build.py  architecture.py    nvcc and the C++ compiler; diagnostics.py: their errors; cache.py
program.py  headers.py       programs with a `main`; headers of pip packages
sources.py  fatbin.py        the lines of the user's files, headers too; PTX out of a fat binary
shim/  include/              C++: the CUDA runtime and driver of the compiled host code
stand_in.py  library.py      which of shim/ goes into an extension; all of it as a library
driver.py  numbered.py       Python: their other side; for callers that take numbers alone
registration.py              kernels and variables of a library
modules.py  launching.py     what a program has on the device; kernels and launches, which end in
                             `Gpu.launch`
graphs.py  graph_nodes.py    CUDA graphs; graph_memory.py: memory that they allocate
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from b200.host.imports import when_imported

if TYPE_CHECKING:
    from b200.host.cuda.extension import Extensions
    from b200.host.cuda.modules import Modules

TORCH_EXTENSION = "torch.utils.cpp_extension"


def install(modules: Modules) -> Extensions:
    """From now on `load_inline` and `load` of torch.utils.cpp_extension compile for this process's
    software B200. Extensions without CUDA sources are compiled in the same way.
    """
    from b200.host.cuda import setup_extension
    from b200.host.cuda.driver import Driver
    from b200.host.cuda.extension import Extensions

    extensions = Extensions(Driver(modules))
    modules.gpu.memory.search_first(extensions.find_reserved)
    modules.gpu.memory.also_search(extensions.find)

    when_imported(TORCH_EXTENSION, lambda module: take_over(module, extensions))
    setup_extension.follow_imports(extensions)
    when_imported(
        "torch._ops", lambda module: setup_extension.follow_libraries(module._Ops, extensions)
    )
    return extensions


def take_over(module: Any, extensions: Extensions) -> None:
    """What torch.utils.cpp_extension has from now on. A setup.py looks at CUDA_HOME before it
    chooses CUDAExtension, and torch for the CPU has none.
    """
    from b200.host.cuda import setup_extension, toolkit

    module.load_inline = extensions.load_inline
    module.load = extensions.load
    setup_extension.take_over(module)
    if module.CUDA_HOME is None:
        module.CUDA_HOME = toolkit.home()
