"""Dispatch modes of ours, which do not make a program import torch's compiler."""

from __future__ import annotations

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from b200.host.imports import when_imported


class Mode(TorchDispatchMode):
    """A dispatch mode that torch.compile does not look into. torch itself imports `torch._dynamo`
    for that at a mode's first operation (torch/_compile.py, torch 2.13), which takes two CPU
    seconds; here a mode is hidden as soon as the program has imported it.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        when_imported("torch._dynamo", lambda _: cls._hide())

    @classmethod
    def _hide(cls) -> None:
        cls.__torch_dispatch__ = torch._disable_dynamo(cls.__torch_dispatch__)
