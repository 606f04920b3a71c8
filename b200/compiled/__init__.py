"""Compiled CUDA programs over a B200 in software: `b200 exec`.

command.py                   the command: environment, the program in a process of its own, reports
kit.py  nvcc.py              what stands in for a CUDA toolkit: nvcc, libcudart, libcuda
guest.cpp  redirect.cpp      C++ in the program's process: it starts Python; static runtimes
python_program.py            Python programs: torch, and a setup.py that builds extensions
guest.py                     Python there: answers the CUDA calls, tells what was found
"""

OPTIONS = "B200_EXEC"  # of the environment: which findings count, for processes that tell them
