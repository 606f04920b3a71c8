"""The kernel of the rig of dependent launches does the steps that it is asked for, and no more."""

import numpy as np
import pytest
import torch

from hopper.rewrite import TARGET
from lab.h200 import dependent
from tests.b200.ptx_support import run


def after(steps: int) -> list[float]:
    """What each thread has after so many steps: a product and a sum, rounded once."""
    values = np.arange(dependent.THREADS, dtype=np.float32)
    factor = np.uint32(0x3F800347).view(np.float32)
    for _ in range(steps):
        values = (values.astype(np.longdouble) * factor + np.longdouble(0.5)).astype(np.float32)
    return values.tolist()


@pytest.mark.parametrize("before, work", [*dependent.STEPS, (3, 1), (6, 5)])
def test_steps(before, work):
    # The rig stores only a number that it never gets: here a thread stores what it has.
    text = dependent.KERNEL.replace(TARGET, "sm_100a").replace("@!%p2 bra END;", "")
    text = text.replace("ld.shared.f32 %f2, [dyn]", "mov.f32 %f2, 0f00000000")
    out = torch.zeros(1)
    run(text, out, work, 0, before, block=(dependent.THREADS, 1, 1), smem=1024)
    assert out.item() in after(before + work)
