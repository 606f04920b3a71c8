"""Kernels of which each thread stores one word, and what they end with."""

from __future__ import annotations

import pytest
import torch

from b200 import EmulatorError
from tests.b200.ptx_support import kernel, own_element, run

STORE = own_element(4)


def output(body: str, threads=32, ctas=1, **options) -> list[int]:
    out = torch.full((threads * ctas,), -1, dtype=torch.int32)
    text = kernel(STORE + body, [".u64 out"], reqntid=threads)
    run(text, out, grid=(ctas, 1, 1), block=(threads, 1, 1), **options)
    return out.tolist()


def report(body: str, **options) -> EmulatorError:
    with pytest.raises(EmulatorError) as caught:
        output(body, **options)
    return caught.value
