"""torch's compiler and profiler beside a GPU in software.

Code that torch.compile would make for the GPU is not what the program wrote, and takes a compiler
for a GPU that torch does not find: functions run as they are written. The profiler watches the CPU,
where the work is done.
"""

from __future__ import annotations

import functools
import os

import torch

from b200.host.runtime import Runtime
from b200.host.takeover import replace


def patch(_runtime: Runtime) -> None:
    """Let torch.compile hand back what it is given, and the profiler start for cuda."""
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
    replace(torch.autograd.profiler.profile, "__init__", _watching_the_cpu)


def _watching_the_cpu(make):
    @functools.wraps(make)
    def init(self, *args, use_cuda=False, use_device=None, use_cpu=True, **kwargs):
        if use_cuda or use_device == "cuda":
            use_cpu, use_device = True, None
        make(self, *args, use_device=use_device, use_cpu=use_cpu, **kwargs)

    return init
