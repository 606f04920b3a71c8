"""The GPU of this machine, which a program in software does not see and does not touch."""

from __future__ import annotations

import os
import sys

from b200.errors import EmulatorError

_VISIBLE, _ARCHITECTURES = "CUDA_VISIBLE_DEVICES", "TORCH_CUDA_ARCH_LIST"
USED = (
    "torch has already used this machine's GPU in this process, and what it put there is out of the"
    " software B200's reach: call b200.install() before anything is on cuda, or start the process"
    f" with {_VISIBLE}= (empty)"
)


def is_there() -> bool:
    """Whether torch has a GPU of its own. Asking initialises the driver, which a forked process
    does not survive, so it is not asked where GPUs are hidden.
    """
    import torch

    return os.environ.get(_VISIBLE) != "" and not is_replaced() and torch.cuda.is_available()


def is_replaced() -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and getattr(torch.cuda.is_available, "emulated", False)


def is_used() -> bool:
    """Whether torch has a context on a GPU of its own in this process."""
    torch = sys.modules.get("torch")
    return torch is not None and not is_replaced() and torch.cuda.is_initialized()


def hide() -> None:
    """Let libraries that ask the driver, here and in child processes, find no GPU. What the machine
    says for its own GPU is forgotten, too: the architecture that extensions are compiled for.

    EmulatorError where torch has a context on the GPU.
    """
    if is_used():
        raise EmulatorError("unsupported", USED)
    os.environ[_VISIBLE] = ""
    if "10." not in os.environ.get(_ARCHITECTURES, "10."):
        del os.environ[_ARCHITECTURES]
