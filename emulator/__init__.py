"""A B200 in software: runs the PTX that the CuTe DSL compiles for sm_100a on a CPU.

    import emulator
    gpu = emulator.install()   # before the first compile; every later launch of this process runs
    in software custom_kernel(data)        # ordinary CPU tensors
    gpu.launches[-1]           # report: grid, cluster, counters

Layers, each knowing only the one below: runtime.py (the CUDA runtime under the DSL's host code),
ptx.py (PTX text -> program), the machine (analysis.py, translate.py, machine.py, isa/), report.py
(what went wrong, in words).
"""

from .errors import EmulatorError
from .runtime import install

__all__ = ["EmulatorError", "install"]
