"""What a `device=` argument of torch asks for: there is one GPU, cuda:0."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from typing import Any, TypeVar

import torch

DEVICE = torch.device("cuda", 0)

Value = TypeVar("Value")


def names_cuda(device: Any) -> bool:
    """Whether a `device=` argument asks for the GPU. RuntimeError if it is another than cuda:0."""
    if device is None or isinstance(device, bool):
        return False
    if isinstance(device, int):
        index = device
    elif isinstance(device, (str, torch.device)):
        device = torch.device(device)
        if device.type != "cuda":
            return False
        index = device.index or 0
    else:
        return False
    if index != 0:
        raise RuntimeError(
            f"CUDA error: invalid device ordinal: cuda:{index} was asked for, there is one B200,"
            " cuda:0"
        )
    return True


def check_device(device: Any) -> None:
    """RuntimeError for a GPU that is not there, ValueError for what is no GPU. What names no
    device, a queue for example, means the current one (torch.cuda._utils._get_device_index).
    """
    if not isinstance(device, (int, str, torch.device)) or isinstance(device, int) and device < 0:
        return
    if not names_cuda(device):
        raise ValueError(f"Expected a cuda device, but got: {device}")


def about_device(value: Value) -> Callable[..., Value]:
    """A function of an optional device that gives `value`."""

    def query(device: Any = None) -> Value:
        check_device(device)
        return value

    return query


class Making:
    """made: whether what torch makes of nothing, or of host memory, is now on the GPU."""

    made = False

    @contextlib.contextmanager
    def making(self, on_gpu: bool) -> Generator[None]:
        before, self.made = self.made, on_gpu
        try:
            yield
        finally:
            self.made = before


on_gpu = Making()
