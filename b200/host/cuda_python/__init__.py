"""cuda-python (cuda.bindings) over a B200 in software.

functions.py                 devices, time, memory and graphs of its driver and its runtime
kernels.py                   modules, kernels, tensormaps and launches
nvrtc.py                     the compiler
host_memory.py               addresses of host memory, as its functions take them
"""

from __future__ import annotations

from b200.host.cuda.modules import Modules
from b200.host.cuda_python import functions, nvrtc


def patch(modules: Modules) -> None:
    """Put the functions of a software B200 into cuda.bindings, where that is installed."""
    functions.patch(modules)
    nvrtc.patch()
