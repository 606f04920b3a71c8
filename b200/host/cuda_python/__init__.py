"""cuda-python (cuda.bindings) over a B200 in software.

functions.py                 devices, time, memory and graphs of its driver and its runtime
kernels.py                   modules, kernels, tensormaps and launches
nvrtc.py                     the compiler
host_memory.py               addresses of host memory, as its functions take them
"""
