"""torch's profiler beside a GPU in software: it watches the CPU, where the work is done."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from b200.host.runtime import Runtime
from b200.host.takeover import replace


def patch(_runtime: Runtime) -> None:
    """Let the profiler start for cuda."""
    replace(torch.autograd.profiler.profile, "__init__", _watching_the_cpu)


def _watching_the_cpu(make: Callable):
    @functools.wraps(make)
    def init(
        self,
        *args,
        use_cuda: bool = False,
        use_device: str | None = None,
        use_cpu: bool = True,
        **kwargs,
    ):
        if use_cuda or use_device == "cuda":
            use_cpu, use_device = True, None
        make(self, *args, use_device=use_device, use_cpu=use_cpu, **kwargs)

    return init
