"""Runs PTX that was compiled for a B200 on an H100 or H200, with only tcgen05 in software.

    rewrite.py          PTX for sm_100a -> PTX for sm_90a, device functions in place of tcgen05
    device/             the device functions, CUDA C++
    byte_tensormaps.py  tensormaps of 4-bit elements -> tensormaps of bytes
    run.py              module load and launch (cuda-python)
    backend.py          takes the place of the emulator under the CuTe DSL's host code
    h200.py             the clock of an H200: the B200's, with constants of its own
    pack.py             a launch in a file, for a machine without the DSL

TMA, mbarriers, clusters, distributed shared memory, the driver and concurrency are the GPU's own.
What it prints as time is never the kernel's time: an MMA is carried out by one thread.
"""

from hopper.errors import HopperError

__all__ = ["HopperError"]
