"""Raw CUDA for a B200 in software: programs of `torch.utils.cpp_extension`, compiled for real.

extension.py                 load_inline and load
build.py  architecture.py    nvcc and the C++ compiler, the cache; diagnostics.py: their errors
sources.py  fatbin.py        the lines of the user's file; PTX out of a fat binary
shim/  include/              C++: the CUDA runtime and driver of the compiled host code
driver.py  launching.py      Python: their other side, which ends in `Gpu.launch`
"""

from __future__ import annotations

from b200.host.runtime import Runtime


def install(runtime: Runtime) -> None:
    """From now on `load_inline` and `load` of torch.utils.cpp_extension compile for this process's
    software B200. Extensions without CUDA sources are compiled in the same way.
    """
    import torch.utils.cpp_extension as torch_extension

    from b200.host.cuda.driver import Driver
    from b200.host.cuda.extension import Extensions

    extensions = Extensions(Driver(runtime))
    runtime.gpu.memory.also_search(extensions.find)
    torch_extension.load_inline = extensions.load_inline
    torch_extension.load = extensions.load
