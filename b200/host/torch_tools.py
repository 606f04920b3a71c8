"""torch's compiler and profiler beside a GPU in software.

Code that torch.compile would make for the GPU is not what the program wrote, and takes a compiler
for a GPU that torch does not find: functions run as they are written. The profiler watches the CPU,
where the work is done.
"""

from __future__ import annotations

import functools
import os

import torch


def patch() -> None:
    """Let torch.compile hand back what it is given, and the profiler start for cuda."""
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
    profiler = torch.autograd.profiler.profile
    profiler.__init__ = _watching_the_cpu(profiler.__init__)


def _watching_the_cpu(make):
    @functools.wraps(make)
    def init(self, *args, use_cuda=False, use_device=None, use_cpu=True, **kwargs):
        if use_cuda or use_device == "cuda":
            use_cpu, use_device = True, None
        make(self, *args, use_device=use_device, use_cpu=use_cpu, **kwargs)

    return init
