"""Functions of torch that bring values of a GPU's tensor to the host, which waits for them: for all
that the current queue has so far.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

_T = torch.Tensor
READS = {
    _T.item,
    _T.tolist,
    _T.cpu,
    _T.equal,
    _T.allclose,
    _T.nonzero,
    _T.__bool__,
    _T.__int__,
    _T.__float__,
    _T.__index__,
    _T.__contains__,
    _T.__repr__,
    _T.__format__,
    torch.equal,
    torch.allclose,
    torch.nonzero,
}
_acts: list[Callable[[], None]] = []


def when_host_reads(act: Callable[[], None]) -> None:
    """Call `act`, and nothing else, where the host reads."""
    _acts[:] = [act]


def host_reads() -> None:
    for act in _acts:
        act()
